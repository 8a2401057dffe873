"""A project whose environment.yml lists conda packages: locked, checked, built and run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import exited, succeeded
from tests.integration.conftest import Cli
from tests.support import conda_channel as conda, conda_packages as packages
from tests.support.conda_project import CHANNEL, PLATFORMS, VIRTUAL, lay_listed as lay
from tests.support.conda_server import serve

Run = Callable[..., subprocess.CompletedProcess[str]]

LOCK = "envbuilder.lock/default.little.conda.json"


@pytest.fixture
def run(cli: Cli, conda_matrix: Path, little_lock: str, tmp_path: Path) -> Run:
    """A command in the project; the channel is a folder unless another place is named."""

    def command(*arguments: str, channel: str = conda_matrix.as_uri()) -> Any:
        variables = {"ENVBUILDER_DATA_DIR": str(tmp_path / "data"), CHANNEL: channel}
        return cli(*arguments, environment=variables)

    return command


def locked(folder: Path) -> dict[str, dict[str, str]]:
    """The versions in the project's conda lock, by platform."""
    lock = json.loads((folder / LOCK).read_text())
    return {
        t["platform"]: {p["name"]: p["version"] for p in t["packages"]} for t in lock["targets"]
    }


def test_lock_writes_it_and_check_notices_a_change(run: Run, tmp_path: Path) -> None:
    lay(tmp_path, "tiny-lib=1.0", "pytorch-cuda=12.4", of_profile=["tiny-lib"])
    done = succeeded(run("lock"))
    assert "default.little: locked, 6 conda packages\n" in done.stdout
    versions = {"python": "3.11.2", "tiny-lib": "1.0"}
    assert locked(tmp_path) == dict.fromkeys(PLATFORMS, versions)
    assert run("check").returncode == 0
    # What is fresh needs no channel.
    text = (tmp_path / LOCK).read_text()
    again = succeeded(run("lock", channel="http://127.0.0.1:1/gone"))
    assert "default.little: locked, unchanged, 6 conda packages" in again.stdout
    assert (tmp_path / LOCK).read_text() == text
    lay(tmp_path, "tiny-lib=1.0", "owner-a", of_profile=["tiny-lib"])
    checked = exited(2, run("check"))
    assert "its list of conda packages changed after they were locked" in checked.stdout
    exited(2, run("build"))
    (tmp_path / LOCK).unlink()
    assert "its conda packages are not locked" in run("check").stdout


def test_a_package_that_one_platform_lacks(run: Run, tmp_path: Path) -> None:
    lay(tmp_path, "tiny-lib", "placed")
    done = succeeded(run("lock"))
    assert [*locked(tmp_path)] == ["linux/amd64"]
    for platform in ("linux/arm64", "macos/arm64"):
        assert (
            f"not for {platform} 3.11: no combination of packages satisfies the requests:\n"
            in done.stdout
        )
    assert "No candidates were found for placed" in done.stdout
    assert run("check").returncode == 0


