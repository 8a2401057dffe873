"""`clean` with a real engine, in folders that others use as well."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuilder.containers.engine.interface import LABEL, Engine
from tests.conftest import succeeded
from tests.integration.conftest import TINY, Cli, locked
from tests.support.projects import lay_profile


@pytest.fixture
def name(docker_client: Any) -> Iterator[str]:
    """A profile that nobody else on this engine has; its images are gone in the end."""
    made = f"clean-{secrets.token_hex(4)}"
    yield made
    label = f"{LABEL}profile={made}"
    for image in docker_client.api.images(filters={"label": [label]}):
        for ref in image.get("RepoTags") or [image["Id"]]:
            docker_client.images.remove(ref, force=True, noprune=True)


@pytest.fixture
def places(tmp_path: Path, name: str) -> dict[str, str]:
    """A cache and data in a folder where somebody keeps files under the same names."""
    shared = tmp_path / "shared"
    for path in ("build/theirs/main.o", "logs/app.log", "datasets/imagenet/train", "notes.txt"):
        (shared / path).parent.mkdir(parents=True, exist_ok=True)
        (shared / path).write_text("theirs")
    return {
        "ENVBUILDER_CACHE_DIR": str(shared),
        "ENVBUILDER_DATA_DIR": str(tmp_path / "data"),
    }


def files(folder: Path) -> set[Path]:
    return {p for p in folder.rglob("*") if not p.is_dir() or p.is_symlink()}


@pytest.mark.slow
def test_it_removes_what_it_says_and_nothing_of_others(
    cli: Cli,
    session_environment: dict[str, str],
    places: dict[str, str],
    name: str,
    base_image: str,
    docker_client: Any,
    real_engine: Engine,
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared"
    away = tmp_path / "away"
    theirs = files(shared)
    lay_profile(tmp_path, name, TINY)
    locked(tmp_path, name, {**session_environment, **places})
    asked = ("--profile", name, "--backend", "docker", "--base-image", base_image, "--json")
    ours = f"envbuilder/{name}:latest"
    given = f"{name}-given:1"
    built = succeeded(cli("build", *asked, "--tag", given, environment=places))
    ref = json.loads(built.stdout)["artifact"]["ref"]
    succeeded(cli("build", "--profile", name, "--backend", "venv", "--json", environment=places))

    # The user gives it another name, builds on it, and moves a part of the cache to another disk.
    kept = f"{name}-kept:1"
    derived = f"{name}-derived:1"
    docker_client.images.get(ref).tag(f"{name}-kept", "1")
    (tmp_path / "context").mkdir()
    text = f'FROM {ref}\nUSER root\nRUN touch /mine\nCMD ["python"]\n'
    (tmp_path / "context/Dockerfile").write_text(text)
    command = ["docker", "build", "--quiet", "--tag", derived, str(tmp_path / "context")]
    subprocess.run(command, check=True, capture_output=True)
    (shared / "layers").rename(away)
    (shared / "layers").symlink_to(away)
    moved = files(away)

    # Another installation builds the same profile, as another image.
    other = {**places, "ENVBUILDER_DATA_DIR": str(tmp_path / "other")}
    built = succeeded(cli("build", *asked, "--builder", "buildkit", environment=other))
    second = json.loads(built.stdout)["artifact"]["ref"]
    assert second != ref

    before = files(tmp_path)
    planned = cli("clean", "--store", "--dry-run", environment=places).stdout.splitlines()
    assert files(tmp_path) == before
    # Other tests' images stay, too: more names than the text shows for one reason.
    examined = json.loads(cli("clean", "--store", "--dry-run", "--json", environment=places).stdout)
    explained = {kept["name"] for kept in examined["kept"]}
    done = succeeded(cli("clean", "--yes", "--store", environment=places))
    removed = [x.removeprefix("removed ") for x in done.stdout.splitlines()]
    assert [f"would remove {x}" for x in removed] == planned
    assert {ref, given} <= set(removed)
    for gone in (ref, given):
        assert real_engine.image(gone) is None
    for stays in (kept, derived, second, ours):  # `latest` is the other installation's by now
        assert real_engine.image(stays) is not None
        assert stays not in removed
        assert stays in explained
    assert theirs <= files(shared)
    assert files(away) == moved
    gone_files = before - files(tmp_path)
    assert {p for p in gone_files if not {*map(str, (p, *p.parents))} & set(removed)} == set()
    assert files(tmp_path / "data/envs") <= {p for p in before if p.suffix == ".lock"}
    assert max(len(line) for line in done.stderr.splitlines() if "/" not in line) <= 80

    assert cli("clean", "--dry-run", environment=places).stdout == "nothing to remove\n"


@pytest.mark.slow
def test_a_container_that_uses_an_image_is_1_and_the_rest_is_done(
    cli: Cli,
    session_environment: dict[str, str],
    places: dict[str, str],
    name: str,
    base_image: str,
    docker_client: Any,
    tmp_path: Path,
) -> None:
    lay_profile(tmp_path, name, TINY)
    locked(tmp_path, name, {**session_environment, **places})
    asked = ("--profile", name, "--backend", "docker", "--base-image", base_image, "--json")
    built = json.loads(cli("build", *asked, environment=places).stdout)
    ref = built["artifact"]["ref"]
    container = docker_client.containers.create(ref, ["true"])
    try:
        done = cli("clean", "--yes", "--json", environment=places)
        assert done.returncode == 1, done.stdout
        assert "cannot be removed" in done.stderr
        assert "Traceback" not in done.stderr
        assert json.loads(done.stdout)["failed"]
    finally:
        container.remove()
    done = succeeded(cli("clean", "--yes", environment=places))
    assert "removed " in done.stdout


@pytest.mark.slow
def test_an_image_in_use_and_one_that_another_data_folder_built_too_stay(
    cli: Cli,
    session_environment: dict[str, str],
    places: dict[str, str],
    name: str,
    base_image: str,
    real_engine: Engine,
    tmp_path: Path,
    docker_client: Any,
) -> None:
    lay_profile(tmp_path, name, TINY)
    locked(tmp_path, name, {**session_environment, **places})
    asked = ("--profile", name, "--backend", "docker", "--base-image", base_image, "--json")
    other = {**places, "ENVBUILDER_DATA_DIR": str(tmp_path / "other")}
    refs = set()
    for environment in (places, other):
        built = succeeded(cli("build", *asked, "--builder", "layers", environment=environment))
        refs.add(json.loads(built.stdout)["artifact"]["ref"])
    (ref,) = refs
    image = real_engine.image(ref)
    assert image

    container = docker_client.containers.run(image.id, ["sleep", "60"], detach=True)
    try:
        cleaned = json.loads(cli("clean", "--yes", "--json", environment=places).stdout)
        reasons = {each["name"]: each["reason"] for each in cleaned["kept"]}
        assert reasons[ref] == "in use by a running command"
    finally:
        container.remove(force=True)
    for environment, stays in ((places, True), (other, False)):
        done = succeeded(cli("clean", "--yes", environment=environment))
        assert (f"removed {ref}\n" in done.stdout) is not stays
        assert bool(real_engine.image(ref)) is stays
