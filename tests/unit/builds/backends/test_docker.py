"""An image on a buildx instance: what is planned, what is sent, and what is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from msgspec.structs import replace

from envbuilder.builds import plan
from envbuilder.builds.backends import docker
from envbuilder.builds.image import base as image_base
from envbuilder.builds.plan import Receive
from envbuilder.builds.request import Request
from envbuilder.containers.engine import docker_client
from envbuilder.containers.oci.archive import NAME
from envbuilder.containers.oci.layout import (
    CONFIG,
    INDEX,
    LAYER_ZSTD,
    MANIFEST,
    Index,
    Layout,
    Manifest,
    Platform,
    encode,
)
from envbuilder.core import process, resources
from envbuilder.core.errors import BuildError, InvalidError, ToolError
from envbuilder.core.settings import Configuration, Settings
from tests.support.engines import FakeEngine
from tests.support.pipeline import a_build

FOLDERS = (resources.profiles_dir(),)
BASE = image_base.Base(ref="base:1", identity="sha256:" + "1" * 64, folder="")


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The instances that buildx was asked for; it has each of them."""
    asked: list[str] = []

    def describe(name: str) -> str:
        asked.append(name)
        return "BuildKit version: v0.15.0\n"

    monkeypatch.setattr(docker_client, "describe_instance", describe)
    monkeypatch.setattr(image_base, "find", lambda *args, **options: BASE)
    return asked


def prepared(found: Settings, name: str = "cpu", /, **options: Any) -> plan.Plan:
    builders = {"cpu": "big-box", "cpu-debian": "big-box"}
    settings = replace(found, configuration=Configuration(builders=builders))
    request = Request(profile=name, **options)
    return docker.prepare(a_build(settings, name, request=request)).plan


def step(planned: plan.Plan, kind: type[Any]) -> Any:
    (only,) = [s for s in planned.steps if isinstance(s, kind)]
    return only