@pytest.mark.parametrize(
    ("listed", "of_profile", "words"),
    [
        (["no-such"], [], ["No candidates were found for no-such", "requests no-such"]),
        (
            ["tiny-lib=2"],
            ["gpu-lib"],
            ["found for tiny-lib 2.*", "on profile 'little' requests gpu-lib, tiny-lib 2.*"],
        ),
        (["gpu-only"], [], ["gpu-only 1.0 would require __cuda >=12", "promises __archspec"]),
        (
            ["needs-pytorch"],
            [],
            ["needs-pytorch 1.0 requires pytorch 1.0 of conda-forge, but PyTorch comes from",
             "List needs-pytorch under pip:"],
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_solved_is_2_and_says_why(
    run: Run, tmp_path: Path, listed: list[str], of_profile: list[str], words: list[str]
) -> None:
    lay(tmp_path, *listed, of_profile=of_profile)
    done = exited(2, run("lock"))
    assert "default.little: conda packages cannot be locked: " in done.stdout
    for each in words:
        assert each in done.stdout
    assert len(done.stdout.splitlines()) <= 10
    assert not (tmp_path / LOCK).exists()
    # The wheels are locked all the same.
    assert (tmp_path / "envbuilder.lock/default.little.json").exists()


@pytest.mark.slow
def test_a_conflict_with_the_profile_names_both(
    run: Run, conda_matrix: Path, tmp_path: Path
) -> None:
    channel = conda.copy(conda_matrix, tmp_path / "channel")
    conda.write(packages.library("tiny-lib", "x = 2\n", version="2.0"), channel)
    conda.index(channel)
    lay(tmp_path, "tiny-lib=1", of_profile=["tiny-lib >=2"])
    done = exited(2, run("lock", channel=channel.as_uri()))
    assert "tiny-lib 1.*" in done.stdout
    assert "profile 'little' requests tiny-lib >=2, tiny-lib 1.*" in done.stdout
    # An upgrade moves it, of one package or of all.
    lay(tmp_path, "tiny-lib")
    assert run("lock").returncode == 0
    assert run("lock", channel=channel.as_uri()).returncode == 0
    assert locked(tmp_path)["linux/amd64"]["tiny-lib"] == "1.0"
    done = succeeded(run("lock", "--upgrade-package", "tiny-lib", channel=channel.as_uri()))
    assert "tiny-lib 1.0 → 2.0" in done.stdout


def test_a_channel_of_the_projects_own_needs_a_url(
    cli: Cli, run: Run, conda_matrix: Path, tmp_path: Path
) -> None:
    lay(tmp_path, "tiny-lib", channels="lab, conda-forge")
    done = exited(2, run("lock"))
    assert "the source 'lab' has no URL" in done.stdout
    assert "indexes: lab: https://…" in done.stdout
    with serve(conda_matrix) as served:
        variables = {"ENVBUILDER_INDEX_LAB": served.url, CHANNEL: conda_matrix.as_uri()}
        done = cli("lock", environment=variables)
    assert done.returncode == 0, done.stderr
    assert '"channel": "lab"' in (tmp_path / LOCK).read_text()


def test_a_channel_is_read_once_for_all_profiles(
    run: Run, conda_matrix: Path, tmp_path: Path
) -> None:
    lay(tmp_path, "tiny-lib")
    (tmp_path / "profiles/other.yaml").write_text("extends: little\ndescription: The same\n")
    text = "profiles: [little, other]\nrequirements_from: [environment.yml]\n"
    (tmp_path / "envbuilder.yaml").write_text(text)
    with serve(conda_matrix) as served:
        done = succeeded(run("lock", "--backend", "conda", channel=served.url))
        assert len(served.requests) == len({*served.requests})
    assert done.stdout.count("locked, 6 conda packages") == 2


@pytest.mark.slow
def test_built_and_run_without_a_word_about_the_backend(
    run: Run, conda_channel: Path, tmp_path: Path
) -> None:
    lay(tmp_path, "python=3.11", "tiny-lib", "placed")
    with (tmp_path / "environment.yml").open("a") as stream:
        stream.write("  - pip: [einops]\n")
    succeeded(run("lock", channel=conda_channel.as_uri()))
    (tmp_path / "train.py").write_text(
        "import einops, sys, tiny_lib\nprint(sys.prefix, sys.base_prefix, tiny_lib.__file__)\n"
    )
    venv, prefix, library = succeeded(
        run("run", "--", "python", "train.py", channel=conda_channel.as_uri())
    ).stdout.split()
    assert venv == f"{prefix}/venv"
    assert library == f"{prefix}/lib/python3.11/site-packages/tiny_lib/__init__.py"
    # Editors find the interpreter that has the wheels.
    assert (tmp_path / ".envbuilder/default").readlink() == tmp_path / venv
    again = run("run", "--", "placed", channel="http://127.0.0.1:1/gone")
    assert again.stdout == f"{prefix}\n"


@pytest.mark.slow
def test_pytorch_stays_that_of_the_profile(run: Run, conda_channel: Path, tmp_path: Path) -> None:
    """The guide's test builds and runs that."""
    lay(tmp_path, "python=3.11", "pytorch>=2", "pytorch-cuda=12.4", "tiny-lib")
    profile = {
        "extends": "cpu",
        "description": "On the C library of this machine's Python",
        "platforms": ["linux/amd64"],
        "conda": {"virtual_packages": {"linux/amd64": VIRTUAL}},
    }
    (tmp_path / "profiles/little.yaml").write_text(json.dumps(profile))
    succeeded(run("lock", channel=conda_channel.as_uri()))
    assert {*locked(tmp_path)["linux/amd64"]} == {"python", "tiny-lib"}
