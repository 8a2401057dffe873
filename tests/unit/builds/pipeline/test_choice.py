"""Which profile and which backend a request gets, and how that is explained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from envbuilder.builds import pipeline, records
from envbuilder.builds.backends import docker
from envbuilder.builds.pipeline import prepare
from envbuilder.builds.plan import Artifact
from envbuilder.builds.request import Request
from envbuilder.containers.engine import connection
from envbuilder.core.errors import HostError, InvalidError, ToolError
from envbuilder.core.settings import Configuration, Definition, Settings
from envbuilder.host import model as host
from envbuilder.profiles import profile as profiles
from tests.support.engines import FakeEngine
from tests.support.pipeline import FITS, PLAIN, RISCV, SHIPPED, Said, add, fails

# ---- which profile


def test_the_host_decides_and_the_reason_is_noted(found: Settings, said: Said) -> None:
    prepared = prepare(Request(), found, said, running=True)
    profile = prepared.profile
    assert (profile.name, prepared.host) == ("cpu", PLAIN)
    assert "profile cpu: no GPU was found" in said


def test_what_was_asked_for_is_not_explained(found: Settings, said: Said) -> None:
    prepare(Request(profile="cpu", backend="venv"), found, said, running=True)
    assert "profile cpu" not in said
    assert "backend venv:" not in said


def test_where_nothing_fits_that_is_said(
    found: Settings, machine: Callable[[host.Host], None]
) -> None:
    machine(RISCV)
    assert "no profile fits this machine" in fails(found, HostError)
    assert "envbuilder detect" in fails(found, HostError)


def test_a_project_without_a_cpu_profile_is_told_how_to_use_the_cpu(
    found: Settings, tmp_path: Path
) -> None:
    (tmp_path / "envbuilder.yaml").write_text("profiles: [cuda]\n")
    project = replace(found, project=tmp_path, definition=Definition(profiles=("cuda",)))
    message = fails(project, HostError)
    assert "no profile fits this machine: cuda: no NVIDIA GPU was found" in message
    assert "add cpu to profiles: in envbuilder.yaml" in message


def configured(found: Settings, **options: Any) -> Settings:
    return replace(found, configuration=Configuration(**options))


def test_the_configuration_names_the_profile(found: Settings, said: Said) -> None:
    add(found, FITS)
    mine = configured(found, profile="mine")
    assert prepare(Request(), mine, said, running=True).profile.name == "mine"
    assert "profile mine: set in the configuration" in said
    assert prepare(Request(profile="cpu"), mine, said, running=True).profile.name == "cpu"


def test_a_configured_profile_must_exist_and_fit(found: Settings) -> None:
    assert "unknown profile" in fails(configured(found, profile="nope"), InvalidError)
    assert "NVIDIA" in fails(configured(found, profile="cuda"), HostError)


# ---- which backend

CPU = profiles.load("cpu", SHIPPED)
BASE = CPU.base["3.11"]
PINNED = f"{BASE.ref}@{BASE.digest}"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """One that answers, and has no image."""
    return FakeEngine().serve(monkeypatch)


def chosen(found: Settings, profile: profiles.Profile = CPU, **asked: Any) -> tuple[str, str]:
    return pipeline.choose_backend(profile, Request(**asked), found)


def test_without_an_engine_it_is_venv(found: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        connection,
        "connect",
        Mock(side_effect=AssertionError("nothing suggests an engine: none is looked for")),
    )
    assert chosen(found) == ("venv", "no container engine was found")
    # A base image that is set for good in the environment is no reason to fail where none is.
    assert chosen(found, base_image="site/python:3.11")[0] == "venv"


def test_an_engine_that_does_not_answer_is_told(
    found: Settings, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        connection,
        "connect",
        Mock(side_effect=ToolError("no container engine answers: permission denied")),
    )
    assert chosen(found) == ("venv", "no container engine answers: permission denied")


def test_an_engine_without_the_base_image_is_not_used(found: Settings, engine: FakeEngine) -> None:
    backend, reason = chosen(found)
    assert backend == "venv"
    assert reason == f"the base image {BASE.ref} is not in the engine"


def test_an_engine_with_the_base_image_is_used(found: Settings, engine: FakeEngine) -> None:
    engine.add(PINNED)
    assert chosen(found) == ("docker", "an engine answers and has the base image")
    # The image of one Python does not do for another.
    assert chosen(found, python="3.12")[0] == "venv"


def test_a_project_with_a_venv_keeps_it(
    found: Settings, engine: FakeEngine, tmp_path: Path
) -> None:
    engine.add(PINNED)
    project = replace(found, project=tmp_path / "project")
    other = replace(found, project=tmp_path / "other")
    prefix = found.envs_dir / f"cpu-py3.11-{'a' * 12}"
    artifact = Artifact(kind="venv", ref=str(prefix))
    plan = Mock(artifact=artifact, fingerprint="a" * 64)
    records.record_user(plan, project)
    assert chosen(project)[0] == "docker", "it is not there yet, or not any more"
    prefix.mkdir(parents=True)
    assert chosen(project) == ("venv", "as in earlier builds (for an image, use --backend docker)")
    assert chosen(project, base_image="site/python:3.11")[0] == "docker"
    assert chosen(project, profile=profiles.load("cpu-ipex", SHIPPED))[0] == "docker"
    assert chosen(other)[0] == chosen(found)[0] == "docker"


def test_a_given_or_configured_base_image_means_docker(found: Settings, engine: FakeEngine) -> None:
    assert chosen(found, base_image="site/python:3.11")[0] == "docker"
    mirrored = configured(found, base_images={BASE.ref: "mirror/python:3.11"})
    assert chosen(mirrored)[0] == "docker"
    other = configured(found, base_images={"python:3.12-slim-bookworm": "mirror/python:3.12"})
    assert chosen(other)[0] == "venv"


def test_a_python_without_a_base_image_is_told(found: Settings, engine: FakeEngine) -> None:
    assert chosen(found, python="3.13")[1] == "the profile has no base image for Python 3.13"


@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        (("venv",), "venv"),
        (("conda", "venv"), "venv"),
        (("venv", "conda"), "venv"),
        (("docker",), "docker"),
        (("docker", "conda"), "docker"),
        (("conda",), "conda"),
    ],
)
def test_conda_is_chosen_only_where_there_is_nothing_else(
    found: Settings, backends: tuple[Any, ...], expected: str
) -> None:
    profile = replace(CPU, backends=backends)
    assert chosen(found, profile) == (expected, "the only backend of 'cpu'")


def test_the_choice_of_a_backend_is_noted(
    found: Settings, said: Said, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(Request(profile="cpu"), found, said, running=True).product
    assert first.plan.backend == "venv"
    assert f"backend venv: the base image {BASE.ref} is not in the engine" in said
    engine.add(PINNED)
    monkeypatch.setattr(docker, "prepare", lambda *args: first)
    assert prepare(Request(profile="cpu"), found, said, running=True).product is first
    assert "backend docker: an engine answers" in said
