"""--tag, --output and --push name what the present lock says, also if it exists already."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.containers.engine.interface import LABEL
from envbuilder.containers.oci import archive, reference
from envbuilder.containers.registry.connection import Connection
from tests.integration.conftest import locked, start
from tests.integration.engine.conftest import PODMAN_BASE
from tests.support import small_profiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.registry_server import Registry

    Build = Callable[..., dict[str, Any]]


@pytest.fixture
def name() -> str:
    return f"named-{secrets.token_hex(4)}"


@pytest.fixture
def build(tmp_path: Path, session_environment: dict[str, str], name: str) -> Build:
    """`build(number, options…)`: build from one of two locks; return what it reports."""
    wheels = small_profiles.lay(tmp_path, name)
    variables = {**session_environment, "PIP_FIND_LINKS": str(wheels)}
    profile, requirement = tmp_path / "profiles" / f"{name}-0.yaml", "small-0==1.0"
    locks = []
    for text in (profile.read_text(), profile.read_text().replace(requirement, "small-1==1.0")):
        profile.write_text(text)
        lock = locked(tmp_path, f"{name}-0", variables)
        locks.append((text, lock.read_text()))

    def run(number: int, *options: str, **environment: str) -> dict[str, Any]:
        for path, text in zip((profile, lock), locks[number], strict=True):
            path.write_text(text)
        words = ("build", "--profile", f"{name}-0", "--python-version", "3.11", "--json")
        done = start((*words, *options), {**variables, **environment}, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        read: dict[str, Any] = json.loads(done.stdout)
        return read

    return run


@pytest.fixture(params=["docker", "podman"])
def engine(
    request: pytest.FixtureRequest, name: str, build: Build
) -> Iterator[tuple[Any, tuple[str, ...], dict[str, str]]]:
    """An engine, the options for its images, and the variables with which it is used."""
    options = ("--backend", "docker", "--builder", "layers", "--base-image")
    if request.param == "docker":
        engine, variables = request.getfixturevalue("real_engine"), dict[str, str]()
        options = (*options, request.getfixturevalue("base_image"))
    else:
        engine = request.getfixturevalue("engine_of_podman")
        options, variables = (*options, PODMAN_BASE), request.getfixturevalue("alone")
    yield engine, options, variables
    for image in engine.labelled():
        if image.labels.get(f"{LABEL}profile") == f"{name}-0":
            for tag in image.tags:
                engine.remove(tag)


def test_names_in_an_engine(
    build: Build, name: str, engine: tuple[Any, tuple[str, ...], dict[str, str]]
) -> None:
    there, options, variables = engine
    first, second = (build(number, *options, **variables) for number in (0, 1))
    assert first["fingerprint"] != second["fingerprint"]
    for number, expected in ((1, second), (0, first)):
        again = build(number, *options, "--tag", f"me/{name}", **variables)
        assert again["status"] == "reused"
        names = (expected["artifact"]["ref"], f"envbuilder/{name}-0:latest", f"me/{name}")
        images = [there.image(n) for n in names]
        assert {i.labels[f"{LABEL}fingerprint"] for i in images} == {expected["fingerprint"]}


def test_names_on_disk_and_in_a_registry(
    build: Build, base_image: str, registry: Registry, tmp_path: Path, name: str
) -> None:
    output, ref = tmp_path / "out.tar", f"{registry.host}/{name}:1"
    for number, tag, status in ((0, "a", "built"), (0, "b", "built"), (0, "b", "reused")):
        options = ("--base-image", base_image, "--output", str(output), "--tag", f"me/{tag}")
        assert build(number, *options)["status"] == status
        (held,) = archive.held(output)
        assert {n for n in held.names if "/me/" in n} == {f"docker.io/me/{tag}"}
    for number in (0, 1, 0):
        artifact = build(number, "--base-image", base_image, "--push", ref)["artifact"]
        found = Connection(reference.parse(ref), plain_http=True).find_manifest("1")
        assert found
        assert found[0].digest == artifact["manifest_digest"]
