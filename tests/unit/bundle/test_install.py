"""Which profiles, locks and files of a bundle belong together, and what is written of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from envbuilder.bundle import install as placing
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.profiles import lock as lockfile
from envbuilder.profiles import profile as profiles
from tests.support.bundles import PROFILE, WHEEL, made_of, part, sha
from tests.support.tools import tools

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.bundle.contents import Part
    from envbuilder.bundle.format import Manifest
    from envbuilder.core.settings import Settings


def texts_of(*parts: Part) -> dict[str, bytes]:
    return {
        p.member.path: p.content
        for p in parts
        if p.member.kind in {"profile", "lock"} and isinstance(p.content, bytes)
    }


def second(settings: Settings, **changes: Any) -> tuple[Part, ...]:
    """The profile `other` and its lock, which has the files of `tiny`'s targets."""
    folder = settings.config_dir / "profiles"
    (folder / "other.yaml").write_text(PROFILE)
    lock = lockfile.load(folder / "locks" / "tiny.json")
    lock = msgspec.structs.replace(lock, profile="other", **changes)
    other = profiles.load("other", [folder])
    lock = msgspec.structs.replace(lock, inputs=lockfile.inputs_digest(other))
    text = lockfile.dump(lock).encode()
    return (
        part("profiles/other.yaml", PROFILE.encode(), "profile"),
        part("locks/other.json", text, "lock"),
    )


def test_the_files_of_all_profiles_are_known(parts: tuple[Part, ...], found: Settings) -> None:
    """What one profile needs belongs to the bundle, whichever profile comes last."""
    uv = b"another uv"
    newer = {
        p: msgspec.structs.replace(f, sha256=sha(uv), size=len(uv))
        for p, f in tools("0.13.9").items()
    }
    brought = part(f"files/{sha(uv)}", uv, "file")
    both = (*parts, *second(found, tools=newer), brought)
    for names in (("tiny", "other"), ("other", "tiny")):
        placing.check(made_of(both, profiles=names), texts_of(*both))
    with pytest.raises(InvalidError, match=r"locks/other\.json belongs to none .*\(tiny\)"):
        placing.check(made_of(both), texts_of(*both))
    without_uv = tuple(p for p in both if p is not brought)
    with pytest.raises(InvalidError, match="lacks files of its profile 'other'"):
        placing.check(made_of(without_uv, profiles=("tiny", "other")), texts_of(*without_uv))


def test_files_have_the_size_that_their_lock_states(
    parts: tuple[Part, ...], manifest: Manifest
) -> None:
    placing.check(manifest, texts_of(*parts))
    resized = tuple(
        msgspec.structs.replace(m, size=m.size + 1) if m.sha256 == sha(WHEEL) else m
        for m in manifest.members
    )
    with pytest.raises(InvalidError, match=f"no lock of the bundle names its files/{sha(WHEEL)}"):
        placing.check(made_of((), members=resized), texts_of(*parts))


@pytest.mark.parametrize(
    "changes", [{"platforms": ("linux/arm64",)}, {"pythons": ("3.12",)}, {"platforms": ()}]
)
def test_a_bundle_has_the_files_of_a_target_it_is_for(
    changes: dict[str, Any], parts: tuple[Part, ...]
) -> None:
    with pytest.raises(InvalidError) as raised:
        placing.check(made_of(parts, **changes), texts_of(*parts))
    assert raised.value.message == "the bundle lacks files of its profile 'tiny'"
    assert raised.value.hint.startswith("It was not made by envbuilder bundle, or was changed.")


def test_nothing_is_left_of_a_check(
    parts: tuple[Part, ...],
    manifest: Manifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    placing.check(manifest, texts_of(*parts))
    with pytest.raises(InvalidError) as raised:
        placing.check(manifest, {**texts_of(*parts), "locks/tiny.json": b"garbage"})
    assert list(scratch.iterdir()) == []
    assert str(scratch) not in raised.value.message + raised.value.hint


# --- what is written


def changed(texts: dict[str, bytes], settings: Settings, *, force: bool = False) -> list[str]:
    drafts = placing.drafts(texts, settings, print, force=force)
    return [str(d.path.relative_to(settings.config_dir)) for d in drafts]


def test_only_what_differs_is_written(there: Settings) -> None:
    texts = {"profiles/a.yaml": b"a", "profiles/b.yaml": b"b", "locks/a.json": b"{}"}
    everything = ["profiles/a.yaml", "profiles/b.yaml", "profiles/locks/a.json"]
    assert changed(texts, there) == everything
    folder = there.config_dir / "profiles"
    folder.mkdir(parents=True)
    (folder / "a.yaml").write_bytes(b"a")
    assert changed(texts, there) == everything[1:]


def differing(path: Path, old: bytes, new: bytes, settings: Settings) -> list[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(old)
    shown: list[str] = []
    with pytest.raises(InvalidError) as raised:
        placing.drafts({f"profiles/{path.name}": new}, settings, shown.append, force=False)
    assert str(path) in raised.value.message
    (text,) = shown
    return text.splitlines()


def test_a_difference_is_shown_from_yours_to_the_bundles(there: Settings) -> None:
    path = there.config_dir / "profiles" / "a.yaml"
    assert differing(path, b"one\ntwo\n", b"one\nthree\n", there) == [
        f"--- {path}",
        "+++ the bundle's",
        "@@ -1,2 +1,2 @@",
        " one",
        "-two",
        "+three",
    ]
    assert differing(path, b"\xff\n", b"\xfe\xff\n", there)[3:] == ["-\ufffd", "+\ufffd\ufffd"]


def test_of_a_long_difference_the_beginning_is_shown(there: Settings) -> None:
    path = there.config_dir / "profiles" / "a.yaml"

    def lines(count: int) -> list[str]:
        return differing(path, b"", b"".join(b"%d\n" % n for n in range(count)), there)

    assert lines(37)[-1] == "+36"  # and three lines before it
    assert lines(38)[-2:] == ["+36", "… and 1 more lines"]
    assert lines(50)[-2:] == ["+36", "… and 13 more lines"]


def test_every_file_in_the_way_is_named(there: Settings) -> None:
    folder = there.config_dir / "profiles"
    folder.mkdir(parents=True)
    for name in "ab":
        (folder / f"{name}.yaml").write_bytes(b"mine")
    texts = {f"profiles/{name}.yaml": b"theirs" for name in "abc"}
    with pytest.raises(InvalidError) as raised:
        placing.drafts(texts, there, print, force=False)
    assert raised.value.message == (
        f"differs from the bundle's version: {folder}/a.yaml, {folder}/b.yaml"
    )
    assert changed(texts, there, force=True) == [f"profiles/{n}.yaml" for n in "abc"]


def test_a_lock_is_there_before_its_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr(placing.files, "save", lambda path, *_: written.append(path.name))
    names = ("b.yaml", "b.json", "a.yaml", "a.conda.json")
    placing.write(placing.Draft(path=tmp_path / name, content=b"") for name in names)
    assert written == ["b.json", "a.conda.json", "b.yaml", "a.yaml"]


def test_a_folder_that_cannot_be_written_to_says_which_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    draft = placing.Draft(path=tmp_path / "file" / "a.yaml", content=b"a")
    with pytest.raises(BuildError, match=r"/file/a\.yaml: cannot be written: ") as raised:
        placing.write([draft])
    assert raised.value.hint == "Set ENVBUILDER_CONFIG_DIR to a folder you can write to."
