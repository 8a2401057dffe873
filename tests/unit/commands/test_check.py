"""`envbuilder check`: is every lock of a project fresh, and of its hardware?"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.core import resources
from envbuilder.host import probe
from envbuilder.profiles import lock as profile_lock
from tests.support import signing
from tests.support.broken_hosts import LINUX
from tests.support.command_line import FILE, Command
from tests.support.projects import LOCK, lay_locked, write_lock

FOLDERS = (resources.profiles_dir(),)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project for `cpu` alone, as its profile is, with a lock."""
    lay_locked(tmp_path, monkeypatch)
    monkeypatch.setattr(probe, "host", lambda: LINUX)
    return tmp_path


@pytest.fixture
def check(project: Path, envbuilder: Command) -> Command:
    return functools.partial(envbuilder, "check")


def test_a_fresh_lock(project: Path, check: Command) -> None:
    assert check() == (0, "✓ default.cpu              claimed    2.13.0 (cpu), Python 3.11\n", "")
    assert json.loads("".join(check("--json")[1:])) == {
        "schema": 1,
        "failed": False,
        "locks": [
            {"environment": "default", "profile": "cpu", "state": "claimed", "problems": [],
             "hint": "", "failed": False}
        ],
        "needless": [],
        "notes": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profiles: [cpu]\npython: '3.11'\nrequirements: [einops]\n", "the profile changed after"),
        ("profiles: [cpu]\npython: '3.12'\n", "it has no target linux/amd64 with Python 3.12"),
        (
            "profiles: [cpu]\nrequirements: ['torch==1.0']\n",
            "torch==1.0: profile 'cpu' has PyTorch 1.11",
        ),
        ("profiles: [cpu, cuda]\npython: '3.11'\n", "not locked yet"),
        ("profiles: [cpu]\npython: '3.11'\nenvironments: {test: {}}\n", "not locked yet"),
    ],
)
def test_what_changed_since(check: Command, text: str, words: str) -> None:
    FILE.write_text(text)
    printed = check(code=2).out
    assert words in printed
    # Making the locks again does not help where the file itself is wrong.
    assert printed.endswith("Run:\n  envbuilder lock\n") == ("impossible" not in printed)


@pytest.mark.parametrize(("key", "words"), [(False, "cannot be read"), (True, "not signed")])
def test_a_lock_that_builds_would_refuse_for_its_signature(
    project: Path, check: Command, key: bool, words: str
) -> None:
    FILE.write_text(f"{FILE.read_text()}signatures: {{locks: [key.pub]}}\n")
    if key:
        signing.lay_key(project / "key.pem")
    printed = check(code=2).out
    assert "✗ default.cpu              unsigned" in printed
    assert words in printed
    assert "Run:\n  envbuilder lock" not in printed


def test_a_profiles_own_lock_must_be_signed_too(project: Path, check: Command) -> None:
    FILE.write_text("signatures: {locks: [key.pub]}\n")
    signing.lay_key(project / "key.pem")
    (state,) = json.loads(check("cpu", "--json", code=2).out)["locks"]
    assert "not signed" in state["stale"][0]


def test_conda_packages_without_a_lock(project: Path, check: Command) -> None:
    text = "profiles: [cpu]\nrequirements_from: [environment.yml]\n"
    FILE.write_text(text)
    (project / "environment.yml").write_text("dependencies: [python=3.11, ffmpeg]\n")
    write_lock(project)
    assert "its conda packages are not locked" in check(code=2).out


def test_pytorch_that_was_swapped(project: Path, check: Command) -> None:
    write_lock(project, source="default", version="2.13.0",
          file="torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl")  # fmt: skip
    printed = check(code=2).out
    words = "is from default, not from pytorch-cpu, a build for other hardware"
    assert f"linux/amd64 Python 3.11: torch 2.13.0 {words}" in printed


ALTERED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a requirement": (lambda d: _drop(d, "rich"), "rich is missing"),
    "what one requires": (lambda d: _drop(d, "sympy"), "sympy is missing, but torch requires it"),
    "what nothing requires": (lambda d: _add(d, name="evil"), "nothing requires evil"),
    "a source": (lambda d: _set(d, "sympy", source="other"), "is from other, not from default"),
    "the source of a build": (
        lambda d: _set(d, "torch", source="default"),
        "a build for other hardware",
    ),
    "bytes of a build": (
        lambda d: _set(d, "torch", sha256="0" * 64),
        "linux/amd64 Python 3.11: torch 2.13.0+cpu differs from the profile's own lock",
    ),
    "a version": (lambda d: _set(d, "sympy", version="9"), "the file is of another version"),
    "a tool": (
        lambda d: d["tools"]["linux/amd64"].update(source="other"),
        "uv 0.13.8 is from other",
    ),
    "a second triton": (lambda d: _add(d, name="triton"), "nothing requires triton"),
}
"""Change of a lock → what `check` says of it."""


def _files(data: dict[str, Any]) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = data["targets"][0]["files"]
    return files


def _drop(data: dict[str, Any], name: str) -> None:
    _files(data)[:] = [file for file in _files(data) if file["name"] != name]


