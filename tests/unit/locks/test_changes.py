"""What a new lock changes, in a line for each package."""

from __future__ import annotations

from msgspec.structs import replace

from envbuilder.core import resources
from envbuilder.locks import changes
from envbuilder.profiles import lock as profile_lock

CPU = profile_lock.load(resources.profiles_dir() / "locks" / "cpu.json")


def with_versions(**versions: str | None) -> profile_lock.Lock:
    """The lock with other versions of some packages, or without them."""
    targets = []
    for target in CPU.targets:
        files = [f for f in target.files if versions.get(f.name, "") is not None]
        moved = tuple(replace(f, version=versions.get(f.name) or f.version) for f in files)
        targets.append(replace(target, files=moved))
    return replace(CPU, targets=tuple(targets))


def test_each_package_that_came_left_or_moved() -> None:
    before = with_versions(jinja2="3.0", mpmath=None)
    after = with_versions(sympy=None)
    version = {f.name: f.version for f in CPU.targets[0].files}
    assert changes.lines(before, after) == [
        f"jinja2 3.0 → {version['jinja2']}",
        f"+ mpmath {version['mpmath']}",
        f"- sympy {version['sympy']}",
    ]


def test_targets_may_differ() -> None:
    first, *others = CPU.targets
    files = tuple(replace(f, version="1" if f.name == "jinja2" else f.version) for f in first.files)
    mixed = replace(CPU, targets=(replace(first, files=files), *others))
    version = next(f.version for f in CPU.files if f.name == "jinja2")
    assert changes.lines(CPU, mixed) == [f"jinja2 {version} → 1, {version}"]


def test_nothing_to_say_of_a_first_lock_the_same_or_none() -> None:
    assert changes.lines(None, CPU) == changes.lines(CPU, CPU) == []
    unlocked = replace(CPU, state="unlocked", targets=())
    assert changes.lines(unlocked, CPU) == changes.lines(CPU, unlocked) == []


def test_which_hashes_no_index_stated() -> None:
    files = tuple(replace(f, provenance="read") for f in CPU.targets[0].files)
    target = replace(CPU.targets[0], files=files)
    assert changes.claims(replace(CPU, targets=(target,))) == []
    torch = tuple(replace(f, provenance="claim") if f.name == "torch" else f for f in files)
    claimed = replace(target, files=torch)
    assert changes.claims(replace(CPU, targets=(target, claimed, claimed))) == [
        "hashes from public lock files, which the download confirms: torch"
    ]


def test_each_line_once_with_the_locks_that_it_holds_for() -> None:
    lines = {
        "a.cpu": ["+ x 1", "y 1 → 2"],
        "a.cuda": ["+ x 1", "y 1 → 3", "z"],
        "a.mps": ["+ x 1", "y 1 → 2"],
        "a.xpu": ["+ x 1", "y 1 → 2"],
    }
    assert changes.grouped(lines) == {
        "every lock:": ["+ x 1"],
        "every lock but a.cuda:": ["y 1 → 2"],
        "a.cuda:": ["y 1 → 3", "z"],
    }
    assert changes.grouped({"cpu": ["+ x 1"]}) == {"": ["+ x 1"]}
    assert changes.grouped({"a.cpu": ["+ x 1"], "a.mps": []}) == {"a.cpu:": ["+ x 1"]}
    assert changes.grouped({}) == changes.grouped({"cpu": []}) == {}
