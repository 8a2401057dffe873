"""Locks survive being written and read; damaged, unknown or stale ones are refused."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from envbuilder.core import types
from envbuilder.core.errors import InvalidError, ToolError, UnlockedError
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.lock import File, Lock, LockedBase, Reason, Recipe, Target, reason
from envbuilder.profiles.profile import DebianBase, Profile, Resolution, Source
from tests.support import absence
from tests.support.shipped import shipped_profile
from tests.support.tools import tools

HASH = "0" * 64
CPU = shipped_profile("cpu")
WHEEL = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


def deb(**changes: Any) -> File:
    fields: dict[str, Any] = {
        "kind": "deb", "name": "dpkg", "version": "1.21.22", "source": "debian",
        "file": "pool/main/d/dpkg/dpkg_1.21.22_amd64.deb",
    }  # fmt: skip
    return file(**fields | changes)


def file(**changes: Any) -> File:
    fields: dict[str, Any] = {
        "kind": "wheel", "name": "torch", "version": "2.13.0+cpu", "sha256": HASH, "size": 1,
        "file": WHEEL, "source": "pytorch-cpu", "provenance": "read", "by": "somebody",
    }  # fmt: skip
    return File(**{**fields, **changes})


def lock(*files: File, **changes: Any) -> Lock:
    version = {"python_path": "/usr/bin/python3", "python_version": "3.11.2"}
    base = LockedBase(ref="python:3.11", digest=None, date=None, **version)
    target = Target(platform="linux/amd64", python="3.11", base=base, files=files or (file(),))
    fields: dict[str, Any] = {
        "schema": 2, "profile": "cpu", "inputs": HASH, "state": "locked", "reason": "",
        "tools": tools(), "targets": (target,),
    }  # fmt: skip
    return Lock(**{**fields, **changes})


def written(folder: Path, text: str) -> Path:
    path = folder / "cpu.json"
    path.write_text(text)
    return path


def without(platform: types.Platform) -> dict[types.Platform, File]:
    return {p: f for p, f in tools().items() if p != platform}


names = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,5})?", fullmatch=True)
files = st.builds(
    file,
    name=names,
    version=st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}(\+[a-z0-9]{1,5})?", fullmatch=True),
    sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
    size=st.none() | st.integers(1, 2**36),
    by=st.text(st.characters(blacklist_categories=("Cc", "Cs")), max_size=30),
).map(lambda f: replace(f, file=f"{f.name.replace('-', '_')}-{f.version}-py3-none-any.whl"))


@given(st.lists(files, unique_by=lambda f: f.name, max_size=5))
def test_written_and_read_it_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, found: list[File]
) -> None:
    before = lock(*found)
    path = written(tmp_path_factory.mktemp("l"), profile_lock.dump(before))
    assert profile_lock.load(path) == before


TEXT = """\
{
 "schema": 2,
 "profile": "cpu",
 "inputs": "%(hash)s",
 "state": "claimed",
 "reason": "größer",
 "tools": {%(tools)s},
 "targets": [{
  "platform": "linux/amd64",
  "python": "3.11",
  "base": null,
  "files": [
   {"kind": "wheel", "name": "torch", "version": "2.13.0+cpu", "file": "%(wheel)s", \
"sha256": "%(hash)s", "size": 1, "source": "pytorch-cpu", "provenance": "read", "by": "größer"}
  ]}]
}
"""


def test_a_lock_is_text_for_people_and_diffs() -> None:
    listed = file(by="größer")
    target = Target(platform="linux/amd64", python="3.11", base=None, files=(listed,))
    plain = lock(state="claimed", reason="größer", tools={}, targets=(target,))
    assert profile_lock.dump(plain) == TEXT % {"hash": HASH, "wheel": WHEEL, "tools": ""}
    uv = replace(tools()["linux/arm64"], by="größer")
    tool = f'\n  "linux/arm64": {json.dumps(msgspec.to_builtins(uv), ensure_ascii=False)}\n '
    assert profile_lock.dump(replace(plain, tools={"linux/arm64": uv})) == (
        TEXT % {"hash": HASH, "wheel": WHEEL, "tools": tool}
    )


def test_the_digest_of_a_lock_is_that_of_its_content() -> None:
    turned = lock(tools=dict(reversed(tools().items())))
    assert profile_lock.lock_digest(turned) == profile_lock.lock_digest(lock())
    assert profile_lock.lock_digest(lock(file(size=2))) != profile_lock.lock_digest(lock())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a lock"),
        ("[" * 100_000, "nested too deeply"),
        ('{"schema": 1, "schema": 1}', "key 'schema' appears twice"),
        ('{"schema": 1, "profile": "cpu", "a": {"b": 1, "b": 2}}', "key 'b' appears twice"),
        ('{"schema": 1, "profile": "cpu", "a": NaN}', "NaN is not a JSON number"),
        (f'{{"schema": {"9" * 5000}}}', "not a lock"),
        ('{"schema": 2, "profile": "zendnn"}', "this lock is for another profile, 'zendnn'"),
        ('{"schema": 2, "profile": ["cpu"]}', "this lock is for another profile"),
        ("[]", "schema None"),
        ('{"schema": 3}', "schema 3 is not supported"),
        ('{"schema": 1}', "schema 1 is not supported"),
        ('{"schema": 2, "profile": "cpu"}', "is missing"),
    ],
)
def test_damaged_locks_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidError, match=message) as caught:
        profile_lock.load(path)
    assert caught.value.message.startswith(f"{path}: ")
    assert re.search("a new (one|lock): envbuilder lock$", caught.value.hint)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lock(file(), file(file=WHEEL.replace("x86_64", "i686"))), "wheel torch is listed twice"),
        (lock(file(kind="deb")), r"whl: kind: deb, but the file is not a Debian package$"),
        (lock(file(file=f"pool/{WHEEL}")), "but the file is not a wheel"),
        (lock(file(role="base")), "whl: role: a wheel cannot be part of a base"),
        (lock(file(source="debian")), "source: debian has no wheels"),
        (lock(deb(source="pytorch-cpu")), "source: pytorch-cpu has no Debian packages"),
        (lock(file(name="Torch")), "not normalised: expected torch"),
        (lock(file(name="numpy")), "name: numpy, but the file is another distribution's"),
        (lock(file(version="2.13.0")), "version: 2.13.0, but the file is of another"),
        (lock(file(version="odd", file="torch-other-py3-none-any.whl")), "is of another version"),
        (lock(deb(name="dpkg-dev")), "name: dpkg-dev, but the file is another package's"),
        (lock(deb(version="1.22")), "version: 1.22, but the file is of another"),
        (lock(file(provenance="claim")), "the provenance of some files"),
        (lock(targets=()), "targets: empty"),
        (lock(targets=lock().targets * 2), "appears twice"),
        (lock(deb(role="base")), "a base made of packages must have files"),
        (lock(tools={**tools(), "macos/arm64": tools("0.14.0")["macos/arm64"]}), "one version of"),
        (lock(tools=dict.fromkeys(types.PLATFORMS, file())), "one version of uv, found wheel"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, wrong: Lock, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        profile_lock.load(written(tmp_path, profile_lock.dump(wrong)))


def test_every_platform_has_its_own_uv_and_another_machine_has_none() -> None:
    made = lock()
    assert [made.tool(p) for p in types.PLATFORMS] == [*tools().values()]
    with pytest.raises(ToolError, match="not for this machine") as caught:
        made.tool(None)
    assert caught.value.exit_code == 4
    with pytest.raises(InvalidError, match="no uv for linux/arm64"):
        lock(tools=without("linux/arm64")).tool("linux/arm64")


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [
        *(("files", "file", path) for path in ("../x.whl", "/etc/passwd")),
        ("files", "sha256", "0" * 63),
        *(("files", "name", name) for name in ("a;b", "a" * 70_000)),
        *(("files", "version", version) for version in ("1\n2", "1" * 70_000)),
        *(("files", "source", source) for source in ("a" * 70_000, "https://x")),
        ("files", "provenance", "guessed"),
        *(("files", "size", size) for size in (0, 1.5, 10**400)),
        ("files", "unknown", 1),
        *(
            ("base", "python_version", version)
            for version in ("3.11", "3.11.2; rm -rf /", "x" * 5000)
        ),
        ("base", "date", "2026-02-30"),
    ],
)
def test_words_are_checked(tmp_path: Path, where: str, key: str, value: object) -> None:
    data = json.loads(profile_lock.dump(lock()))
    part = data["targets"][0][where]
    (part[0] if where == "files" else part)[key] = value
    with pytest.raises(InvalidError, match=key) as caught:
        profile_lock.load(written(tmp_path, json.dumps(data)))
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize(
    ("date", "epoch"), [("2026-09-22", 1790035200), ("2024-02-29", 1709164800), (None, 315532800)]
)
def test_the_time_of_a_build_is_the_bases_date(
    date: str | None, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = lock().targets[0].base
    for zone in ("UTC", "Asia/Tokyo", "America/Los_Angeles"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert replace(base, date=date).epoch == epoch
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("name", "version", "stem"),
    [
        ("python-dateutil", "2.9.0", "python_dateutil-2.9.0"),
        ("torch", "2.13.0+cu126", "torch-2.13.0%2Bcu126"),
        ("a", "1.0", "A-1.0-1"),
        ("a", "1.0.post1", "a-1.0_1"),
        ("a", "odd_1", "a-odd_1"),
    ],
)
def test_file_names_may_spell_the_same_otherwise(
    name: str, version: str, stem: str, tmp_path: Path
) -> None:
    made = lock(file(name=name, version=version, file=f"{stem}-py3-none-any.whl"))
    assert profile_lock.load(written(tmp_path, profile_lock.dump(made))) == made


def test_what_a_lock_covers() -> None:
    (one,) = lock().targets
    several = lock(
        targets=(
            one,
            replace(one, python="3.12"),
            replace(one, python="3.13"),
            replace(one, platform="linux/arm64", python="3.14"),
        )
    )
    assert profile_lock.pythons(several, "linux/amd64", "3.12") == ["3.12", "3.11", "3.13"]
    assert profile_lock.pythons(several, "linux/arm64", "3.12") == ["3.14"]
    assert profile_lock.first(several, "linux/amd64") == one
    assert profile_lock.first(several, "linux/arm64") == several.targets[3]
    assert profile_lock.first(several, "macos/arm64") is None
    assert profile_lock.first(None, "linux/amd64") is None
    assert profile_lock.select(several, "linux/amd64", "3.11") == one
    with pytest.raises(InvalidError, match="no files for linux/amd64 with Python") as caught:
        profile_lock.select(replace(several, targets=several.targets[:2]), "linux/amd64", "3.13")
    assert caught.value.hint == (
        f"It covers: linux/amd64 Python 3.11, linux/amd64 Python 3.12. {profile_lock.OTHER_PYTHON}"
    )
    partly = replace(
        several,
        missing={"macos/arm64 3.11": Reason(text="1 package", items=("leaf: exclude: [leaf]",))},
    )
    with pytest.raises(InvalidError, match=r"Python 3.11: 1 package:\n +leaf: exclude") as caught:
        profile_lock.select(partly, "macos/arm64", "3.11")
    assert caught.value.hint == "Then run: envbuilder lock"


def test_only_a_fitting_lock_is_usable() -> None:
    empty = profile_lock.nothing(CPU)
    assert (empty.state, empty.reason, empty.files, empty.targets) == ("locked", "", (), ())
    good = lock(inputs=profile_lock.inputs_digest(CPU))
    for usable in (good, empty):
        assert profile_lock.require_usable(CPU, usable) is usable
    unlocked = lock(
        state="unlocked", obstacle=Reason(text="no hash"), targets=(), inputs=good.inputs
    )
    for wrong, message in ((None, "no lock"), (lock(), "is stale"), (unlocked, "locked: no hash")):
        with pytest.raises(InvalidError, match=message):
            profile_lock.require_usable(CPU, wrong)


def test_only_what_decides_changes_the_inputs() -> None:
    system = DebianBase(include=("python3",))
    for changes, decides in (
        ({"description": "other", "warnings": ()}, False),
        ({"requirements": ("torch==1.0",)}, True),
        ({"debian_base": {"3.11": system}}, True),
    ):
        digest = profile_lock.inputs_digest(replace(CPU, **changes))
        assert (digest != profile_lock.inputs_digest(CPU)) == decides
    # Locks that were made before there were bases of packages stay fresh.
    assert not re.search("role|suite", profile_lock.dump(lock()))


def test_an_edited_source_makes_the_lock_stale_on_its_targets() -> None:
    recipe = Recipe(kind="path", location="./real/ops", sha256="1" * 64)
    ops = file(
        name="ops", version="1", file="ops-1-py3-none-any.whl", source="built", recipe=recipe
    )

    def variant(**changes: str) -> Profile:
        source = Source(name="ops", location="./ops", **changes)  # type: ignore[arg-type]
        return replace(CPU, resolution=Resolution(sources=(source,)))

    locked = lock(ops, inputs=profile_lock.inputs_digest(variant()))
    assert profile_lock.changed(variant(where="a.txt:2", digest="1" * 64), locked) == ""
    assert profile_lock.changed(variant(digest=""), locked) == "", "it is unknown"
    assert profile_lock.changed(variant(digest="2" * 64), locked) == "./ops"
    assert profile_lock.changed(variant(marker="python_version < '3'"), locked) == "the profile"
    edited = variant(digest="2" * 64, marker="python_version < '3'")
    assert not profile_lock.changed(
        edited, replace(locked, inputs=profile_lock.inputs_digest(edited))
    )
    with pytest.raises(UnlockedError, match=r"is stale: \./ops changed after it was made"):
        profile_lock.require_usable(variant(digest="2" * 64), locked, of_project=True)


def test_packages_of_the_base_are_not_installed_on_it(tmp_path: Path) -> None:
    own = deb(role="base")
    above = deb(name="gcc", version="4:12.2", file="pool/gcc_12.2_amd64.deb")
    plain = lock(own, above)
    base = replace(plain.targets[0].base, suite="bookworm")
    target = replace(plain.targets[0], base=base)
    made = profile_lock.dump(replace(plain, targets=(target,)))
    (read,) = profile_lock.load(written(tmp_path, made)).targets
    assert read == target
    assert (read.of_kind("deb"), read.base_files) == ((above,), (own,))


def test_the_users_lock_is_found_first(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder / "locks").mkdir(parents=True)
    (tmp_path / "two/locks/cpu.json").touch()
    folders = (tmp_path / "one", tmp_path / "two")
    assert profile_lock.path_for("cpu", folders) == tmp_path / "two/locks/cpu.json"
    (tmp_path / "one/locks/cpu.json").touch()
    assert profile_lock.path_for("cpu", folders) == tmp_path / "one/locks/cpu.json"
    assert profile_lock.path_for("xpu", folders) is None


_FRESH = profile_lock.inputs_digest(CPU)
_BASE = LockedBase(
    ref="envbuilder/base:bookworm", digest=None, date="2026-11-01", python_path="/usr/bin/python3",
    python_version="3.11.2", suite="bookworm", unpacked=True,
)  # fmt: skip
_FILES = (deb(role="base", size=None, size_about=2), deb(name="g++-12", version="12", file=(
    "pool/main/g/gcc-12/g++-12_12_amd64.deb")), file())  # fmt: skip
_TARGET = Target(platform="linux/amd64", python="3.11", base=_BASE, files=_FILES)
_WHOLE = lock(
    inputs=_FRESH,
    targets=(_TARGET, replace(_TARGET, python="3.12")),
    missing={"macos/arm64 3.12": Reason(text="x")},
)
VERDICTS = {
    "refused: another profile": replace(_WHOLE, profile="cuda"),
    "refused: stale": replace(_WHOLE, inputs=HASH),
    "refused: unlocked": replace(_WHOLE, state="unlocked", obstacle=Reason(text="no wheel")),
    "refused: claims": lock(file(provenance="claim"), inputs=_FRESH),
    "refused: twice": lock(file(), file(size=2), inputs=_FRESH),
    "claimed": replace(_WHOLE, state="claimed", reason="somebody claims it"),
}  # fmt: skip
WRONG_ENTRIES = {"refused: twice": (0, 1), "refused: claims": (0,)}
_RANKS = ("refused", "claimed", "locked")


def verdict(document: Any, folder: Path) -> str:
    """What a build makes of a lock; anything but a refusal fails the test."""
    path = written(folder, json.dumps(document))
    try:
        return profile_lock.require_usable(CPU, profile_lock.load(path)).state
    except InvalidError:
        return "refused"


@pytest.mark.parametrize("name", VERDICTS)
def test_a_lock_that_lacks_a_part_is_not_judged_better(name: str, tmp_path: Path) -> None:
    document = json.loads(profile_lock.dump(VERDICTS[name]))
    kind = name.partition(":")[0]
    assert verdict(document, tmp_path) == kind
    better = {
        part
        for part, lacking in absence.without_each(document)
        if _RANKS.index(verdict(lacking, tmp_path)) > _RANKS.index(kind)
    }
    # Without the entry that is wrong, nothing is wrong.
    assert better == {f"targets.0.files.{n}" for n in WRONG_ENTRIES.get(name, ())}


# An interpreter

PYTHON = file(
    kind="python", name="cpython", version="3.11.16", source="python-standalone",
    file="20260814/cpython-3.11.16+20260814-x86_64-unknown-linux-gnu-install_only.tar.gz",
    provenance="claim",
)  # fmt: skip


def with_interpreter(interpreter: File | None = PYTHON, **of_base: Any) -> Lock:
    (target,) = lock().targets
    assert target.base
    base = replace(target.base, **of_base)
    return lock(targets=(replace(target, base=base, interpreter=interpreter),))


IN_IMAGES = "/opt/python/bin/python3.11"


def test_an_interpreter_that_no_image_gets_changes_no_image(tmp_path: Path) -> None:
    found = with_interpreter()
    assert profile_lock.lock_digest(found) == profile_lock.lock_digest(lock())
    assert found.files == lock().files
    assert profile_lock.load(written(tmp_path, profile_lock.dump(found))) == found
    (target,) = found.targets
    assert target.of_image is None
    assert target.fetched(managed=False) == target.files
    assert target.fetched(managed=True) == (*target.files, PYTHON)
    assert '"interpreter"' not in profile_lock.dump(lock()), "locks of profiles stay as they were"


def test_one_that_images_get_is_a_file_of_theirs() -> None:
    found = with_interpreter(python_path=IN_IMAGES)
    other = with_interpreter(replace(PYTHON, sha256="1" * 64), python_path=IN_IMAGES)
    assert profile_lock.lock_digest(found) != profile_lock.lock_digest(other)
    assert PYTHON in found.files
    assert found.targets[0].of_image == PYTHON


@pytest.mark.parametrize(
    ("interpreter", "words"),
    [
        (None, "the base image needs it"),
        (replace(PYTHON, kind="tool"), "not a build of Python 3.11"),
        (replace(PYTHON, version="3.11.15"), "not a build of Python 3.11"),
        (replace(PYTHON, file=PYTHON.file.replace("3.11", "3.12")), "not a build of Python 3.11"),
    ],
)
def test_a_wrong_interpreter_is_refused(
    tmp_path: Path, interpreter: File | None, words: str
) -> None:
    found = replace(with_interpreter(interpreter, python_path=IN_IMAGES), state="claimed")
    with pytest.raises(InvalidError, match=words):
        profile_lock.load(written(tmp_path, profile_lock.dump(found)))


@pytest.mark.parametrize(
    ("printed", "proof"),
    [
        (":\n  ╰─▶ Because a<2\n      and b>3, it fails.\n", "Because a<2 and b>3, it fails."),
        ("\n  cause: Because a<2 and b>3\n         it fails.\n", "Because a<2 and b>3 it fails."),
        ("└─ a 1.0 would require\n   └─ __cuda >=12", "a 1.0 would require __cuda >=12"),
        ("\x1b[1m" + "word " * 900, "\\x1b[1m" + "word " * 399),
    ],
)
def test_a_proof_is_one_line_and_is_shown_indented(printed: str, proof: str) -> None:
    why = replace(reason("no wheels fit", proof=printed), target="cpu")
    assert str(why).startswith(f"cpu: no wheels fit. Proof: {proof}")
    assert str(why).isprintable()
    assert len(str(why)) < 2100
    first, *rest = why.printed().splitlines()
    assert first == "cpu: no wheels fit:"
    for line in rest:
        assert line.startswith("    ")
        assert len(line) <= 100
    assert reason("another").printed() == "another"
    assert reason("two", ["a\nb", "c"]).printed() == "two:\n    a b\n    c"
    assert str(reason("two", ["a\nb", "c"])) == "two: • a b • c"


@pytest.mark.parametrize(
    "changes",
    [{"state": "unlocked", "targets": ()}, {"obstacle": Reason(text="no wheel")}],
)
def test_an_unlocked_lock_says_why_and_no_other_does(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = written(tmp_path, profile_lock.dump(replace(_WHOLE, **changes)))
    with pytest.raises(InvalidError, match="obstacle: required if the state is unlocked"):
        profile_lock.load(path)
