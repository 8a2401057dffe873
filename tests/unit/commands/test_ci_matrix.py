"""The matrix: which jobs there are, what each does, and where it runs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from envbuilder.commands import ci
from envbuilder.commands.ci import SERVICES, LockedProfile, Omission, Row, Selection, rows
from envbuilder.core import resources, types
from envbuilder.profiles import lock as profile_lock
from tests.support.conda_locks import lock_of_python
from tests.support.shipped import shipped_profile

RUNNERS = SERVICES["github"].runners
EVERYTHING = Selection()


def shipped(name: str, environment: str = "") -> LockedProfile:
    path = f"profiles/locks/{name}.json"
    return LockedProfile(
        environment=environment,
        profile=shipped_profile(name),
        lock=profile_lock.load(resources.profiles_dir().parent / path),
        path=path,
    )


def planned(
    *profiles: str | LockedProfile,
    selection: Selection = EVERYTHING,
    accelerated: Mapping[str, str] | None = None,
    runners: Mapping[types.Platform, str] = RUNNERS,
) -> list[Row]:
    locked = [shipped(each) if isinstance(each, str) else each for each in profiles]
    return rows(locked, selection, runners, accelerated or {})[0]


def test_a_row_is_a_platform_with_its_default_python_and_a_native_environment() -> None:
    assert [(r.id, r.runner, r.what) for r in planned("cpu", "mps")] == [
        ("cpu-linux-amd64-py3.11-venv", "ubuntu-24.04", "verify"),
        ("cpu-linux-arm64-py3.11-venv", "ubuntu-24.04-arm", "verify"),
        ("mps-macos-arm64-py3.11-venv", "macos-15", "build"),
    ]


@pytest.mark.parametrize("name", ["cuda", "jax-cuda"])
def test_a_gpu_profile_is_verified_only_where_a_runner_has_one(name: str) -> None:
    (row, *_) = planned(name)
    assert (row.what, row.runner) == ("build", "ubuntu-24.04")
    (row, *_) = planned(name, accelerated={"cuda": "box"})
    assert (row.what, row.runner) == ("verify", "box")
    (row, *_) = planned(name, accelerated={"cuda": "box", name: "best"})
    assert row.runner == "best"


def test_a_runner_is_of_one_platform() -> None:
    def runners(accelerated: Mapping[str, str]) -> list[tuple[str, str]]:
        return [(row.runner, row.what) for row in planned("cuda", accelerated=accelerated)]

    assert runners({"cuda": "box"}) == [("box", "verify"), ("ubuntu-24.04-arm", "build")]
    assert runners({"cuda@linux/arm64": "grace"}) == [
        ("ubuntu-24.04", "build"),
        ("grace", "verify"),
    ]


def test_rows_are_selected() -> None:
    selection = Selection(
        platforms=("linux/arm64",), pythons=("3.12", "3.11"), backends=("docker", "venv")
    )
    assert [r.id for r in planned("cpu", "zendnn", selection=selection)] == [
        "cpu-linux-arm64-py3.12-venv",
        "cpu-linux-arm64-py3.11-venv",
        "cpu-linux-arm64-py3.12-docker",
        "cpu-linux-arm64-py3.11-docker",
    ]


def test_tests_need_pytest_in_the_lock_and_the_python_that_run_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    selection = Selection(platforms=("linux/amd64",), pythons=("3.11", "3.12"))
    assert not any(row.tests for row in planned("cpu", selection=selection))
    monkeypatch.setattr(ci, "TESTS", "sympy")
    assert [row.tests for row in planned("cpu", selection=selection)] == [True, False]


def test_an_image_has_a_python_for_which_there_is_a_base() -> None:
    selection = Selection(backends=("docker",))
    (row,) = planned("xpu", selection=selection)
    base = profile_lock.select(shipped("xpu").lock, row.platform, row.python).base
    assert row.python == "3.14"
    assert base is not None
    assert not planned("cuda", selection=replace(selection, pythons=("3.13",)))


def test_what_has_no_row_says_why() -> None:
    _, omissions = rows(
        [shipped("mps"), shipped("cpu")],
        Selection(platforms=("macos/arm64",), backends=("docker",)),
        RUNNERS,
        {},
    )
    assert omissions == [
        Omission(label="mps", why="its only backends are venv, conda"),
        Omission(label="cpu", why="its lock covers none of these platforms, Pythons and backends"),
    ]
    _, (omission,) = rows([shipped("cpu")], Selection(backends=("conda",)), RUNNERS, {})
    assert (
        omission.why == "its conda packages are not locked: run `envbuilder lock --backend conda`"
    )


def test_the_cache_key_follows_the_locks_content() -> None:
    locked = shipped("cpu")
    other = replace(locked, lock=replace(locked.lock, targets=locked.lock.targets[:1]))
    selection = Selection(platforms=("linux/amd64",), pythons=("3.11", "3.12"))
    keys = [row.cache_key for row in planned(locked, other, selection=selection)]
    assert len(keys) == len(set(keys)) == 3
    for key in keys:
        assert key.startswith("cpu-linux-amd64-py3.1")


def with_conda(locked: LockedProfile, build: str = "0") -> LockedProfile:
    """The same with a conda lock, for Linux on x86-64 and Python 3.11 alone."""
    lock = lock_of_python(locked.profile, build)
    return replace(locked, conda_lock=lock, conda_path="profiles/locks/cpu.conda.json")


def test_conda_has_a_row_where_it_is_locked() -> None:
    selection = Selection(backends=("conda", "venv"), pythons=("3.11", "3.12"))
    each = planned(with_conda(shipped("cpu")), selection=selection)
    (conda,) = [row for row in each if row.backend == "conda"]
    assert (conda.id, conda.what) == ("cpu-linux-amd64-py3.11-conda", "verify")
    assert conda.lock == "profiles/locks/cpu.json"
    assert conda.conda_lock == "profiles/locks/cpu.conda.json"
    (venv, *_) = [row for row in each if row.backend == "venv"]
    assert venv.conda_lock == ""
    assert conda.disk_bytes > venv.disk_bytes


def test_the_cache_key_of_conda_follows_both_locks() -> None:
    locked = shipped("cpu")
    other = replace(locked, lock=replace(locked.lock, targets=locked.lock.targets[:1]))
    selection = Selection(platforms=("linux/amd64",), backends=("conda",))
    each = (with_conda(locked), with_conda(locked, "1"), with_conda(other))
    keys = [row.cache_key for row in planned(*each, selection=selection)]
    assert len(keys) == len(set(keys)) == 3


def test_conda_is_the_default_only_where_nothing_else_can_hold_it() -> None:
    locked = with_conda(shipped("cpu"))
    (amd64, *_) = planned(locked)
    (only,) = planned(replace(locked, profile=replace(locked.profile, backends=("conda",))))
    assert (amd64.backend, only.backend) == ("venv", "conda")


def test_a_gpu_needs_more_room_than_a_cpu_and_x86_flags_are_those_of_x86() -> None:
    (amd64, arm64), (cuda, _) = planned("cpu"), planned("cuda")
    assert cuda.disk_bytes > 5 * 10**9 > amd64.disk_bytes > 10**8
    assert (amd64.cpu_flags, arm64.cpu_flags) == (("sse4_1",), ())


def test_a_platform_without_hosted_runners_needs_a_label() -> None:
    runners = SERVICES["gitlab"].runners
    _, (omission,) = rows([shipped("mps")], EVERYTHING, runners, {})
    assert "--runner mps@macos/arm64=LABEL" in omission.why
    (row,) = planned("mps", runners=runners, accelerated={"mps": "mac"})
    assert (row.what, row.runner) == ("verify", "mac")
