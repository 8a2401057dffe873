"""`sign` and `verify-signature`: every kind of file, and each way to refuse a signature."""

from __future__ import annotations

import base64
import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuilder.builds import attestations
from envbuilder.builds.backends import integrity
from envbuilder.bundle import format as bundle_format
from envbuilder.commands import sign as module
from envbuilder.containers.oci.layout import (
    CONFIG,
    INDEX,
    LAYER,
    MANIFEST,
    Index,
    Layout,
    Manifest,
    digest_of,
    encode,
)
from envbuilder.core import resources, signatures
from envbuilder.core.console import PlainProgress
from tests.support import command_line, signing
from tests.support.folders import read_json

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run(*arguments)`: exit code, stdout and stderr of a command in the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(module.PASSPHRASE, raising=False)

    return functools.partial(command_line.printed, capsys)


@pytest.fixture(autouse=True)
def keys(tmp_path: Path) -> None:
    signing.lay_key(tmp_path / "key.pem")
    signing.lay_key(tmp_path / "other.pem", "ed25519")


def statement(
    path: Path, digest: dict[str, str], builder: str = attestations.BUILDER, **more: Any
) -> Path:
    """A provenance as a build writes it."""
    predicate = {
        "buildDefinition": {"buildType": attestations.BUILD_TYPE, "externalParameters": more},
        "runDetails": {"builder": {"id": builder}},
    }
    subject = signatures.Subject(name="it", digest=digest)
    path.write_bytes(signatures.make_statement([subject], attestations.PREDICATE, predicate))
    return path


def lay_bundle(path: Path, content: bytes = b"itself") -> Path:
    member = bundle_format.Member(
        path="wheels/a-1-py3-none-any.whl", size=len(content), kind="wheel", what="a wheel",
        sha256=digest_of(content).removeprefix("sha256:"),
    )  # fmt: skip
    manifest = bundle_format.Manifest(
        schema=2, made_by="a test", profiles=(), platforms=(), pythons=(), lacks=(),
        members=(member,),
    )  # fmt: skip
    bundle_format.write(
        path,
        manifest,
        [bundle_format.Part(member=member, content=content)],
        PlainProgress(lambda line: None),
    )
    return path


def lay_lock(path: Path) -> Path:
    return shutil.copy(resources.profiles_dir() / "locks/mps.json", path)


def lay(kind: str, folder: Path) -> str:
    """A file of a kind; its name."""
    if kind == "lock":
        return lay_lock(folder / "mps.json").name
    if kind == "bundle":
        return lay_bundle(folder / "a.tar").name
    if kind == "sbom":
        path = folder / "a.sbom.cdx.json"
        path.write_text('{"bomFormat": "CycloneDX", "components": []}')
        return path.name
    return statement(folder / "a.provenance.json", {"sha256": "a" * 64}).name


KINDS = ("lock", "bundle", "sbom", "provenance")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_signed_and_verified(kind: str, run: Run, tmp_path: Path) -> None:
    name = lay(kind, tmp_path)
    code, out, _ = run("sign", "--key", "key.pem", name)
    assert (code, f"{name}.intoto.jsonl" in out) == (0, True)
    code, out, _ = run("verify-signature", "--key", "other.pub", "--key", "key.pub", name, "--json")
    assert code == 0
    (signed,) = json.loads(out)["signed"]
    assert signed["keyid"] == signing.read_key(tmp_path / "key.pem").public.id
    code, out, _ = run("verify-signature", "--key", "key.pub", name)
    assert signed["digest"] in out


@pytest.mark.parametrize("kind", KINDS)
def test_five_refusals_for_each_kind(kind: str, run: Run, tmp_path: Path) -> None:
    name = lay(kind, tmp_path)
    verify = ("verify-signature", "--key", "key.pub", name)
    signature = tmp_path / f"{name}.intoto.jsonl"

    code, _, unsigned = run(*verify)
    assert (code, "not signed" in unsigned) == (5, True)

    run("sign", "--key", "other.pem", name)
    code, _, unknown = run(*verify)
    assert (code, "not by a trusted key" in unknown) == (5, True)
    signature.unlink()

    run("sign", "--key", "key.pem", name)
    right = signature.read_bytes()
    envelope = json.loads(right)
    payload = base64.b64decode(envelope["payload"]) + b" "
    signature.write_text(json.dumps(envelope | {"payload": base64.b64encode(payload).decode()}))
    code, _, changed = run(*verify)
    assert (code, "was changed" in changed) == (5, True)

    other = lay("sbom" if kind == "lock" else "lock", tmp_path)
    run("sign", "--key", "key.pem", other)
    (tmp_path / f"{other}.intoto.jsonl").replace(signature)
    code, _, wrong_type = run(*verify)
    assert (code, "signed as urn:envbuilder:" in wrong_type) == (5, True)

    signature.write_bytes(right)
    if kind == "bundle":
        lay_bundle(tmp_path / name, b"another")
    elif kind == "provenance":
        statement(tmp_path / name, {"sha256": "b" * 64})
    else:
        document = read_json(tmp_path / name)
        (tmp_path / name).write_text(json.dumps(document, indent=3))
    code, _, elsewhere = run(*verify)
    assert (code, "about other content" in elsewhere) == (5, True)
    assert len({unsigned, unknown, changed, wrong_type, elsewhere}) == 5


def test_a_provenance_that_differs_from_what_was_signed(run: Run, tmp_path: Path) -> None:
    """The subject is the same, the rest of it is not."""
    digest = {"sha256": "a" * 64}
    path = statement(tmp_path / "a.provenance.json", digest)
    run("sign", "--key", "key.pem", path.name)
    statement(path, digest, baseImage="somebody else's")
    code, _, error = run("verify-signature", "--key", "key.pub", path.name)
    assert (code, "another than the file's" in error) == (5, True)


def test_another_builder_is_refused(run: Run, tmp_path: Path) -> None:
    path = statement(tmp_path / "a.provenance.json", {"sha256": "a" * 64}, "urn:somebody")
    for command in (("sign", "--key", "key.pem"), ("verify-signature", "--key", "key.pub")):
        code, _, error = run(*command, path.name)
        assert (code, "names the builder 'urn:somebody'" in error) == (5, True)
    for predicate in (None, [], {"buildDefinition": []}, {"buildDefinition": {"buildType": 1}}):
        subject = signatures.Subject(digest={"sha256": "a" * 64})
        path.write_bytes(signatures.make_statement([subject], attestations.PREDICATE, predicate))
        assert run("sign", "--key", "key.pem", path.name)[0] == 5


def lay_image(folder: Path, *layers: bytes, named: tuple[bytes, ...] = ()) -> str:
    """An image in an OCI layout; its configuration names `named`, by default its layers."""
    layout = Layout.create(folder)
    ids = [digest_of(content) for content in named or layers]
    config = {"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": ids}}
    manifest = Manifest(
        schema_version=2,
        media_type=MANIFEST,
        config=layout.add(json.dumps(config).encode(), CONFIG),
        layers=tuple(layout.add(content, LAYER) for content in layers),
    )
    image = layout.add(encode(manifest), MANIFEST)
    layout.write_index(Index(schema_version=2, media_type=INDEX, manifests=(image,)))
    return manifest.config.digest


def test_the_image_next_to_its_provenance_is_compared(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "image"
    config = lay_image(folder, b"a layer")
    path = statement(tmp_path / "image.provenance.json", {"sha256": config[7:]})
    verify = ("verify-signature", "--key", "key.pub", path.name)
    assert run("sign", "--key", "key.pem", path.name)[0] == 0
    code, out, error = run(*verify)
    assert (code, config in out, "was not compared" in error) == (0, True, False)
    folder.rename(tmp_path / "elsewhere")
    code, _, error = run(*verify)
    assert (code, "was not compared" in error) == (0, True)
    lay_image(folder, b"another layer")
    for command in (verify, ("sign", "--key", "key.pem", path.name)):
        code, _, error = run(*command)
        assert (code, "about other content" in error) == (5, True)
    # The configuration is the one that was signed, but the layers are not those that it names.
    shutil.rmtree(folder)
    assert lay_image(folder, b"another layer", named=(b"a layer",)) == config
    code, _, error = run(*verify)
    assert (code, "not the ones that its configuration names" in error) == (1, True)


def test_an_environment_next_to_its_provenance_is_read_again(run: Run, tmp_path: Path) -> None:
    env = tmp_path / "env"
    (env / "lib").mkdir(parents=True)
    (env / "lib/a.py").write_text("a = 1\n")
    integrity.close(env, {"made_by": "envbuilder"})
    digest = integrity.marker(env)["digest"].removeprefix("sha256:")
    path = statement(tmp_path / "env.provenance.json", {"envbuilderTree": digest})
    run("sign", "--key", "key.pem", path.name)
    assert run("verify-signature", "--key", "key.pub", path.name)[0] == 0
    (env / "lib/a.py").write_text("a = 2\n")
    code, _, error = run("verify-signature", "--key", "key.pub", path.name)
    assert (code, "about other content" in error) == (5, True)
    # Nor does it help to declare the file, and the list of such files, as host-dependent.
    (env / integrity.PLACED).write_text(f"lib/a.py\n{integrity.PLACED}\n")
    assert run("verify-signature", "--key", "key.pub", path.name)[0] == 5


def test_a_signature_replaces_no_other_file(run: Run, tmp_path: Path) -> None:
    name = lay("lock", tmp_path)
    path = tmp_path / f"{name}.intoto.jsonl"
    path.write_text("mine")
    code, _, error = run("sign", "--key", "key.pem", name)
    assert (code, "is no signature file" in error) == (2, True)
    assert path.read_text() == "mine"


def test_other_files_are_not_signed(run: Run, tmp_path: Path) -> None:
    for content in (b"", b"{}", b"[1]", b"\xff", b"text", b"{" * 100_000):
        (tmp_path / "a.json").write_bytes(content)
        code, _, error = run("sign", "--key", "key.pem", "a.json")
        assert (code, "neither a lock nor" in error) == (2, True)
    path = lay_bundle(tmp_path / "a.tar")
    path.write_bytes(path.read_bytes().replace(b"itself", b"itsalf"))
    code, _, error = run("sign", "--key", "key.pem", "a.tar")
    assert (code, "damaged" in error) == (1, True)


@pytest.mark.parametrize("how", ["variable", "terminal"])
def test_a_passphrase_is_never_an_argument(
    how: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signing.lay_key(tmp_path / "closed.pem", "p256", b"open sesame")
    name = lay("lock", tmp_path)
    command = ["sign", "--key", "closed.pem", name]
    code, _, error = run(*command)
    assert (code, f"Set {module.PASSPHRASE}" in error) == (2, True)
    for passphrase, expected in (("wrong", 2), ("open sesame", 0)):
        if how == "variable":
            monkeypatch.setenv(module.PASSPHRASE, passphrase)
            code, out, error = run(*command)
        else:
            monkeypatch.setattr("sys.stdin.isatty", lambda: True)
            monkeypatch.setattr(module.click, "prompt", lambda text, p=passphrase, **o: p)
            code, out, error = run(*command)
        assert code == expected
        assert "sesame" not in out + error


def test_options_that_do_not_go_together(run: Run, tmp_path: Path) -> None:
    name = lay("lock", tmp_path)
    for arguments in (
        ("sign", "--key", "key.pem"),
        ("verify-signature", "--key", "key.pub"),
        ("verify-signature", name),
        ("verify-signature", "--key", "key.pem", name),
        ("verify-signature", "--key", "none.pub", name),
    ):
        code, out, error = run(*arguments)
        assert (code, out) == (2, ""), arguments
        assert "Traceback" not in error


def test_the_configuration_s_keys(run: Run, tmp_path: Path) -> None:
    name = lay("lock", tmp_path)
    run("sign", "--key", "key.pem", name)
    (tmp_path / "envbuilder.yaml").write_text("signatures:\n  locks: [key.pub]\n")
    assert run("verify-signature", name)[0] == 0
    (tmp_path / "envbuilder.yaml").write_text("signatures:\n  locks: [other.pub]\n")
    assert run("verify-signature", name)[0] == 5
    assert run("verify-signature", name, "--key", "key.pub")[0] == 0


@pytest.mark.parametrize("kind", ["sbom", "provenance"])
def test_attestations_have_no_key_in_the_configuration(kind: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "envbuilder.yaml").write_text("signatures: {locks: [key.pub], bundles: [key.pub]}")
    code, _, error = run("verify-signature", lay(kind, tmp_path))
    assert (code, "Add --key PUB" in error) == (2, True)


KEPT = Path(__file__).parents[2] / "data/signed"
"""A lock and a bundle as 0.1.0 wrote them, each signed with an ed25519 and a P-256 key."""
KEY_IDS = {
    "ed25519": "0439953b0e47ad0186b1dbda4ed26fa1d662a8e9c4ff3e0b889597843fafe92e",
    "p256": "367e2370703d52e99e4093b9d12c95e219cf8dbfced2cf4aae89780c2168da13",
}


@pytest.mark.parametrize("name", ["tiny.json", "tiny.tar"])
@pytest.mark.parametrize("kind", [*KEY_IDS])
def test_signatures_of_earlier_versions_are_valid(kind: str, name: str, run: Run) -> None:
    code, out, _ = run("verify-signature", "--key", str(KEPT / f"{kind}.pub"), str(KEPT / name))
    assert (code, f"signed by {KEY_IDS[kind]}" in out) == (0, True)


def test_a_signature_is_the_one_that_earlier_versions_made(run: Run, tmp_path: Path) -> None:
    """ed25519 is deterministic: key id, statement and envelope must be the same."""
    for name in ("tiny.json", "tiny.tar"):
        shutil.copyfile(KEPT / name, tmp_path / name)
        assert run("sign", "--key", str(KEPT / "ed25519.pem"), name)[0] == 0
        made, kept = (read_json(folder / f"{name}.intoto.jsonl") for folder in (tmp_path, KEPT))
        assert made == kept | {
            "signatures": [s for s in kept["signatures"] if s["keyid"] == KEY_IDS["ed25519"]]
        }
