"""`lock --backend conda` against a real channel: what is solved, refused and written."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import exited, succeeded
from tests.integration.conftest import Cli
from tests.support import conda_channel as conda, conda_packages as packages
from tests.support.conda_server import PASSWORD, serve

VIRTUAL = {
    "linux/amd64": {"__glibc": "2.28"},
    "linux/arm64": {"__glibc": "2.28"},
    "macos/arm64": {"__osx": "14.0"},
}


def profile(project: Path, *wanted: str, virtual: Any = None, name: str = "conda-test") -> None:
    """A profile for all platforms that `virtual` has."""
    virtual = virtual or {"linux/amd64": VIRTUAL["linux/amd64"]}
    stated = {
        "description": "For tests",
        "accelerator": "cpu",
        "backends": ["venv", "conda"],
        "platforms": list(virtual),
        "python": {"default": "3.11", "supported": ["3.11"]},
        "tools": {"uv": "0.13.8"},
        "requirements": ["torch==2.13.0"],
        "expects": {"device": "cpu", "version": "2.13.0"},
        "conda": {"packages": list(wanted), "virtual_packages": virtual},
    }
    (project / "profiles").mkdir(exist_ok=True)
    (project / "envbuilder.yaml").write_text("")
    (project / f"profiles/{name}.yaml").write_text(json.dumps(stated))


def lock(cli: Cli, url: str, *options: str, name: str = "conda-test") -> Any:
    arguments = ("lock", "--backend", "conda", "--profile", name, *options)
    return cli(*arguments, environment={"ENVBUILDER_INDEX_CONDA_FORGE": url})


def locked(project: Path, name: str = "conda-test") -> Any:
    return json.loads((project / f"profiles/locks/{name}.conda.json").read_text())


def builds(target: Any) -> list[str]:
    return [f"{p['name']} {p['build']}" for p in target["packages"]]


@pytest.mark.parametrize("over", ["http", "file"])
def test_every_platform_is_locked_from_this_machine_and_again_the_same(
    over: str, cli: Cli, conda_matrix: Path, tmp_path: Path
) -> None:
    profile(tmp_path, "tiny-lib", virtual=VIRTUAL)
    with serve(conda_matrix) as served:
        url = served.url if over == "http" else conda_matrix.as_uri()
        succeeded(lock(cli, url))
        text = (tmp_path / "profiles/locks/conda-test.conda.json").read_text()
        assert lock(cli, url).returncode == 0
        assert lock(cli, url, "--upgrade").returncode == 0
        assert not served.packages, "nothing is downloaded to lock"
    assert (tmp_path / "profiles/locks/conda-test.conda.json").read_text() == text
    checked = json.loads(cli("check", "conda-test", "--json").stdout)
    state = {"profile": "conda-test", "backend": "conda", "state": "locked", "stale": []}
    assert state.items() <= checked["locks"][1].items()
    found = locked(tmp_path)
    assert [(t["platform"], builds(t)) for t in found["targets"]] == [
        (platform, ["python 0_cpython", "tiny-lib pyh0_0"]) for platform in VIRTUAL
    ]
    subdirs = [t["packages"][0]["subdir"] for t in found["targets"]]
    assert subdirs == ["linux-64", "linux-aarch64", "osx-arm64"]
    assert [t["virtual_packages"] for t in found["targets"]] == list(VIRTUAL.values())
    for target in found["targets"]:
        for package in target["packages"]:
            archive = conda_matrix / package["subdir"] / package["file"]
            assert package["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert "127.0.0.1" not in text
    assert str(conda_matrix) not in text


@pytest.mark.parametrize(
    ("wanted", "declared", "said"),
    [
        ("gpu-only", {"__cuda": "12.4"}, ""),
        ("gpu-only", {}, "__cuda"),
        ("gpu-only", {"__cuda": "11.8"}, "__cuda 11.8"),
        ("new-glibc", {}, "__glibc 2.28"),
        ("new-glibc", {"__glibc": "2.36"}, ""),
        ("needs-v3", {"__archspec": "1=x86_64_v3"}, ""),
        ("needs-v3", {"__archspec": "1=zen4"}, "__archspec 1=zen4"),
        ("no-such-package", {}, "requests no-such-package"),
    ],
)
def test_what_the_machine_has_is_what_the_profile_says(
    wanted: str, declared: dict[str, str], said: str, cli: Cli, conda_matrix: Path, tmp_path: Path
) -> None:
    profile(tmp_path, wanted, virtual={"linux/amd64": {"__glibc": "2.28", **declared}})
    done = lock(cli, conda_matrix.as_uri())
    if not said:
        assert done.returncode == 0, done.stderr
        assert f"{wanted} 0" in builds(locked(tmp_path)["targets"][0])
        return
    assert done.returncode == 2
    assert wanted in done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "profiles/locks").exists()


def test_one_package_two_builds_and_the_profile_decides(
    cli: Cli, conda_matrix: Path, tmp_path: Path
) -> None:
    for name, virtual in (("on-cpu", {}), ("on-cuda", {"__cuda": "12.4"})):
        declared = {"linux/amd64": {"__glibc": "2.28", **virtual}}
        profile(tmp_path, "gpu-lib", virtual=declared, name=name)
        assert lock(cli, conda_matrix.as_uri(), name=name).returncode == 0
    assert builds(locked(tmp_path, "on-cpu")["targets"][0])[0] == "gpu-lib cpu_0"
    assert builds(locked(tmp_path, "on-cuda")["targets"][0])[0] == "gpu-lib cuda12_0"


def test_versions_stay_until_an_upgrade_and_go_with_their_package(
    cli: Cli, conda_matrix: Path, tmp_path: Path
) -> None:
    channel = conda.copy(conda_matrix, tmp_path / "channel")
    profile(tmp_path, "tiny-lib")

    def version() -> str:
        found = {p["name"]: p["version"] for p in locked(tmp_path)["targets"][0]["packages"]}
        return str(found["tiny-lib"])

    with serve(channel) as served:
        assert lock(cli, served.url).returncode == 0
        conda.write(packages.library("tiny-lib", "x = 2\n", version="2.0"), channel)
        conda.index(channel)
        assert (lock(cli, served.url).returncode, version()) == (0, "1.0")
        assert (lock(cli, served.url, "--upgrade").returncode, version()) == (0, "2.0")
        conda.remove(channel, packages.library("tiny-lib", "x = 2\n", version="2.0"))
        conda.index(channel)
        assert (lock(cli, served.url).returncode, version()) == (0, "1.0")
        # The same name with other bytes: nothing of the old lock is believed.
        conda.write(packages.library("tiny-lib", "x = 1.5\n"), channel)
        for stated in channel.glob("*/repodata*"):
            stated.unlink()  # else a name that is known is not read anew
        conda.index(channel)
        succeeded(lock(cli, served.url))
    archive = (channel / packages.TINY_LIB.place).read_bytes()
    found = {p["name"]: p["sha256"] for p in locked(tmp_path)["targets"][0]["packages"]}
    assert found["tiny-lib"] == hashlib.sha256(archive).hexdigest()


def test_no_hash_no_lock(cli: Cli, conda_matrix: Path, tmp_path: Path) -> None:
    channel = conda.copy(conda_matrix, tmp_path / "hurt")
    conda.drop_hashes(channel, packages.TINY_LIB, keep=("md5",))
    profile(tmp_path, "tiny-lib")
    with serve(channel) as served:
        done = lock(cli, served.url)
    assert done.returncode == 1
    assert (
        "tiny-lib-1.0-pyh0_0.conda: cannot be locked, because its channel provides no sha256"
        in done.stderr
    )
    assert not (tmp_path / "profiles/locks").exists()
    # What lies here can be read, and is.
    done = succeeded(lock(cli, channel.as_uri()))
    archive = channel / packages.TINY_LIB.place
    found = {p["name"]: p["sha256"] for p in locked(tmp_path)["targets"][0]["packages"]}
    assert found["tiny-lib"] == hashlib.sha256(archive.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "hurt", "said"),
    [
        (
            "tiny-lib",
            lambda channel: conda.tamper(channel, packages.TINY_LIB),
            "was changed after the channel was indexed",
        ),
        (
            "placed",
            lambda channel: conda.claim_subdir(channel, packages.PLACED, "osx-arm64"),
            "offered by the channel for linux-64, but its record says osx-arm64",
        ),
    ],
)
def test_a_package_that_is_not_what_its_channel_says_is_not_locked(
    name: str, hurt: Any, said: str, cli: Cli, conda_matrix: Path, tmp_path: Path
) -> None:
    channel = conda.copy(conda_matrix, tmp_path / "hurt")
    hurt(channel)
    profile(tmp_path, name)
    assert said in exited(1, lock(cli, channel.as_uri())).stderr


@pytest.mark.parametrize("secret", ["token", "password"])
def test_what_opens_a_channel_is_in_no_lock_and_no_message(
    secret: str, cli: Cli, conda_matrix: Path, tmp_path: Path
) -> None:
    profile(tmp_path, "tiny-lib")
    options: dict[str, Any] = {"token": "tk-12345"} if secret == "token" else {"password": True}
    with serve(conda_matrix, **options) as served:
        done = succeeded(lock(cli, served.secret_url))
        closed = lock(cli, served.url)
        profile(tmp_path, "no-such-package")
        wrong = lock(cli, served.secret_url)
    text = json.dumps(locked(tmp_path)) + done.stderr + closed.stderr + wrong.stderr
    assert "tk-12345" not in text
    assert PASSWORD not in text
    assert closed.returncode == 4, "it is closed without"
    gone = exited(4, lock(cli, served.secret_url))
    assert "a channel cannot be read" in gone.stderr
    assert "ENVBUILDER_INDEX_CONDA_FORGE" in gone.stderr
    assert "tk-12345" not in gone.stderr
    assert PASSWORD not in gone.stderr


def test_a_failure_of_the_library_never_ends_in_an_abort(cli: Cli, tmp_path: Path) -> None:
    """Without care Python aborts in one of five: a thread still holds on to it."""
    profile(tmp_path, "tiny-lib")
    codes = [lock(cli, (tmp_path / "none").as_uri()).returncode for _ in range(10)]
    assert codes == [4] * 10
