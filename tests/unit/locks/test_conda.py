"""Which conda locks are needed, when they are made again, and what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.commands import lock as lock_command
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import Settings, load as load_settings
from envbuilder.locks import entries as locks
from envbuilder.packages.conda import lock as conda_lock, solve
from envbuilder.packages.conda.lock import Lock, Package, Target
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.library import Library
from envbuilder.profiles.lock import reason

WITH_CONDA = (
    "requirements_from: [environment.yml]\nprofiles: [cpu, xpu-ipex]\nexclude: [tiny-lib]\n"
)
YML = "dependencies: [python=3.11, tiny-lib, numpy=2.1]\n"


def settings_of(folder: Path, text: str = WITH_CONDA) -> Settings:
    (folder / "envbuilder.yaml").write_text(text)
    (folder / "environment.yml").write_text(YML)
    return load_settings({"ENVBUILDER_CONFIG_DIR": str(folder / "config")}, folder)


def entries(settings: Settings, name: str | None = None, **options: Any) -> list[locks.CondaEntry]:
    return list(locks.conda_of_project(settings, name, None, **{"requested": False, **options}))


def lock_of(profile: profiles.Profile, **changes: Any) -> Lock:
    packages = tuple(
        Package(
            name=name, version=version, build="0", build_number=0, subdir="linux-64",
            file=f"{name}-{version}-0.conda", channel="conda-forge", sha256="0" * 64, size=1,
        )
        for name, version in (("python", "3.11.2"), ("tiny-lib", "1.0"))
    )  # fmt: skip
    target = Target(platform="linux/amd64", python="3.11", virtual_packages={}, packages=packages)
    made = Lock(
        schema=1, profile=profile.name, inputs=conda_lock.inputs_digest(profile),
        channels=("conda-forge",), targets=(target,),
    )  # fmt: skip
    return replace(made, **changes)


def test_a_project_without_conda_packages_needs_none_until_it_has_one(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "requirements: [rich]\nprofiles: [cpu]\n")
    assert entries(settings) == []
    (entry,) = entries(settings, requested=True)
    assert entry.path == tmp_path / "envbuilder.lock/default.cpu.conda.json"
    entry.path.parent.mkdir()
    entry.path.write_text("{}")
    (again,) = entries(settings)
    assert again.earlier == entry.path


def test_a_project_with_conda_packages_needs_one_per_profile(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    (entry,) = entries(settings)  # xpu-ipex has no conda: its wheels' lock says so
    assert (entry.label, entry.required, entry.earlier) == ("default.cpu", True, None)
    assert "tiny-lib" in entry.profile.conda.packages
    assert "tiny-lib" not in entry.origin.conda.packages
    with pytest.raises(InvalidError, match="has no backend for this project"):
        entries(settings, "xpu-ipex", requested=True)


def test_profiles_without_the_backend_are_passed_over_unless_they_are_named(
    found: Settings, tmp_path: Path
) -> None:
    library = Library(profiles.search_path(None, found.config_dir))
    every = [entry.label for entry in locks.conda_of_profiles(library, None, tmp_path)]
    assert {"cpu", "zendnn"} <= {*every}
    assert "xpu-ipex" not in every
    (named,) = locks.conda_of_profiles(library, "xpu-ipex", tmp_path)
    assert named.path == tmp_path / "xpu-ipex.conda.json"


def test_what_check_says(tmp_path: Path) -> None:
    (entry,) = entries(settings_of(tmp_path))
    path = tmp_path / "envbuilder.lock/default.cpu.json"
    path.parent.mkdir()
    assert locks.conda_problems(entry.profile, path) == ("its conda packages are not locked",)
    entry.path.write_text(conda_lock.dump(lock_of(entry.profile)))
    assert locks.conda_problems(entry.profile, path) == ()
    changed = "its list of conda packages changed after they were locked"
    entry.path.write_text(conda_lock.dump(lock_of(entry.profile, inputs="0" * 64)))
    assert locks.conda_problems(entry.profile, path) == (changed,)
    entry.path.write_text("{")
    (damaged,) = locks.conda_problems(entry.profile, path)
    assert "not a lock" in damaged
    entry.path.unlink()
    plain = replace(entry.profile, backends=("venv", "conda"))
    assert locks.conda_problems(plain, path) == ()


@pytest.mark.parametrize(
    ("options", "changes", "basis"),
    [
        ({}, {}, None),
        ({"packages": ["rich"]}, {}, None),
        ({"again": True}, {}, ["python", "tiny-lib"]),
        ({}, {"inputs": "0" * 64}, ["python", "tiny-lib"]),
        ({}, {"missing": {"linux/arm64 3.11": reason("why")}}, ["python", "tiny-lib"]),
        ({"packages": ["Tiny_Lib"]}, {}, ["python"]),
        ({"upgrade": True}, {}, []),
    ],
)
def test_when_the_channels_are_read_and_what_is_kept(
    options: dict[str, Any],
    changes: dict[str, Any],
    basis: list[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`basis`: the packages that may stay; None if nothing is solved."""
    settings = settings_of(tmp_path)
    (entry,) = entries(settings)
    before = lock_of(entry.profile, **changes)
    entry.path.parent.mkdir()
    entry.path.write_text(conda_lock.dump(before))
    (entry,) = entries(settings)
    asked: list[list[str]] = []

    def solved(profile: Any, *others: Any, origin: Any) -> Lock:
        previous: Lock | None = others[2]
        assert origin == entry.origin
        asked.append([p.name for t in previous.targets for p in t.packages] if previous else [])
        return before

    monkeypatch.setattr(solve, "lock", solved)
    choice = {"upgrade": False, "packages": (), "again": False, **options}
    with solve.Channels() as channels:
        result = locks.conda_solved(entry, settings, channels, lambda _: None, **choice)
    assert result == (before, before)
    assert asked == ([] if basis is None else [basis])


def test_one_that_cannot_be_read_is_solved_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(tmp_path)
    (entry,) = entries(settings)
    entry.path.parent.mkdir()
    entry.path.write_text("<<<<<<< HEAD")
    (entry,) = entries(settings)
    made = lock_of(entry.profile)
    monkeypatch.setattr(solve, "lock", lambda *_, **__: made)
    assert lock_command.settle_conda([entry], settings, upgrade=False) == 0
    out = capsys.readouterr().out
    assert f"{entry.path}: not a lock: Expecting value in line 1 (made again)" in out
    assert conda_lock.load(entry.path) == made


def test_the_form_that_changes_are_shown_of(tmp_path: Path) -> None:
    (entry,) = entries(settings_of(tmp_path))
    assert locks.conda_as_files(entry.profile, None) is None
    shown = locks.conda_as_files(entry.profile, lock_of(entry.profile))
    assert [(f.name, f.version) for f in shown.files] == [("python", "3.11.2"), ("tiny-lib", "1.0")]
    assert locks.conda_names(None) == frozenset()