def test_the_assigned_instance_builds_and_its_image_is_loaded(
    found: Settings, described: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeEngine().serve(monkeypatch)
    planned = prepared(found)
    assert described == ["big-box"]
    assert (planned.builder, planned.instance) == ("buildkit", "big-box")
    argv = step(planned, plan.Run).argv
    assert argv[:7] == ("docker", "buildx", "build", "--progress", "plain", "--builder", "big-box")
    received = step(planned, plan.Receive)
    loaded = step(planned, plan.Load)
    outputs = [value for key, value in itertools.pairwise(argv) if key == "--output"]
    (output,) = outputs
    assert output == f"{docker._EXPORT},dest={received.exported}"
    assert f"BASE_IMAGE={docker._BASE}" in argv
    assert f"{docker._BASE}=oci-layout://" in argv
    assert (received.fingerprint, received.instance) == (planned.fingerprint, "big-box")
    assert loaded.layout == received.layout
    assert (loaded.builder, loaded.made_by) == ("buildkit", {"buildkit": "v0.15.0"})
    assert msgspec.json.decode(msgspec.json.encode(planned), type=plan.Plan) == planned


def test_what_exists_is_used_without_asking_the_instance(
    found: Settings, described: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from envbuilder.builds.backends.container import DockerEnvironment

    FakeEngine().serve(monkeypatch)
    artifact = plan.Artifact(kind="image", ref="x")
    monkeypatch.setattr(DockerEnvironment, "existing", lambda environment: artifact)
    prepared(found)
    assert described == []
    prepared(found, rebuild=True)
    assert described == ["big-box"]


@pytest.mark.parametrize("place", [{"output": "/x.tar"}, {"push": "ghcr.io/me/cpu:1"}])
def test_an_image_for_elsewhere_needs_no_engine(
    place: dict[str, str],
    found: Settings,
    described: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        docker.connection, "connect", Mock(side_effect=AssertionError("no engine is needed"))
    )
    planned = prepared(found, builder="buildkit", **place)
    assert planned.artifact.ref == next(iter(place.values()))
    assert step(planned, plan.Save if "output" in place else plan.Push)


@pytest.mark.parametrize(("name", "builder"), [("cpu", "layers"), ("zendnn", None)])
def test_another_builder_or_profile_has_nothing_to_do_with_it(
    name: str,
    builder: str | None,
    found: Settings,
    described: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FakeEngine().serve(monkeypatch)
    assert prepared(found, name, builder=builder).instance is msgspec.UNSET
    assert described == []


def test_a_base_that_is_made_here_cannot_be_built_on_elsewhere(
    found: Settings, described: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeEngine().serve(monkeypatch)
    with pytest.raises(InvalidError, match="'big-box' does not have it"):
        prepared(found, "cpu-debian")


@pytest.mark.parametrize(
    ("code", "timed_out", "said"),
    [(1, False, 'no builder "big-box" found'), (0, True, "no answer")],
)
def test_an_instance_that_is_not_there_is_4_with_what_creates_it(
    code: int, timed_out: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(argv: Sequence[str], **options: Any) -> process.Completed:
        is_version = argv[-1] == "version"
        return process.Completed(
            argv=tuple(argv),
            returncode=0 if is_version else code,
            stdout="github.com/docker/buildx v0.13.1 1\n" if is_version else "",
            stderr='ERROR: no builder "big-box" found\n',
            seconds=0,
            timed_out=timed_out and not is_version,
        )

    monkeypatch.setattr(process, "which", lambda program: program)
    monkeypatch.setattr(process, "run", run)
    with pytest.raises(ToolError, match=said) as caught:
        docker_client.describe_instance("big-box")
    assert "docker buildx create --name big-box" in caught.value.hint


FINGERPRINT = "1" * 64


def exported(folder: Path, fingerprint: str = FINGERPRINT, machine: str = "amd64") -> Receive:
    """A step whose export has one image of two layers."""
    layout = Layout.create(folder / "exported")
    labels = {"io.envbuilder.fingerprint": fingerprint}
    config = {"os": "linux", "architecture": machine, "config": {"Labels": labels}}
    manifest = Manifest(
        schema_version=2,
        media_type=MANIFEST,
        config=layout.add(json.dumps(config).encode(), CONFIG),
        layers=tuple(layout.add(data, LAYER_ZSTD) for data in (b"base", b"wheels")),
    )
    platform = Platform(os="linux", architecture=machine)
    entry = layout.add(encode(manifest), MANIFEST, platform=platform)
    layout.add(b"nobody asked for this", LAYER_ZSTD)
    layout.write_index(Index(schema_version=2, media_type=INDEX, manifests=(entry,)))
    return Receive(
        what="check the image",
        exported=str(folder / "exported"),
        layout=str(folder / "layout"),
        platform="linux/amd64",
        fingerprint=FINGERPRINT,
        instance="big-box",
        names=("envbuilder/cpu:1", "envbuilder/cpu:latest"),
    )


def test_the_image_alone_is_taken_under_its_names(tmp_path: Path) -> None:
    layout = docker.receive(exported(tmp_path))
    listed = layout.index().manifests
    assert [d.annotations[NAME] for d in listed] == [
        f"docker.io/envbuilder/cpu:{tag}" for tag in ("1", "latest")
    ]
    manifest = layout.read_manifest(listed[0])
    assert [layout.checked(d).read_bytes() for d in manifest.layers] == [b"base", b"wheels"]
    assert len([*(tmp_path / "layout/blobs/sha256").iterdir()]) == 4


@pytest.mark.parametrize(
    ("fingerprint", "machine", "said"),
    [
        ("2" * 64, "amd64", "another fingerprint"),
        (FINGERPRINT, "arm64", "no images for linux/amd64"),
    ],
)
def test_another_image_than_was_to_be_built_is_refused(
    fingerprint: str, machine: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=said) as caught:
        docker.receive(exported(tmp_path, fingerprint, machine))
    assert "'big-box' sent no usable image" in caught.value.message
    assert not (tmp_path / "layout").exists()


@pytest.mark.parametrize("damage", ["changed", "shorter", "missing"])
def test_damaged_bytes_are_refused(damage: str, tmp_path: Path) -> None:
    step = exported(tmp_path)
    source = Layout.open(tmp_path / "exported")
    blob = source.blob(source.manifest("linux/amd64").layers[1].digest)
    if damage == "missing":
        blob.unlink()
    else:
        blob.write_bytes(b"wheelz" if damage == "changed" else b"x")
    with pytest.raises(BuildError, match=r"damaged|not in the OCI layout"):
        docker.receive(step)


def test_no_layout_at_all_is_refused(tmp_path: Path) -> None:
    step = exported(tmp_path)
    (tmp_path / "exported/index.json").write_text("[]")
    with pytest.raises(BuildError, match="sent no usable image"):
        docker.receive(step)
