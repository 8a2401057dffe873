"""Which locks there are to make, and which nothing needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import load as load_settings
from envbuilder.locks import compare
from envbuilder.locks.entries import Entry, of_project, reasons, unused_locks
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.profile import Profile
from tests.support.shipped import shipped_lock


def entries(folder: Path, text: str, name: str | None = None) -> list[Entry]:
    (folder / "envbuilder.yaml").write_text(text)
    settings = load_settings({"ENVBUILDER_CONFIG_DIR": str(folder / "config")}, folder)
    return [*of_project(settings, name)]


def test_every_environment_on_every_profile_that_is_not_opt_in(tmp_path: Path) -> None:
    found = entries(tmp_path, "requirements: [einops]\nenvironments: {test: {}}\n")
    labels = [e.label for e in found]
    assert {"default.cpu", "default.mps", "test.cpu", "test.rocm"} <= {*labels}
    assert not [label for label in labels if label.endswith("xpu-ipex")]
    for e in found:
        assert isinstance(e.profile, Profile)
        assert e.origin
        assert not e.required
    assert {e.path for e in found} == {tmp_path / f"envbuilder.lock/{n}.json" for n in labels}


def test_each_requirement_has_its_place(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("Rich <14\n")
    text = "requirements: [einops]\nrequirements_from: [requirements.txt]\n"
    (entry,) = entries(tmp_path, text, "cpu")
    assert entry.places == {"einops": "envbuilder.yaml:1", "rich<14": "requirements.txt:1"}
    assert {*entry.places} < {*entry.profile.requirements}


def test_what_was_read_and_left_out_is_decided_too(tmp_path: Path) -> None:
    listed = tmp_path / "requirements.txt"
    listed.write_text("rich\nxformers\n")
    text = "requirements_from: [requirements.txt]\n"
    (entry,) = entries(tmp_path, text, "cpu")
    assert entry.decided is not None
    assert entry.decided.left_out == ("without xformers",)
    lock = replace(shipped_lock("cpu"), decision=entry.decided)
    assert [*compare.edited(lock, entry.decided)] == []
    listed.write_text("rich\n")
    (later,) = entries(tmp_path, text, "cpu")
    edited = "requirements.txt was edited after the lock was made"
    assert [*compare.edited(lock, later.decided)] == [edited]


def test_listed_profiles_are_required_opt_in_or_not(tmp_path: Path) -> None:
    found = entries(tmp_path, "profiles: [xpu-ipex, cpu]\n")
    assert [(e.label, e.required) for e in found] == [
        ("default.cpu", True),
        ("default.xpu-ipex", True),
    ]
    (only,) = entries(tmp_path, "requirements: [einops]\n", "cpu-ipex")
    assert (only.label, only.required) == ("default.cpu-ipex", True)


@pytest.mark.parametrize("text", ["{", None])
def test_an_own_lock_that_is_damaged_or_stale_is_not_built_on(
    tmp_path: Path, text: str | None
) -> None:
    own = tmp_path / "config/profiles/locks/cpu.json"
    own.parent.mkdir(parents=True)
    shipped = shipped_lock("cpu")
    own.write_text(text or profile_lock.dump(replace(shipped, inputs="0" * 64)))
    (entry,) = entries(tmp_path, "requirements: [einops]\n", "cpu")
    assert entry.origin[1] == shipped
    other = replace(shipped, reason="made by hand")
    own.write_text(profile_lock.dump(other))
    (entry,) = entries(tmp_path, "requirements: [einops]\n", "cpu")
    assert entry.origin[1] == other


def test_a_profile_that_does_not_fit_says_why(tmp_path: Path) -> None:
    found = {e.label: e for e in entries(tmp_path, "requirements: ['torch==2.4.1']\n")}
    assert isinstance(found["default.cpu"].profile, Profile)
    problem = found["default.xpu"].profile
    assert isinstance(problem, InvalidError)
    assert "torch==2.4.1: profile 'xpu' has PyTorch 2.6" in problem.message


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("framework_version: '2.4'", "envbuilder.yaml:1: torch==2.4.*"),
        ("as_of: 2024-03-01", "envbuilder.yaml:1: torch<=2.2.1"),
        ("requirements: [torchtext==0.18.0]", "envbuilder.yaml:1 (torchtext): torch<2.4"),
    ],
)
def test_a_profile_with_one_release_is_refused_if_the_project_has_another(
    tmp_path: Path, text: str, limit: str
) -> None:
    found = {entry.name: entry for entry in entries(tmp_path, text)}
    problem = found["zendnn"].profile
    assert isinstance(problem, InvalidError)
    assert problem.message == f"{limit}: profile 'zendnn' has torch 2.13.0+cpu"


def test_a_profile_with_one_release_states_it(tmp_path: Path) -> None:
    (cpu,) = entries(tmp_path, "python: '3.11'\n", "cpu")
    (zendnn,) = entries(tmp_path, "python: '3.11'\n", "zendnn")
    assert zendnn.release == ("2.13.0+cpu", "Python 3.11")
    assert reasons([cpu, zendnn]) == {}
    assert cpu.decision
    newer = replace(cpu.decision, chosen=replace(cpu.decision.chosen, release="2.14.1"))
    differing = reasons([replace(cpu, decision=newer), zendnn])
    assert differing["default.zendnn"] == "it works with this release only"


JAX = "environments: {other: {requirements: [jax]}}\n"


def test_an_environment_takes_the_listed_profiles_of_its_framework(tmp_path: Path) -> None:
    def labels(text: str, name: str | None = None) -> list[str]:
        return [entry.label for entry in entries(tmp_path, text, name)]

    both = f"profiles: [cpu, jax-cpu]\n{JAX}"
    assert labels(both) == ["default.cpu", "other.jax-cpu"]
    assert labels(both, "jax-cpu") == ["other.jax-cpu"]
    assert labels(both, "cpu") == ["default.cpu", "other.jax-cpu"]
    # No environment is for JAX, or `other` has no profile: neither passes unnoticed.
    assert labels("profiles: [cpu, jax-cpu]\n") == ["default.cpu", "default.jax-cpu"]
    assert labels(f"profiles: [cpu]\n{JAX}") == ["default.cpu", "other.cpu"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"framework_version: '2.8'\n{JAX}", "no other profile fits"),
        ("environments: {other: {requirements_from: [gone.txt]}}\n", "gone.txt"),
        ("environments: {other: {python_path: [gone]}}\n", "is not a folder"),
    ],
)
def test_an_environment_without_a_lock_stops_no_other(
    tmp_path: Path, text: str, words: str
) -> None:
    *others, failure = entries(tmp_path, text)
    assert {entry.environment for entry in others} == {"default"}
    assert (failure.label, failure.required, failure.earlier) == ("other", True, None)
    assert isinstance(failure.profile, InvalidError)
    assert words in failure.profile.message


def test_a_folder_that_is_no_project(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="this folder is not in a project") as raised:
        entries(tmp_path, "profile: cpu\n")
    assert "envbuilder init" in raised.value.hint


EXCLUDED = "profiles: in envbuilder.yaml does not list"


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    """The folder of a project's locks, of an environment `test` on two profiles."""
    text = "profiles: [cpu, mps]\nenvironments: {test: {}}\n"
    (tmp_path / "envbuilder.yaml").write_text(text)
    folder = tmp_path / "envbuilder.lock"
    folder.mkdir()
    for name in ("default.cpu", "default.mps", "test.cpu", "test.cpu.conda"):
        write(folder / f"{name}.json")
    return folder


