"""Built images in a registry: pushed, known again, and their documents attached."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.builds import attestations, outputs, plan, records, sbom
from envbuilder.builds.backends import docker
from envbuilder.builds.image import base as image_base
from envbuilder.builds.outputs import Output
from envbuilder.builds.request import Request
from envbuilder.containers.engine.interface import LABEL
from envbuilder.containers.oci import archive
from envbuilder.containers.oci.layout import Layout
from envbuilder.containers.registry import transfer
from envbuilder.core import resources
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError
from envbuilder.core.settings import Settings
from envbuilder.core.signatures import Subject
from envbuilder.profiles import lock as lockfile
from tests.support import image_layouts as images
from tests.support.images import image
from tests.support.pipeline import a_build
from tests.support.progress import SILENT
from tests.support.registry_fixture import FakeRegistry, digest_of
from tests.support.registry_requests import attached, connect, push

FINGERPRINT = "ab" * 32
BARE = plan.Plan(
    profile="cpu",
    backend="docker",
    builder="layers",
    platform="linux/amd64",
    python="3.11",
    fingerprint=FINGERPRINT,
    artifact=plan.Artifact(kind="registry", ref="x"),
    workdir="/nowhere",
    files=(),
    steps=(),
)
FOLDERS = (resources.profiles_dir(),)


@pytest.fixture(autouse=True)
def patient(server: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "connect", lambda *args: connect(server))


def planned(
    found: Settings, request: Request, platform: str = "linux/amd64"
) -> tuple[lockfile.Target, plan.Plan]:
    """The plan of `cpu` on a base image of this disk."""
    build = a_build(found, "cpu", request=request)
    target = lockfile.select(build.lock, platform, "3.11")
    base = image_base.Base(ref="oci:/base", identity="sha256:" + "1" * 64, folder="/base")
    return target, docker.plan_layers(build, target, base, "linux/amd64", None)


@pytest.fixture
def ref(server: FakeRegistry) -> str:
    """Where an image is pushed to."""
    return f"{server.host}/a:t"


def step(ref: str, layout: Layout, found: Settings) -> plan.Push:
    return plan.Push(
        what="push",
        layout=str(layout.folder),
        ref=ref,
        plain_http=False,
        uploads=str(found.uploads_dir),
        profile="cpu",
        fingerprint=FINGERPRINT,
        builder="layers",
        made_by={"zstd": "1.5"},
        folder=str(found.records_dir / FINGERPRINT),
    )


@pytest.fixture
def pushed(ref: str, tmp_path: Path, found: Settings) -> list[str]:
    """An image that `outputs.push` brought; what it said."""
    layout = Layout.create(tmp_path / "layout")
    images.image(layout, b"a layer")
    notes: list[str] = []
    outputs.push(step(ref, layout, found), PlainProgress(notes.append))
    return notes


def documents(tmp_path: Path) -> dict[str, str]:
    statement = attestations.provenance(BARE, Subject(name="x", digest={"sha256": "0"}), {})
    (tmp_path / "sbom.json").write_bytes(b"{}")
    (tmp_path / "provenance.json").write_bytes(statement)
    return {n: str(tmp_path / f"{n}.json") for n in ("sbom", "provenance")}


def test_what_travelled_is_said_and_what_was_pushed_recorded(
    ref: str, pushed: list[str], found: Settings
) -> None:
    assert any("MB in 2 blobs (0 were already there, 0 came from other" in n for n in pushed)
    (record,) = records.read(found.records_dir / FINGERPRINT)
    assert record.ref == ref
    assert outputs.pushed_record(record.ref, FINGERPRINT, found) == record


def test_a_tag_that_names_something_else_is_not_ours(
    server: FakeRegistry, ref: str, pushed: list[str], found: Settings, tmp_path: Path
) -> None:
    other = Layout.create(tmp_path / "other")
    push(server, other, images.image(other, b"another layer"), found)
    assert outputs.pushed_record(ref, FINGERPRINT, found) is None
    assert outputs.pushed_record(f"{ref}-elsewhere", FINGERPRINT, found) is None
    assert outputs.pushed_record(ref, "cd" * 32, found) is None
    with pytest.raises(BuildError, match="no longer refers to the image that"):
        outputs.attach(ref, FINGERPRINT, documents(tmp_path), found, SILENT)
    assert [n for _, n in server.manifests if n.startswith("sha256-")] == []


def test_documents_are_attached_once_and_about_the_manifest(
    server: FakeRegistry, ref: str, pushed: list[str], found: Settings, tmp_path: Path
) -> None:
    written = documents(tmp_path)
    for _ in range(2):
        outputs.attach(ref, FINGERPRINT, written, found, SILENT)
    image = server.manifests["a", "t"][1]
    listed = attached(connect(server), digest_of(image))
    assert [d.artifact_type for d in listed] == [
        sbom.MEDIA_TYPE,
        attestations.MEDIA_TYPES["provenance"],
    ]
    blobs = [data for data in server.blobs.values() if b"in-toto" in data and b"_type" in data]
    assert len(blobs) == 1
    assert digest_of(image).removeprefix("sha256:").encode() in blobs[0]


def test_a_plan_that_pushes_needs_no_engine(found: Settings) -> None:
    _, made = planned(found, Request(push="ghcr.io/me/cpu:1"))
    last = made.steps[-1]
    assert isinstance(last, plan.Push)
    assert (last.ref, last.plain_http) == ("ghcr.io/me/cpu:1", False)
    assert made.artifact == plan.Artifact(kind="registry", ref="ghcr.io/me/cpu:1")
    assert not [s for s in made.steps if isinstance(s, plan.Load)]


def test_a_plan_for_disk_and_registry_does_both(found: Settings) -> None:
    request = Request(push="ghcr.io/me/cpu:1", output="/x/cpu.tar")
    _, made = planned(found, request)
    assert [type(s) for s in made.steps[-2:]] == [plan.Save, plan.Push]
    assert made.artifact.kind == "archive"
    assert made.fingerprint == planned(found, Request())[1].fingerprint


def test_a_pushed_image_is_known_again(
    server: FakeRegistry, ref: str, pushed: list[str], found: Settings
) -> None:
    target, made = planned(found, Request(push=ref))
    image: Any = Output(target, replace(made, fingerprint=FINGERPRINT), found)
    known = image.existing()
    (record,) = records.read(found.records_dir / FINGERPRINT)
    assert known.digest == known.config_digest == record.digest
    # What `REF@sha256:…` pulls: the digest of what the registry has under the tag.
    content = server.manifests["a", "t"][1]
    assert known.manifest_digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
    del server.manifests["a", "t"]
    server.log.clear()
    assert image.existing() is None
    assert [line.split()[0] for line in server.log] == ["GET", "POST", "DELETE"]
    assert server.uploads == {}
    server.faults = [("POST", "403")]
    with pytest.raises(BuildError, match="a push: HTTP 403"):
        image.existing()
    server.faults = [("DELETE", "405")]  # some registries cannot give up an upload
    assert image.existing() is None
    server.faults = [("manifests", "500")] * 4
    with pytest.raises(BuildError, match="HTTP 500"):
        image.existing()


@pytest.fixture(params=["x.tar", "oci:x"])
def output(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def product(found: Settings, output: str, tag: str | None) -> Output:
    place = output.replace("x", str(found.data_dir / "x"))
    return Output(*planned(found, Request(output=place, tag=tag)), found)


def deliver(product: Output, scratch: Path, **config: Any) -> None:
    """What a build of the plan leaves."""
    (step, save) = product.plan.steps[-2:]
    labels = {f"{LABEL}fingerprint": product.plan.fingerprint}
    made = image(scratch, config={"Labels": labels}, **config)
    (manifest,) = made.index().manifests
    entries = (replace(manifest, annotations=archive.named(n)) for n in step.names)
    made.write_index(replace(made.index(), manifests=tuple(entries)))
    archive.save(made, Path(save.target))


def test_an_image_with_other_names_is_written_again(
    found: Settings, tmp_path: Path, output: str
) -> None:
    tagged = {tag: product(found, output, tag) for tag in ("me/a", "me/b", None)}
    assert [p.existing() for p in tagged.values()] == [None] * 3
    found.data_dir.mkdir()
    deliver(tagged["me/a"], tmp_path / "a")
    assert tagged["me/a"].existing() is not None
    assert tagged["me/b"].existing() is None
    # An archive has the names of one build, and a layout keeps those of earlier ones.
    assert (tagged[None].existing() is None) == output.endswith(".tar")
    deliver(tagged["me/b"], tmp_path / "b")
    assert tagged["me/b"].existing() is not None
    assert (tagged["me/a"].existing() is None) == output.endswith(".tar")


def test_an_image_with_other_layers_is_written_again(
    found: Settings, tmp_path: Path, output: str
) -> None:
    made = product(found, output, None)
    found.data_dir.mkdir()
    deliver(made, tmp_path / "a", rootfs={"type": "layers", "diff_ids": ["sha256:" + "0" * 64]})
    assert made.existing() is None
