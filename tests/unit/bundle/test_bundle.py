"""Bundles: the same bytes for the same content, and nothing in them is trusted before its hash."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envbuilder.builds import mnist
from envbuilder.bundle import contents, format as form
from envbuilder.bundle.format import Part
from envbuilder.core import signatures
from envbuilder.core.errors import EnvbuilderError, InvalidError
from envbuilder.core.settings import Configuration, Settings, Signatures
from envbuilder.packages.conda import lock as conda_lockfile
from envbuilder.packages.store import Store
from envbuilder.payload.training.dataset import MNIST_SHA256
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.library import LOCK_TYPE, Library
from tests.support import conda_locks, signing
from tests.support.bundles import QUIET, WHEEL, made_of, part, sha, unpack
from tests.support.tools import tools


@pytest.fixture
def library(found: Settings) -> Library:
    return Library([found.config_dir / "profiles"])


def test_each_platform_gets_its_tools_even_without_a_target(
    parts: tuple[Part, ...], library: Library
) -> None:
    """A Mac builds the image for Linux."""
    (one,) = contents.select(["tiny"], ["linux/amd64", "macos/arm64"], [], library)
    assert [t.platform for t in one.targets] == ["linux/amd64"]
    assert [f.file for f in one.tools] == [
        tools()[p].file for p in ("linux/amd64", "macos/arm64")
    ]  # fmt: skip


# --- taking it in


def test_everything_gets_to_its_place(bundle: Path, there: Settings, found: Settings) -> None:
    taken = unpack(bundle, there)
    assert (taken.new, taken.present) == (3, 0)
    assert Store(there.store_dir).path(sha(WHEEL)).read_bytes() == WHEEL
    for name in ("tiny.yaml", "_mine.yaml", "locks/tiny.json"):
        mine = there.config_dir / "profiles" / name
        assert mine.read_bytes() == (found.config_dir / "profiles" / name).read_bytes()
    assert len(taken.written) == 3
    again = unpack(bundle, there)
    assert (again.new, again.present, again.written) == (0, 3, ())


def test_a_damaged_file_of_the_store_is_replaced(bundle: Path, there: Settings) -> None:
    unpack(bundle, there)
    stored = Store(there.store_dir).path(sha(WHEEL))
    stored.chmod(0o644)
    stored.write_bytes(b"damaged")
    assert unpack(bundle, there).new == 1
    assert stored.read_bytes() == WHEEL


def test_mnist_goes_into_its_cache(
    parts: tuple[Part, ...], there: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "t10k-labels-idx1-ubyte"
    monkeypatch.setitem(MNIST_SHA256, name, sha(b"digits"))
    parts = (*parts, part(f"datasets/mnist/{name}", b"digits", "dataset"))
    path = tmp_path / "with.tar"
    form.write(path, made_of(parts), parts, QUIET)
    assert not mnist.has(name, there)
    assert unpack(path, there).new == 4
    assert mnist.has(name, there)
    assert unpack(path, there).new == 0


@pytest.mark.parametrize("which", ["tiny.yaml", "_mine.yaml", "locks/tiny.json"])
def test_files_of_the_user_are_kept(which: str, bundle: Path, there: Settings) -> None:
    mine = there.config_dir / "profiles" / which
    mine.parent.mkdir(parents=True)
    mine.write_text("mine: 1\n")
    with pytest.raises(InvalidError, match="files differ from the bundle") as caught:
        unpack(bundle, there)
    assert "--force" in caught.value.hint
    assert mine.read_text() == "mine: 1\n"
    assert not Store(there.store_dir).has(sha(WHEEL))
    assert mine in [d.path for d in unpack(bundle, there, force=True).written]
    assert unpack(bundle, there).written == ()


def test_a_projects_own_files_are_never_changed(
    bundle: Path, there: Settings, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    (project / "profiles").mkdir(parents=True)
    own_file = project / "profiles/tiny.yaml"
    own_file.write_text("mine: 1\n")
    inside = msgspec.structs.replace(there, project=project)
    with pytest.raises(InvalidError, match=r"project.profiles.tiny\.yaml") as caught:
        unpack(bundle, inside, force=True)
    assert "outside the project" in caught.value.hint
    assert own_file.read_text() == "mine: 1\n"


def test_shipped_profiles_that_are_the_same_are_not_written(there: Settings) -> None:
    shipped = profiles.search_path(None, there.config_dir)
    wanted = contents.select(["cpu"], ["linux/amd64"], [], Library(shipped))
    texts = contents.texts(wanted, Library(shipped))
    extended = {"_cpu.yaml", "_slim.yaml", "_defaults.yaml"}
    assert {p.member.name for p in texts} == {"cpu.yaml", *extended, "cpu.json"}
    found = {p.member.path: p.content for p in texts}
    assert contents.drafts(found, there, force=False) == ()  # type: ignore[arg-type]
    other = {"profiles/cpu.yaml": b"other"}
    (draft,) = contents.drafts(other, there, force=False)
    assert draft.path == there.config_dir / "profiles/cpu.yaml"
    assert "shipped" in draft.why


LOCK_OF_OTHER = b'{"schema": 1, "profile": "other"}'


@pytest.mark.parametrize(
    ("path", "content", "kind", "why"),
    [
        (
            "profiles/other.yaml",
            b"garbage: [",
            "profile",
            "contains profiles/other.yaml, which belongs to none",
        ),
        (
            "profiles/cpu.yaml",
            b"extends: tiny\n",
            "profile",
            "contains profiles/cpu.yaml, which belongs to none",
        ),
        ("locks/other.json", LOCK_OF_OTHER, "lock", "locks/other.json, which belongs to none"),
        ("locks/tiny.conda.json", b"garbage", "lock", "not a lock"),
        (f"files/{sha(b'more')}", b"more", "file", "no lock in the bundle lists files/"),
        (f"bases/{'a' * 64}-linux-amd64.json", b"{}", "base", "bases/"),
    ],
)
def test_what_the_manifest_does_not_speak_of_is_refused_before_anything_is_taken_in(
    path: str,
    content: bytes,
    kind: Any,
    why: str,
    parts: tuple[Part, ...],
    there: Settings,
    tmp_path: Path,
) -> None:
    more = (*parts, part(path, content, kind))
    bundle = tmp_path / "more.tar"
    form.write(bundle, made_of(more), more, QUIET)
    with pytest.raises(InvalidError, match=re.escape(why)):
        unpack(bundle, there)
    assert not there.config_dir.parent.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tiny.yaml", b"garbage: ["),
        ("tiny.yaml", b"a: &a [*a]\n"),
        ("tiny.json", LOCK_OF_OTHER),
        ("_mine.yaml", b"!!python/object/apply:os.system [id]\n"),
    ],
)
def test_profiles_and_locks_are_read_before_anything_is_taken_in(
    name: str, content: bytes, parts: tuple[Part, ...], there: Settings, tmp_path: Path
) -> None:
    other = tuple(
        part(p.member.path, content, p.member.kind) if p.member.name == name else p for p in parts
    )
    bundle = tmp_path / "other.tar"
    form.write(bundle, made_of(other), other, QUIET)
    with pytest.raises(InvalidError) as caught:
        unpack(bundle, there)
    folder = "locks" if name.endswith(".json") else "profiles"
    assert caught.value.message.startswith(f"the bundle's {folder}/{name}:")
    assert not there.config_dir.parent.exists()


def conda_lock(found: Settings, **changes: Any) -> conda_lockfile.Lock:
    """A conda lock of `tiny` beside its other one."""
    folder = found.config_dir / "profiles"
    tiny = profiles.load("tiny", [folder])
    lock = conda_locks.lock_of(tiny, conda_locks.package("python", "3.11.9"))
    lock = msgspec.structs.replace(lock, **changes)
    (folder / "locks/tiny.conda.json").write_text(conda_lockfile.dump(lock))
    return lock


def test_a_conda_lock_and_its_packages_go_along(
    parts: tuple[Part, ...], found: Settings, there: Settings, tmp_path: Path, library: Library
) -> None:
    lock = conda_lock(found)
    Store(found.store_dir).take(sha(b"python"), [b"python"])
    wanted = contents.select(["tiny"], ["linux/amd64"], [], library)
    assert wanted[0].conda == lock.targets
    locked = contents.locked_files(wanted, found, QUIET)
    with_conda = (
        *contents.texts(wanted, library),
        *contents.of_files(locked, found, []),
        part("wheels/envbuilder_ml-1-py3-none-any.whl", b"itself", "wheel"),
    )
    assert len(with_conda) == len(parts) + 2
    path = tmp_path / "conda.tar"
    form.write(path, made_of(with_conda), with_conda, QUIET)
    unpack(path, there)
    assert Store(there.store_dir).sound(sha(b"python"))
    placed = there.config_dir / "profiles/locks/tiny.conda.json"
    assert conda_lockfile.load(placed) == lock


def test_a_stale_conda_lock_is_neither_packed_nor_taken_in(
    parts: tuple[Part, ...], found: Settings, there: Settings, tmp_path: Path, library: Library
) -> None:
    stale = conda_lock(found, inputs="0" * 64)
    with pytest.raises(InvalidError, match="conda lock of 'tiny' is stale"):
        contents.select(["tiny"], ["linux/amd64"], [], library)
    text = conda_lockfile.dump(stale).encode()
    evil = (*parts, part("locks/tiny.conda.json", text, "lock"))
    path = tmp_path / "stale.tar"
    form.write(path, made_of(evil), evil, QUIET)
    with pytest.raises(InvalidError, match="conda lock of 'tiny' is stale"):
        unpack(path, there)
    assert not there.store_dir.exists()


def test_what_is_asked_for_must_be_there(parts: tuple[Part, ...], library: Library) -> None:
    with pytest.raises(InvalidError, match=r"does not support linux/arm64"):
        contents.select(["tiny"], ["linux/arm64"], [], library)
    with pytest.raises(InvalidError, match=r"no files for linux/amd64 with Python 3\.12"):
        contents.select(["tiny"], ["linux/amd64"], ["3.12"], library)
    with pytest.raises(InvalidError, match="unknown profile"):
        contents.select(["tiy"], ["linux/amd64"], [], library)


# --- signatures


def signed(path: Path, digest: str, key: Path, kind: str = form.SIGNED_TYPE) -> Path:
    statement = signatures.make_statement([signatures.Subject(digest={"sha256": digest})], kind, {})
    return signatures.write_signatures(
        signatures.path_beside(path), statement, signing.read_key(key)
    )


def requiring(there: Settings, key: Path) -> Settings:
    stated = Configuration(signatures=Signatures(bundles=(str(key.with_suffix(".pub")),)))
    return msgspec.structs.replace(there, configuration=stated)


def test_a_bundle_that_must_be_signed(
    bundle: Path, parts: tuple[Part, ...], there: Settings, tmp_path: Path
) -> None:
    key, other = (signing.lay_key(tmp_path / name) for name in ("key.pem", "other.pem"))
    strict = requiring(there, key)
    with form.opened(bundle) as reader:
        digest = reader.digest

    def refused(error: type[EnvbuilderError]) -> None:
        with pytest.raises(error, match=re.escape(f"{bundle}: ")):
            unpack(bundle, strict)
        assert not there.config_dir.exists()
        assert not there.cache_dir.exists()

    refused(signatures.UnsignedError)
    signed(bundle, digest, other)
    refused(signatures.UnknownKeyError)
    signed(bundle, digest, key, "urn:envbuilder:lock:v1")
    refused(signatures.WrongTypeError)
    signed(bundle, digest, key)
    more = (*parts, part("wheels/more-1-py3-none-any.whl", b"more", "wheel"))
    form.write(bundle, made_of(more), more, QUIET)  # another bundle of the same name
    refused(signatures.OtherSubjectError)
    form.write(bundle, made_of(parts), parts, QUIET)
    taken = unpack(bundle, strict)
    assert taken.signed.keyid == signing.read_key(key).public.id
    assert unpack(bundle, there).signed is None


def test_the_signature_of_a_lock_travels_with_it(
    found: Settings, there: Settings, parts: tuple[Part, ...], tmp_path: Path, library: Library
) -> None:
    folder = found.config_dir / "profiles"
    key = signing.lay_key(tmp_path / "key.pem")
    lock = folder / "locks/tiny.json"
    signed(lock, sha(lock.read_bytes()), key, LOCK_TYPE)
    wanted = contents.select(["tiny"], ["linux/amd64"], [], library)
    texts = contents.texts(wanted, library)
    assert [p.member.path for p in texts if p.member.kind == "lock"] == [
        "locks/tiny.json",
        "locks/tiny.json.intoto.jsonl",
    ]
    others = tuple(p for p in parts if p.member.kind not in {"profile", "lock"})
    path = tmp_path / "signed.tar"
    form.write(path, made_of((*texts, *others)), (*texts, *others), QUIET)
    unpack(path, there)
    library = Library([there.config_dir / "profiles"], [str(key.with_suffix(".pub"))])
    library.usable_lock(library.profile("tiny"))
    assert len(library.signed) == 1
    # What is no signature is not taken in, and none without its lock.
    for name, content in (("tiny", b"{}"), ("none", texts[-1].content)):
        wrong = part(f"locks/{name}.json.intoto.jsonl", content, "lock")
        listed = tuple(p for p in (*texts, *others) if p.member.path != wrong.member.path)
        form.write(path, made_of((*listed, wrong)), (*listed, wrong), QUIET)
        with pytest.raises(InvalidError):
            unpack(path, there)