def write(path: Path, **changes: str) -> None:
    profile = path.name.split(".")[1]
    data = {"schema": 2, "profile": profile, "inputs": "", "targets": [], **changes}
    path.write_text(json.dumps(data))


def names(locks: Path) -> dict[str, tuple[str, bool]]:
    environ = {"ENVBUILDER_CONFIG_DIR": str(locks.parent / "config")}
    settings = load_settings(environ, locks.parent)
    return {each.path.name: (each.why, each.excluded) for each in unused_locks(settings)}


def test_locks_of_what_the_project_has_are_needed(locks: Path) -> None:
    assert names(locks) == {}


def test_an_environment_or_profile_that_the_project_does_not_have(locks: Path) -> None:
    write(locks / "gone.cpu.json")
    write(locks / "gone.cpu.conda.json")
    write(locks / "test.cuda.json")
    assert names(locks) == {
        "gone.cpu.conda.json": ("envbuilder.yaml has no environment 'gone'", True),
        "gone.cpu.json": ("envbuilder.yaml has no environment 'gone'", True),
        "test.cuda.json": (f"{EXCLUDED} 'cuda'", True),
    }


def test_a_profile_that_only_another_machine_may_have(locks: Path) -> None:
    (locks.parent / "envbuilder.yaml").write_text("environments: {test: {}}\n")
    write(locks / "test.theirs.json")
    write(locks / "test.xpu-ipex.json")
    assert names(locks) == {
        "test.theirs.json": ("there is no profile 'theirs' on this machine", False)
    }


@pytest.mark.parametrize(
    "name", ["notes.txt", "gone.json", "gone.cpu.txt", "gone.a.b.json", "Gone.cpu.json", "..json"]
)
def test_files_of_other_names_are_not_ours(locks: Path, name: str) -> None:
    (locks / name).write_text('{"schema": 2, "profile": "cpu", "inputs": "", "targets": []}')
    assert names(locks) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"profile": "cpu"}', "\0"])
def test_files_of_other_content_are_not_ours(locks: Path, text: str) -> None:
    (locks / "gone.cpu.json").write_text(text)
    assert names(locks) == {}


def test_a_lock_of_another_profile_a_link_and_a_folder_are_not_ours(locks: Path) -> None:
    write(locks / "gone.cpu.json", profile="cuda")
    (locks / "gone.mps.json").symlink_to(locks / "default.mps.json")
    (locks / "gone.xpu.json").mkdir()
    assert names(locks) == {}


def test_nothing_outside_of_a_project(locks: Path) -> None:
    (locks.parent / "envbuilder.yaml").write_text("")
    assert names(locks) == {}
