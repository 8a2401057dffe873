"""The registry client against a registry on loopback that misbehaves on request."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from envbuilder.console import PlainProgress
from envbuilder.errors import BuildError, InvalidError, WrongHashError
from envbuilder.oci import connection, receive, reference, registry, send
from envbuilder.oci.connection import Connection
from envbuilder.oci.descriptor import INDEX, MANIFEST, Descriptor, Manifest
from envbuilder.oci.layout import Layout
from tests.unit import fake_registry
from tests.unit import small_images as images
from tests.unit.fake_registry import PASSWORD, TOKEN, USER, FakeRegistry, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from envbuilder.settings import Settings

BIG = bytes(range(256)) * 8192  # 2 MiB
SMALL = b"a small layer"
SILENT = PlainProgress(lambda line: None)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeRegistry]:
    """A registry; nobody is logged in anywhere, and pieces are small."""
    monkeypatch.setattr(send, "PIECE", 1 << 19)
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with fake_registry.running() as made:
        yield made


def log_in(folder: Path, host: str, user: str = USER, password: str = PASSWORD) -> None:
    import base64

    (folder / "docker").mkdir(exist_ok=True)
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    (folder / "docker" / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def connect(server: FakeRegistry, name: str = "a", waits: list[float] | None = None) -> Connection:
    pause = (lambda seconds: None) if waits is None else waits.append
    return Connection(reference.parse(f"{server.host}/{name}"), pause=pause)


def push(
    server: FakeRegistry,
    layout: Layout,
    image: Descriptor,
    found: Settings,
    tag: str = "t",
    **options: Any,
) -> registry.Pushed:
    name = options.pop("name", "a")
    return registry.push(
        connect(server, name), tag, layout, image, found.uploads_dir, SILENT, **options
    )


def pull(server: FakeRegistry, wanted: str, folder: Path) -> registry.Pulled:
    layout = Layout.create(folder)
    return registry.pull(connect(server), wanted, layout, "linux/amd64", SILENT)


def impatient(monkeypatch: pytest.MonkeyPatch, fault: str = "hang") -> None:
    """Where a registry hangs, it is given up soon; elsewhere a slow machine must not matter."""
    if fault == "hang":
        monkeypatch.setattr(connection, "TIMEOUT_SECONDS", (10.0, 0.4))


@pytest.fixture
def source(tmp_path: Path) -> Layout:
    return Layout.create(tmp_path / "source")


@pytest.fixture
def there(server: FakeRegistry, source: Layout, found: Settings) -> Descriptor:
    """An image that the registry has, with a log that starts now."""
    made = images.image(source, BIG, SMALL)
    push(server, source, made, found)
    server.log.clear()
    return made


# --- pull


def test_an_image_comes_back_as_it_went(
    server: FakeRegistry, there: Descriptor, source: Layout, tmp_path: Path
) -> None:
    done = pull(server, there.digest, tmp_path / "b")
    pulled = Layout.open(tmp_path / "b")
    assert pulled.find("linux/amd64").digest == there.digest
    manifest = pulled.manifest("linux/amd64")
    assert pulled.checked(manifest.layers[0]).read_bytes() == BIG
    assert pulled.read_config(manifest) == source.read_config(manifest)
    assert done.bytes == len(BIG) + len(SMALL) + manifest.config.size
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == [
        "blobs",
        "index.json",
        "oci-layout",
    ]


def test_what_is_there_does_not_travel_again(
    server: FakeRegistry, there: Descriptor, tmp_path: Path
) -> None:
    pull(server, "t", tmp_path / "b")
    server.log.clear()
    assert pull(server, "t", tmp_path / "b").bytes == 0
    assert server.log == ["GET /v2/a/manifests/t"]


def test_a_damaged_blob_is_brought_again(
    server: FakeRegistry, there: Descriptor, tmp_path: Path
) -> None:
    pull(server, "t", tmp_path / "b")
    layout = Layout.open(tmp_path / "b")
    layer = layout.manifest("linux/amd64").layers[1]
    layout.blob(layer.digest).chmod(0o644)
    layout.blob(layer.digest).write_bytes(SMALL.upper())
    assert pull(server, "t", tmp_path / "b").bytes == len(SMALL)
    assert layout.checked(layer).read_bytes() == SMALL


def test_of_an_index_one_platform_comes(
    server: FakeRegistry, source: Layout, found: Settings, tmp_path: Path
) -> None:
    index = images.multi(source)
    push(server, source, index, found)
    done = pull(server, index.digest, tmp_path / "b")
    layout = Layout.open(tmp_path / "b")
    assert [d.digest for d in layout.images()] == [done.image.digest]
    assert done.image.platform is not None
    assert done.image.platform.architecture == "amd64"
    names = {p.read_bytes() for p in (tmp_path / "b" / "blobs" / "sha256").iterdir()}
    assert b"layer for amd64" in names
    assert b"layer for arm64" not in names
    assert layout.blob(index.digest).is_file()


def test_a_platform_that_is_not_there(
    server: FakeRegistry, source: Layout, there: Descriptor, found: Settings, tmp_path: Path
) -> None:
    index = images.multi(source)
    push(server, source, index, found, "index")
    layout = Layout.create(tmp_path / "b")
    with pytest.raises(InvalidError, match="no images for macos/arm64") as caught:
        registry.pull(connect(server), "index", layout, "macos/arm64", SILENT)
    assert "linux/amd64, linux/arm64" in caught.value.hint
    with pytest.raises(InvalidError, match="is for linux/amd64, not for linux/arm64"):
        registry.pull(connect(server), there.digest, layout, "linux/arm64", SILENT)
    assert layout.index().manifests == ()


@pytest.mark.parametrize("fault", ["500", "503 Retry-After: 1", "429", "drop", "hang", "cut"])
@pytest.mark.parametrize("request_", ["GET .*manifests", "GET .*blobs"])
def test_a_fault_that_passes_is_survived(
    server: FakeRegistry,
    there: Descriptor,
    tmp_path: Path,
    fault: str,
    request_: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    impatient(monkeypatch, fault)
    server.faults = [(request_, fault)]
    pull(server, there.digest, tmp_path / "b")
    assert server.faults == []
    layout = Layout.open(tmp_path / "b")
    for layer in layout.manifest("linux/amd64").layers:
        layout.checked(layer)


def test_a_cut_blob_goes_on_where_it_broke_off(
    server: FakeRegistry, there: Descriptor, source: Layout, tmp_path: Path
) -> None:
    big = source.manifest("linux/amd64").layers[0]
    server.faults = [(big.digest, "cut"), (big.digest, "cut")]
    done = pull(server, there.digest, tmp_path / "b")
    assert done.bytes == source.manifest("linux/amd64").config.size + len(BIG) + len(SMALL)


def test_a_later_pull_goes_on_where_an_earlier_one_broke_off(
    server: FakeRegistry, there: Descriptor, source: Layout, tmp_path: Path
) -> None:
    big = source.manifest("linux/amd64").layers[0]
    server.faults = [(big.digest, "cut")] + [(big.digest, "drop")] * 16
    with pytest.raises(BuildError, match=rf"{big.digest}: cannot be reached"):
        pull(server, there.digest, tmp_path / "b")
    part = tmp_path / "b" / "partial" / big.digest.removeprefix("sha256:")
    kept = part.stat().st_size
    assert 0 < kept < len(BIG)
    assert Layout.open(tmp_path / "b").index().manifests == ()
    server.faults = []
    assert pull(server, there.digest, tmp_path / "b").bytes <= len(BIG) - kept + 1000
    assert not part.parent.exists()


@pytest.mark.parametrize("fault", ["whole", "416", "elsewhere"])
def test_a_registry_that_cannot_continue_starts_over(
    server: FakeRegistry, there: Descriptor, source: Layout, tmp_path: Path, fault: str
) -> None:
    big = source.manifest("linux/amd64").layers[0]
    server.faults = [(big.digest, "cut"), (big.digest, fault)]
    pull(server, there.digest, tmp_path / "b")
    assert Layout.open(tmp_path / "b").checked(big).read_bytes() == BIG


def test_a_rotten_partial_blob_is_not_trusted(
    server: FakeRegistry, there: Descriptor, source: Layout, tmp_path: Path
) -> None:
    big = source.manifest("linux/amd64").layers[0]
    part = tmp_path / "b" / "partial" / big.digest.removeprefix("sha256:")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"!" * 1000)
    pull(server, there.digest, tmp_path / "b")
    assert Layout.open(tmp_path / "b").checked(big).read_bytes() == BIG


@pytest.mark.parametrize("fault", ["wrong", "longer"])
def test_wrong_bytes_are_refused_and_not_kept(
    server: FakeRegistry, there: Descriptor, source: Layout, tmp_path: Path, fault: str
) -> None:
    big = source.manifest("linux/amd64").layers[0]
    server.faults = [(big.digest, fault)] * 9
    with pytest.raises(WrongHashError, match=rf"{big.digest}: other bytes came"):
        pull(server, there.digest, tmp_path / "b")
    layout = Layout.open(tmp_path / "b")
    assert not layout.blob(big.digest).exists()
    assert not (tmp_path / "b" / "partial" / big.digest.removeprefix("sha256:")).exists()
    assert layout.index().manifests == ()


def test_an_endless_blob_is_not_read_to_its_end(
    server: FakeRegistry, there: Descriptor, source: Layout, tmp_path: Path
) -> None:
    small = source.manifest("linux/amd64").layers[1]
    server.blobs["a", small.digest] = SMALL + b"!" * (64 << 20)
    layout = Layout.create(tmp_path / "b")
    seen: list[int] = []
    with pytest.raises(WrongHashError):
        receive.receive(connect(server), small, layout, seen.append)
    assert sum(seen) < 1 << 20


def test_a_blob_that_is_shorter_than_it_should_be(
    server: FakeRegistry, there: Descriptor, source: Layout, tmp_path: Path
) -> None:
    big = source.manifest("linux/amd64").layers[0]
    server.blobs["a", big.digest] = BIG[:1000]
    with pytest.raises(BuildError, match="broke off after 1000 of"):
        pull(server, there.digest, tmp_path / "b")


def test_a_manifest_of_other_bytes(server: FakeRegistry, there: Descriptor, tmp_path: Path) -> None:
    server.faults = [("manifests", "wrong")]
    with pytest.raises(WrongHashError, match=rf"{there.digest}: other bytes came"):
        pull(server, there.digest, tmp_path / "b")


@pytest.mark.parametrize(
    "content",
    [
        b"not json",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"schemaVersion": 1, "fsLayers": []}',
        b'{"schemaVersion": 2, "manifests": [], "layers": [], "config": {}}',
        b'{"schemaVersion": 2, "mediaType": "text/html", "layers": [], "config": {}}',
        b'{"schemaVersion": 2, "layers": [{"digest": "sha256:../../etc"}], "config": {}}',
        b'{"a": "' + b"x" * (4 << 20) + b'"}',
    ],
)
def test_what_is_no_image(server: FakeRegistry, tmp_path: Path, content: bytes) -> None:
    server.manifests["a", "t"] = (MANIFEST, content)
    with pytest.raises(InvalidError, match=rf"{server.host}/a: t: "):
        pull(server, "t", tmp_path / "b")
    with pytest.raises(InvalidError):
        pull(server, "t", tmp_path / "b")


def test_an_endless_manifest_is_not_read_to_its_end(server: FakeRegistry, tmp_path: Path) -> None:
    server.manifests["a", "t"] = (MANIFEST, b" " * (16 << 20))
    with pytest.raises(InvalidError, match="a manifest of more than 4194304 bytes"):
        pull(server, "t", tmp_path / "b")


def test_what_it_is_comes_from_the_bytes(
    server: FakeRegistry, there: Descriptor, tmp_path: Path
) -> None:
    """A registry cannot make an index of an image: the digest does not cover its header."""
    _, data = server.manifests["a", "t"]
    server.manifests["a", "t"] = (INDEX, data)
    assert pull(server, "t", tmp_path / "b").image.digest == there.digest


# --- push


def test_only_what_is_missing_travels(
    server: FakeRegistry, source: Layout, found: Settings
) -> None:
    first = images.image(source, BIG, SMALL)
    second = images.image(source, BIG, b"another layer")
    done = push(server, source, first, found)
    assert (done.sent, done.present, done.mounted) == (3, 0, 0)
    assert done.bytes == sum(b.size for b in _blobs(source, first)) + first.size
    done = push(server, source, second, found, "u")
    assert (done.sent, done.present) == (1, 2)
    assert done.bytes == len(b"another layer") + second.size
    assert push(server, source, second, found, "u").bytes == 0
    assert server.manifests["a", "t"] == server.manifests["a", first.digest]


def _blobs(layout: Layout, image: Descriptor) -> tuple[Descriptor, ...]:
    manifest: Manifest = layout.read_manifest(image)
    return (manifest.config, *manifest.layers)


def test_blobs_are_mounted_from_another_repository(
    server: FakeRegistry, source: Layout, there: Descriptor, found: Settings, tmp_path: Path
) -> None:
    done = push(server, source, there, found, name="b")
    assert (done.mounted, done.sent, done.bytes) == (3, 0, there.size)
    forgetful = replace(found, cache_dir=tmp_path / "elsewhere")
    assert push(server, source, there, forgetful, name="c").sent == 3
    forgetful = replace(found, cache_dir=tmp_path / "nowhere")
    assert push(server, source, there, forgetful, name="d", mount_from="a").mounted == 3


def test_a_note_of_a_repository_that_is_none(
    server: FakeRegistry, source: Layout, there: Descriptor, found: Settings
) -> None:
    for note in found.uploads_dir.glob("*.repository"):
        note.write_bytes(b"../../x?y=z\n")
    assert push(server, source, there, found, name="b").sent == 3


def test_a_registry_that_does_not_mount_gets_the_blobs(
    server: FakeRegistry, source: Layout, there: Descriptor, found: Settings
) -> None:
    server.mounts = False
    assert push(server, source, there, found, name="b", mount_from="a").sent == 3
    server.faults = [("mount=", "403")] * 3
    assert push(server, source, there, found, name="c", mount_from="a").sent == 3


def test_an_index_goes_with_its_images(
    server: FakeRegistry, source: Layout, found: Settings
) -> None:
    index = images.multi(source)
    push(server, source, index, found)
    puts = [p.rpartition("/")[2] for p in server.requests("PUT") if "manifests" in p]
    assert puts == [*(d.digest for d in source.index().manifests), "t"]


def test_a_tag_or_the_right_digest(server: FakeRegistry, source: Layout, found: Settings) -> None:
    image = images.image(source, SMALL)
    push(server, source, image, found, image.digest)
    with pytest.raises(InvalidError, match="the image is another"):
        push(server, source, image, found, digest_of(b"other"))


REQUESTS = ["HEAD .*blobs", "POST", "PATCH", "PUT .*uploads", "PUT .*manifests"]


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        *((request, fault) for request in REQUESTS for fault in ("500", "503", "drop", "hang")),
        ("PATCH", "partly 100000"),
    ],
)
def test_a_push_survives_a_fault_that_passes(
    server: FakeRegistry,
    source: Layout,
    found: Settings,
    fault: str,
    request_: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    impatient(monkeypatch, fault)
    image = images.image(source, BIG, SMALL)
    server.faults = [(request_, fault)]
    done = push(server, source, image, found)
    assert server.faults == []
    assert all(("a", b.digest) in server.blobs for b in _blobs(source, image))
    assert server.manifests["a", "t"][1] == source.read(image)
    if fault != "hang":  # then a slow machine may send more than once
        assert done.bytes < 2 * len(BIG)


@pytest.mark.parametrize("signs", [False, True])
def test_a_push_that_breaks_off_goes_on_later(
    server: FakeRegistry, source: Layout, found: Settings, signs: bool
) -> None:
    server.signs = signs
    image = images.image(source, BIG)
    patches = 0
    original = server.take_fault

    def third_piece_fails(request: str) -> str:
        nonlocal patches
        patches += request.startswith("PATCH")
        return "500" if patches >= 3 else original(request)

    server.take_fault = third_piece_fails  # type: ignore[method-assign]
    with pytest.raises(BuildError, match="HTTP 500"):
        push(server, source, image, found)
    server.take_fault = original  # type: ignore[method-assign]
    assert 1 << 20 in [len(u) for u in server.uploads.values()]
    done = push(server, source, image, found)
    assert done.bytes - image.size - (1 << 20) <= 100  # the other half, and the configuration
    assert ("a", digest_of(BIG)) in server.blobs
    assert [p for p in found.uploads_dir.iterdir() if p.suffix == ".json"] == []


def test_an_upload_that_is_gone_begins_anew(
    server: FakeRegistry, source: Layout, found: Settings
) -> None:
    image = images.image(source, BIG[::-1])
    server.faults = [("PATCH", "413")]
    with pytest.raises(BuildError, match="HTTP 413"):
        push(server, source, image, found)
    assert any(p.suffix == ".json" for p in found.uploads_dir.iterdir())
    server.uploads.clear()
    push(server, source, image, found)
    assert ("a", digest_of(BIG[::-1])) in server.blobs


def test_a_damaged_note_is_no_hindrance(
    server: FakeRegistry, source: Layout, found: Settings
) -> None:
    image = images.image(source, BIG)
    server.faults = [("PATCH", "413")]
    with pytest.raises(BuildError):
        push(server, source, image, found)
    for content in (b"{", b'{"location": "http://10.255.255.1/x", "offset": 9, "piece": 1}'):
        for note in found.uploads_dir.glob("*.json"):
            note.write_bytes(content)
        server.faults = [("PATCH", "413")]
        with pytest.raises(BuildError, match="413"):
            push(server, source, image, found)
    push(server, source, image, found)


def test_only_what_is_right_is_sent(server: FakeRegistry, source: Layout, found: Settings) -> None:
    image = images.image(source, BIG)
    layer = source.read_manifest(image).layers[0]
    source.blob(layer.digest).chmod(0o644)
    source.blob(layer.digest).write_bytes(b"!" + BIG[1:])
    with pytest.raises(WrongHashError, match="damaged"):
        push(server, source, image, found)
    assert ("a", layer.digest) not in server.blobs
    assert server.manifests == {}


def test_a_registry_that_keeps_refusing(
    server: FakeRegistry, source: Layout, found: Settings
) -> None:
    image = images.image(source, SMALL)
    server.faults = [("POST", "507")] * 8
    with pytest.raises(BuildError, match=r"HTTP 507") as caught:
        push(server, source, image, found)
    assert "Try again later" in caught.value.hint


def test_a_registry_that_changes_manifests_is_found_out(
    server: FakeRegistry, source: Layout, found: Settings
) -> None:
    image = images.image(source, SMALL)
    server.faults = [("PUT .*manifests", f"201 Docker-Content-Digest: {digest_of(b'other')}")]
    with pytest.raises(WrongHashError, match="the registry made"):
        push(server, source, image, found)


# --- who we are, and where requests go


@pytest.mark.parametrize("demands", ["basic", "bearer"])
def test_logging_in(
    server: FakeRegistry, source: Layout, found: Settings, tmp_path: Path, demands: str
) -> None:
    server.demands = demands
    log_in(tmp_path, server.host)
    push(server, source, images.image(source, BIG), found)
    pull(server, "t", tmp_path / "b")


@pytest.mark.parametrize("demands", ["basic", "bearer"])
@pytest.mark.parametrize("password", [None, "very-wrong-password"])
def test_a_login_that_is_missing_or_wrong(
    server: FakeRegistry, tmp_path: Path, demands: str, password: str | None
) -> None:
    server.demands = demands
    if password:
        log_in(tmp_path, server.host, password=password)
    with pytest.raises(BuildError) as caught:
        pull(server, "t", tmp_path / "b")
    said = caught.value.message + caught.value.hint
    assert f"docker login {server.host}" in said
    assert "very-" not in said


@pytest.mark.parametrize("fault", ["503", "429", "drop"])
def test_a_token_server_that_is_busy_for_a_moment(
    server: FakeRegistry, source: Layout, found: Settings, tmp_path: Path, fault: str
) -> None:
    server.demands = "bearer"
    log_in(tmp_path, server.host)
    server.faults = [("GET /token", fault)]
    push(server, source, images.image(source, SMALL), found)
    assert len([line for line in server.log if line.startswith("GET /token")]) == 2


def test_a_token_server_that_is_down_is_named(server: FakeRegistry, tmp_path: Path) -> None:
    server.demands = "bearer"
    server.faults = [("GET /token", "503")] * 4
    with pytest.raises(BuildError, match=r"its token server 127\.0\.0\.1: no token .*HTTP 503"):
        pull(server, "t", tmp_path / "b")


def test_an_identity_token_is_exchanged(server: FakeRegistry, tmp_path: Path) -> None:
    server.demands = "bearer"
    (tmp_path / "docker").mkdir()
    auths = {server.host: {"identitytoken": PASSWORD}}
    (tmp_path / "docker" / "config.json").write_text(json.dumps({"auths": auths}))
    with pytest.raises(BuildError, match="HTTP 404"):
        pull(server, "t", tmp_path / "b")
    assert f"Bearer {TOKEN}" in server.authorizations


@pytest.mark.parametrize(
    "realm",
    [
        "http://auth.example/token",
        "http://user:pw@127.0.0.1:1/token",
        "ftp://127.0.0.1/token",
        "//127.0.0.1/token",
        "https://[bad/token",
        "nonsense",
    ],
)
def test_a_token_server_elsewhere_gets_no_password(
    server: FakeRegistry, tmp_path: Path, realm: str
) -> None:
    server.demands, server.realm = "bearer", realm
    log_in(tmp_path, server.host)
    with pytest.raises(BuildError, match=r"is not at an https address|no proper address"):
        pull(server, "t", tmp_path / "b")
    assert server.authorizations == [""]


def test_another_host_never_learns_who_we_are(
    server: FakeRegistry, there: Descriptor, source: Layout, tmp_path: Path
) -> None:
    server.demands = "bearer"
    log_in(tmp_path, server.host)
    big = source.manifest("linux/amd64").layers[0]
    with fake_registry.running() as other:
        other.blobs["a", big.digest] = BIG
        server.faults = [(big.digest, f"307 Location: http://{other.host}/v2/a/blobs/{big.digest}")]
        server.authorizations.clear()
        pull(server, there.digest, tmp_path / "b")
        assert other.log == [f"GET /v2/a/blobs/{big.digest}"]
        assert other.authorizations == [""]
    assert f"Bearer {TOKEN}" in server.authorizations


def test_netrc_does_not_speak_for_us(
    server: FakeRegistry, there: Descriptor, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login net password very-secret-netrc\n")
    server.authorizations.clear()
    # A session that reads the environment, as one to a registry elsewhere does.
    made = connect(server)
    made._session.trust_env = True
    registry.pull(made, "t", Layout.create(tmp_path / "b"), "linux/amd64", SILENT)
    assert set(server.authorizations) == {""}


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("http://elsewhere.example/x", "http://elsewhere.example, which is not https"),
        ("file:///etc/passwd", "which is not https"),
        ("http://[bad", "which is not https"),
        ("http://127.0.0.1.example/", "which is not https"),
        ("", "without an end"),
    ],
)
def test_redirects_that_are_not_followed(
    server: FakeRegistry, there: Descriptor, tmp_path: Path, location: str, why: str
) -> None:
    server.faults = [("manifests", f"302 Location: {location}")] * 7
    with pytest.raises(BuildError, match=why):
        pull(server, "t", tmp_path / "b")


def test_a_registry_elsewhere_cannot_send_us_to_plain_http() -> None:
    far = Connection(reference.parse("far.example/a"))
    for location in ("http://far.example/x", "http://127.0.0.1/x"):
        with pytest.raises(BuildError, match="which is not https"):
            far.resolve(location, far.url("x"), "a thing")
    assert far.resolve("/x?y=z", far.url("x"), "a thing") == "https://far.example/x?y=z"
    assert far.resolve("https://cdn.example/x", far.url("x"), "") == "https://cdn.example/x"
    assert far.url("x").startswith("https://far.example/v2/a/")


def test_plain_http_is_asked_for() -> None:
    lab = Connection(reference.parse("lab.example:5000/a"), plain_http=True)
    assert lab.url("x") == "http://lab.example:5000/v2/a/x"
    assert lab.resolve("/y", lab.url("x"), "") == "http://lab.example:5000/y"
    with pytest.raises(BuildError, match="which is not https"):
        lab.resolve("http://other.example/y", lab.url("x"), "")


def test_messages_hold_no_secret_and_no_query(
    server: FakeRegistry, source: Layout, found: Settings, tmp_path: Path
) -> None:
    """The registry says our token back to us; it stays where it is."""
    server.demands = "bearer"
    log_in(tmp_path, server.host)
    server.faults = [("PATCH", "403")]
    with pytest.raises(BuildError, match=r"HTTP 403 Forbidden\Z") as caught:
        push(server, source, images.image(source, BIG), found)
    assert "state=" not in caught.value.message
    assert TOKEN not in caught.value.message


def test_what_the_registry_says_is_passed_on(server: FakeRegistry, tmp_path: Path) -> None:
    server.faults = [("manifests", "403")]
    with pytest.raises(BuildError, match=r"HTTP 403 Forbidden \(TESTED as asked"):
        pull(server, "t", tmp_path / "b")


def test_waits_grow_and_a_busy_registry_is_heard(server: FakeRegistry, tmp_path: Path) -> None:
    waits: list[float] = []
    server.faults = [("manifests", "503"), ("manifests", "429 Retry-After: 7")]
    with pytest.raises(BuildError, match="404"):
        connect(server, waits=waits).ask("GET", connect(server).url("manifests/t"), "t", accept=())
    assert waits == [1.0, 7.0, 2.0]
    server.faults = [("manifests", "429 Retry-After: 3600")]
    with pytest.raises(BuildError, match="429"):
        connect(server).ask("GET", connect(server).url("manifests/t"), "t", accept=())


def test_a_registry_that_hangs_is_given_up(
    server: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    server.faults = [("manifests", "hang")] * 4
    with pytest.raises(BuildError, match="timed out"):
        pull(server, "t", tmp_path / "b")


def test_nobody_there(tmp_path: Path, found: Settings) -> None:
    gone = Connection(reference.parse("127.0.0.1:1/a"), pause=lambda seconds: None)
    with pytest.raises(BuildError, match=r"127\.0\.0\.1:1/a: t: cannot be reached"):
        registry.pull(gone, "t", Layout.create(tmp_path / "b"), "linux/amd64", SILENT)


def test_a_full_disk_is_an_error_with_advice(
    server: FakeRegistry, there: Descriptor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(receive._Incoming, "_ask", full)
    with pytest.raises(BuildError, match="no space left") as caught:
        pull(server, "t", tmp_path / "b")
    assert "ENVBUILDER_CACHE_DIR" in caught.value.hint


def test_an_image_that_the_disk_has_no_room_for(
    server: FakeRegistry, there: Descriptor, tmp_path: Path
) -> None:
    _, data = server.manifests["a", "t"]
    read = json.loads(data)
    read["layers"][0]["size"] = 1 << 49
    server.manifests["a", "t"] = (MANIFEST, json.dumps(read).encode())
    with pytest.raises(BuildError, match=r"not enough space .* 562950\.0 GB are needed"):
        pull(server, "t", tmp_path / "b")
    assert server.requests("GET") == ["GET /v2/a/manifests/t"]


def test_two_pushes_at_once_send_each_blob_once(
    server: FakeRegistry, source: Layout, found: Settings
) -> None:
    image = images.image(source, BIG, SMALL)
    results: list[registry.Pushed] = []
    threads = [
        threading.Thread(target=lambda: results.append(push(server, source, image, found)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(r.sent for r in results) == 3
    assert sum(r.present for r in results) == 6