def _set(data: dict[str, Any], name: str, **changes: str) -> None:
    next(file for file in _files(data) if file["name"] == name).update(changes)


def _add(data: dict[str, Any], name: str) -> None:
    plain = next(file for file in _files(data) if file["name"] == "rich")
    _files(data).append({**plain, "name": name, "file": plain["file"].replace("rich", name)})


@pytest.mark.parametrize("change", ALTERED)
def test_a_lock_that_somebody_altered(project: Path, check: Command, change: str) -> None:
    text = (
        "profiles: [cpu]\npython: '3.11'\nrequirements: ['rich; platform_machine == \"x86_64\"']\n"
    )
    FILE.write_text(text)
    write_lock(project)
    path = project / "envbuilder.lock/default.cpu.json"
    data = json.loads(path.read_text())
    torch = next(file for file in _files(data) if file["name"] == "torch")
    rich = {**torch, "name": "rich", "version": "15.0.0", "file": "rich-15.0.0-py3-none-any.whl",
            "sha256": "1" * 64, "source": "default", "requires": []}  # fmt: skip
    _files(data).append(rich)
    path.write_text(json.dumps(data))
    assert check() == (0, "✓ default.cpu              claimed    2.13.0 (cpu), Python 3.11\n", "")
    alter, words = ALTERED[change]
    alter(data)
    path.write_text(json.dumps(data))
    assert words in check(code=2).out


def test_a_damaged_lock(project: Path, check: Command) -> None:
    (project / "envbuilder.lock/default.cpu.json").write_text("{")
    assert "✗ default.cpu              damaged" in check(code=2).out


def test_a_profile_that_is_not_listed_may_be_impossible(check: Command) -> None:
    text = "python: '3.11'\nrequirements: [\"torch==1.0; sys_platform == 'darwin'\"]\n"
    FILE.write_text(text)
    printed = check(code=2).out
    assert "✓ default.cpu " in printed
    assert "– default.mps              impossible" in printed


def test_a_target_that_a_lock_omits_is_named_and_no_failure(project: Path, check: Command) -> None:
    path = project / "envbuilder.lock/default.cpu.json"
    lock = profile_lock.load(path)
    (missing,) = (target for target in lock.targets if target.platform == "linux/arm64")
    partly = replace(
        lock,
        targets=tuple(target for target in lock.targets if target != missing),
        missing={"linux/arm64 3.11": profile_lock.Reason(text="its index did not answer")},
    )
    path.write_text(profile_lock.dump(partly))
    printed = check().out
    assert printed.startswith("– default.cpu ")
    assert printed.endswith("\n    not for linux/arm64 3.11: its index did not answer\n")


def test_a_needless_lock_is_named_and_no_failure(project: Path, check: Command) -> None:
    folder = project / "envbuilder.lock"
    shutil.copy(folder / "default.cpu.json", folder / "gone.cpu.json")
    assert check() == (
        0,
        (
            "✓ default.cpu              claimed    2.13.0 (cpu), Python 3.11\n"
            "– envbuilder.lock/gone.cpu.json is not needed\n"
            "    envbuilder.yaml has no environment 'gone': `envbuilder lock` removes the lock\n"
        ),
        "",
    )
    assert json.loads("".join(check("--json")[1:]))["needless"] == [
        {"file": "gone.cpu.json", "why": "envbuilder.yaml has no environment 'gone'"}
    ]


def test_what_to_do_about_a_profile_that_does_not_fit(check: Command) -> None:
    FILE.write_text("profiles: [cpu]\nrequirements: ['torch==1.0']\n")
    assert "list them, for example profiles: [cpu, cuda]\n" in check(code=2).out


def test_a_lock_of_the_users_own_that_hides_a_shipped_one(project: Path, check: Command) -> None:
    own = project / "config/profiles/locks/cpu.json"
    own.parent.mkdir(parents=True)
    shutil.copy(resources.profiles_dir() / "locks/cpu.json", own)
    assert check() == (0, "✓ default.cpu              claimed    2.13.0 (cpu), Python 3.11\n", "")
    own.write_text(profile_lock.dump(replace(LOCK, reason="made by hand")))
    printed = check().out
    assert f"note: {own} replaces the shipped lock" in printed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "requirements: ['torch==1.0']\n",
            "PyTorch 1.11.0 and later, and no other profile fits",
        ),
        ("", "this folder is not in a project"),
    ],
)
def test_a_file_of_which_no_environment_can_be_made(check: Command, text: str, words: str) -> None:
    FILE.write_text(text)
    assert words in check(code=2).err


def test_an_environment_that_fits_no_profile(check: Command) -> None:
    text = FILE.read_text()
    other = "environments: {other: {requirements_from: [gone.txt]}}\n"
    FILE.write_text(text + other)
    printed = check(code=2).out
    first, second, *_ = printed.splitlines()
    assert first.split()[:3] == ["✓", "default.cpu", "claimed"]
    assert second.split() == ["✗", "other", "impossible"]
    assert "gone.txt" in printed
