"""The conda backend for real: packages that are tampered with or clash, lost channels, kills."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.conftest import exited, succeeded
from tests.support import conda_channel as conda, conda_packages as packages
from tests.support.conda_project import Project, contents, prefix_of, tree_of
from tests.support.conda_server import serve

KILLS = 3
"""Moments at which a build is killed; 20 in a soak."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("over", "package"),
    [("http", packages.TINY_LIB), ("file", packages.PLACED)],
    ids=["http", "file"],
)
def test_a_tampered_archive_is_refused(
    project: Project, conda_channel: Path, tmp_path: Path, over: str, package: conda.Package
) -> None:
    hurt = conda.copy(conda_channel, tmp_path / "hurt")
    with serve(hurt) as served:
        url = served.url if over == "http" else hurt.as_uri()
        project.lock(url)
        conda.tamper(hurt, package)
        fresh = {"ENVBUILDER_CACHE_DIR": str(tmp_path / "cache")}
        done = exited(1, project.build(url, **fresh))
        assert f"{package.file}: " in done.stderr
        assert "another file under this name" in done.stderr
        assert project.left() == []
        shutil.rmtree(hurt)
        conda.copy(conda_channel, hurt)
        assert project.built(url, **fresh)["status"] == "built"


@pytest.mark.slow
def test_the_same_content_twice_is_no_quarrel(
    project: Project, conda_channel: Path, tmp_path: Path
) -> None:
    shared = {"share/same.txt": conda.Entry(b"the same\n" * 30)}
    own = conda.copy(conda_channel, tmp_path / "own")
    for name in ("one", "other"):
        conda.write(conda.Package(name=name, files=shared), own)
    conda.index(own)
    project.lay("one", "other")
    project.lock(own.as_uri())
    first = project.built(own.as_uri())
    assert (prefix_of(first) / "share/same.txt").read_bytes() == b"the same\n" * 30
    assert tree_of(project.built(own.as_uri(), "--rebuild")) == tree_of(first)


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_failure_of_the_library_is_told_in_one_line_without_folders(
    project: Project, conda_channel: Path, tmp_path: Path
) -> None:
    """The package's list has a file that its archive lacks."""
    own = conda.copy(conda_channel, tmp_path / "own")
    package = replace(packages.OWNER_A, name="lacking")
    whole = members(conda.write(package, own))
    place = conda.write(replace(package, files={}), own)
    lacking = members(place)
    place.unlink()
    with zipfile.ZipFile(place, "w") as archive:
        for name in whole:
            archive.writestr(name, (whole if name.startswith("info") else lacking)[name])
    conda.index(own)
    project.lay("lacking")
    project.lock(own.as_uri())
    done = exited(1, project.build(own.as_uri()))
    (said,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "conda packages cannot be installed: " in said
    assert "share/owned.txt" in said
    assert str(tmp_path) not in said
    assert "profile's conda.packages" in done.stderr
    assert project.left() == []


def test_scripts_are_not_run_and_that_is_said(project: Project, source: str) -> None:
    done = project.build(source)
    assert "post-link scripts are not run" in done.stderr
    assert "scripted" in done.stderr
    prefix = prefix_of(json.loads(done.stdout))
    assert (prefix / "share/scripted.txt").is_file()
    assert not list(prefix.glob("*-ran"))


@pytest.mark.slow
def test_a_channel_that_vanishes_is_told_and_the_next_build_works(
    project: Project, conda_channel: Path, tmp_path: Path
) -> None:
    fresh = {"ENVBUILDER_CACHE_DIR": str(tmp_path / "cache")}
    with serve(conda_channel) as served:
        project.lock(served.url)
        served.vanish_after = 1 << 20
        done = project.build(served.url, **fresh)
    assert done.returncode == 1
    assert "cannot be fetched" in done.stderr
    assert "Traceback" not in done.stderr
    assert project.left() == []
    with serve(conda_channel) as served:
        assert project.built(served.url, **fresh)["status"] == "built"


@pytest.mark.slow
@pytest.mark.parametrize("secret", ["token", pytest.param("password", marks=pytest.mark.soak)])
def test_what_opens_a_channel_is_nowhere_told(
    project: Project, conda_channel: Path, tmp_path: Path, secret: str
) -> None:
    fresh = {"ENVBUILDER_CACHE_DIR": str(tmp_path / "cache")}
    closed = {"token": "very-secret-token"} if secret == "token" else {"password": True}
    with serve(conda_channel, **closed) as served:  # type: ignore[arg-type]
        project.lock(served.secret_url)
        done = succeeded(project.build(served.secret_url, **fresh))
        wrong = served.secret_url.replace("very-secret", "very-secret-and-wrong")
        other = {"ENVBUILDER_CACHE_DIR": str(tmp_path / "other")}
        refused = project.build(wrong, "--rebuild", **other)
    assert refused.returncode == 1
    assert "very-secret" not in (done.stdout + done.stderr + refused.stderr)
    shutil.rmtree(tmp_path / "cache/store")
    for path, content in contents(tmp_path).items():
        assert b"very-secret" not in content, path


@pytest.mark.slow
def test_an_edited_file_is_named_and_reaches_no_other_environment(
    project: Project, source: str, tmp_path: Path
) -> None:
    first = prefix_of(project.built(source))
    (first / "share/placed.txt").write_text("edited")
    (first / "lib/python3.11/site-packages/tiny_lib/__init__.py").write_text("edited")
    second = prefix_of(project.built(source, ENVBUILDER_DATA_DIR=str(tmp_path / "second")))
    assert (second / "share/placed.txt").read_bytes() == packages.PLACED.files[
        "share/placed.txt"
    ].content
    verify = ("verify", "--profile", "little", "--backend", "conda", "--quick")
    done = exited(5, project.run(source, *verify))
    assert "share/placed.txt (changed)" in done.stderr + done.stdout
    assert "tiny_lib/__init__.py (changed)" in done.stderr + done.stdout


@pytest.mark.slow
def test_a_moved_environment_is_built_anew(project: Project, source: str) -> None:
    """Its files name their place."""
    project.built(source)
    (project.folder / "data").rename(project.folder / "moved")
    moved = {"ENVBUILDER_DATA_DIR": str(project.folder / "moved")}
    assert project.built(source, **moved)["status"] == "built"


# --- killed


def killed_at(project: Project, url: str, seconds: float) -> int:
    """Start a build, kill it after a while; its exit code."""
    child = project.started(url)
    time.sleep(seconds)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=60)
    return child.returncode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_build_that_is_stopped_takes_its_folder_away(
    project: Project,
    conda_channel: Path,
    session_environment: dict[str, str],
    number: signal.Signals,
) -> None:
    url = conda_channel.as_uri()
    project.environment = {**session_environment, **project.environment}
    project.lock(url)
    child = project.started(url)
    end = time.monotonic() + 60
    while not list(project.envs.glob(".*.partial/env")):
        assert time.monotonic() < end, "it did not begin to install"
        time.sleep(0.005)
    child.send_signal(number)
    _, said = child.communicate(timeout=60)
    assert child.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number], said
    assert "Traceback" not in said
    assert project.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_a_killed_build_leaves_nothing_half_made(
    project: Project,
    conda_channel: Path,
    session_environment: dict[str, str],
    seed: int,
) -> None:
    url = conda_channel.as_uri()
    project.environment = {**session_environment, **project.environment}
    project.lock(url)
    started = time.monotonic()
    first = project.built(url)
    whole = time.monotonic() - started
    sound = contents(prefix_of(first))
    tree = tree_of(first)
    chance = random.Random(seed)
    killed = 0
    for _ in range(20 if seed else KILLS):
        if chance.random() < 0.5:
            shutil.rmtree(prefix_of(first))
        killed += killed_at(project, url, chance.uniform(0.1, 1) * whole) == -signal.SIGKILL
        if prefix_of(first).exists():
            assert contents(prefix_of(first)) == sound
        again = project.built(url)
        assert (again["artifact"], tree_of(again)) == (first["artifact"], tree)
    assert killed
    assert project.built(url, "--rebuild")["artifact"] == first["artifact"]
    assert not list(project.envs.glob(".*.partial"))
