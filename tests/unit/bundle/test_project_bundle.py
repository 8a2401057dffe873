"""Bundles of a project's environment: what is in them, what is refused, and what differs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from envbuilder.bundle import contents, format as form
from envbuilder.bundle.format import Manifest, Part
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import Settings, load as load_settings
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.packages.sources import source
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.library import Library
from envbuilder.profiles.lock import BUILT, File, Recipe
from envbuilder.project import variants
from tests.support import conda_locks, repositories
from tests.support.bundles import (
    PARENT,
    PROFILE,
    QUIET,
    WHEEL,
    made_of,
    part,
    read,
    sha,
    small_lock,
    texts_of,
    unpack,
)

STATED = "requirements_from: [reqs/base.txt]\nprofiles: [small]\n"
FILES = {
    "envbuilder.yaml": STATED,
    "reqs/base.txt": "-r ../more.txt\n",
    "more.txt": "rich>=13\n",
    "profiles/_mine.yaml": PARENT,
    "profiles/small.yaml": PROFILE,
    "unread.txt": "no part of the environment\n",
    "train.py": "print('hello')\n",
}
LOCK = "envbuilder.lock/default.small.json"


def lay(folder: Path, **changes: str) -> Settings:
    """A project, and the settings of a command in it on a machine of its own."""
    repositories.lay(folder, {**FILES, **changes})
    home = folder.parent / f"home-of-{folder.name}"
    variables = {f"ENVBUILDER_{n}_DIR": str(home / n.lower()) for n in ("CONFIG", "CACHE", "DATA")}
    return load_settings(variables, folder)


def lock(settings: Settings) -> None:
    """Write the project's lock, and put its wheel into the store."""
    library = variants.library(settings)
    project = variants.of_project(settings)
    made = small_lock("small", library.profile("small"), settings)
    path = project.lock_path("small")
    path.parent.mkdir(exist_ok=True)
    path.write_text(profile_lock.dump(made))


def parts_of(settings: Settings) -> tuple[Part, ...]:
    """What a bundle of the project holds, without envbuilder itself."""
    library = variants.library(settings)
    project = variants.of_project(settings)
    selection = contents.select(["small"], ["linux/amd64"], [], library)
    locked = contents.locked_files(selection, settings, QUIET)
    texts = contents.texts(selection, library, project, settings.project)
    return (*texts, *contents.of_files(locked, settings, []))


def manifest_of(parts: tuple[Part, ...], **changes: object) -> Manifest:
    stated = {"schema": 3, "environment": "default", "profiles": ("small",), **changes}
    return made_of(parts, **stated)


@pytest.fixture
def project_parts(tmp_path: Path) -> tuple[Part, ...]:
    settings = lay(tmp_path / "mine")
    lock(settings)
    return parts_of(settings)


@pytest.fixture
def project_bundle(project_parts: tuple[Part, ...], tmp_path: Path) -> Path:
    path = tmp_path / "small.tar"
    form.write(path, manifest_of(project_parts), project_parts, QUIET)
    return path


def test_a_lock_may_be_larger_than_what_is_written_by_hand(tmp_path: Path) -> None:
    settings = lay(tmp_path / "mine")
    lock(settings)
    path = tmp_path / "mine" / LOCK
    path.write_text(path.read_text() + "\n" * (1 << 20))
    assert f"project/{LOCK}" in {part.member.path for part in parts_of(settings)}


def test_it_holds_what_the_environment_is_read_from_and_no_more(project_bundle: Path) -> None:
    held = read(project_bundle)
    assert {path for path in held if path.startswith("project/")} == {
        "project/envbuilder.yaml", "project/reqs/base.txt", "project/more.txt", f"project/{LOCK}",
    }  # fmt: skip
    assert held["project/reqs/base.txt"] == b"-r ../more.txt\n"
    assert {path for path in held if path.startswith("profiles/")} == {
        "profiles/_mine.yaml", "profiles/small.yaml",
    }  # fmt: skip
    assert f"files/{sha(WHEEL)}" in held
    # The profile itself was never locked, and need not be.
    assert not [path for path in held if path.startswith("locks/")]


def test_it_fits_a_project_with_a_source_whose_files_it_has_as_an_archive(tmp_path: Path) -> None:
    """What names the package is there, the rest of its folder is not."""
    line = "-e ./ops#egg=tiny\n"
    project = '[project]\nname = "tiny"\n'
    files = {"reqs/base.txt": line, "reqs/ops/pyproject.toml": project, "reqs/ops/x.py": "1\n"}
    settings = lay(tmp_path / "mine", **files)
    lock(settings)
    path = tmp_path / "mine" / LOCK
    made = profile_lock.load(path)
    (ops,) = variants.library(settings).profile("small").resolution.sources
    assert ops.location == "./reqs/ops"
    recipe = Recipe(kind="path", location=ops.location, sha256=ops.digest)
    target = made.targets[0]
    file = replace(target.files[0], source=BUILT, recipe=recipe)
    made = replace(made, targets=(replace(target, files=(file, *target.files[1:])),))
    path.write_text(profile_lock.dump(made))
    parts = parts_of(settings)
    texts = texts_of(*parts)
    assert "project/reqs/ops/pyproject.toml" in texts
    assert "project/reqs/ops/x.py" not in texts
    contents.check(manifest_of(parts), texts)
    (tmp_path / "mine/reqs/ops/x.py").write_text("2\n")
    with pytest.raises(InvalidError, match=r"\./reqs/ops changed after it was made"):
        parts_of(settings)


def test_a_fresh_lock_of_the_profile_goes_along(tmp_path: Path) -> None:
    settings = lay(tmp_path / "mine")
    lock(settings)
    folder = tmp_path / "mine/profiles"
    (folder / "locks").mkdir()
    library = Library([folder])
    made = profile_lock.load(tmp_path / "mine" / LOCK)
    fresh = profile_lock.inputs_digest(library.profile("small"))
    path = folder / "locks/small.json"
    path.write_text(profile_lock.dump(replace(made, inputs=fresh)))
    parts = parts_of(settings)
    assert "locks/small.json" in texts_of(*parts)
    contents.check(manifest_of(parts), texts_of(*parts))
    path.write_text(profile_lock.dump(made))  # which is stale: that of the variant
    assert "locks/small.json" not in texts_of(*parts_of(settings))
    texts = {**texts_of(*parts), "locks/small.json": path.read_bytes()}
    with pytest.raises(InvalidError, match="is stale"):
        contents.check(manifest_of(parts), texts)


def test_a_clone_builds_from_it_and_no_file_of_it_changes(
    project_bundle: Path, tmp_path: Path
) -> None:
    there = lay(tmp_path / "clone")
    before = {p: p.read_bytes() for p in (tmp_path / "clone").rglob("*") if p.is_file()}
    taken = unpack(project_bundle, there)
    assert taken.manifest.environment == "default"
    assert Store.of(there).sound(sha(WHEEL))
    # The clone has these profiles, so none is written; it lacks the lock.
    assert taken.written == ()
    assert taken.differences == (LOCK,)
    after = {p: p.read_bytes() for p in (tmp_path / "clone").rglob("*") if p.is_file()}
    assert after == before
    (tmp_path / "clone" / LOCK).parent.mkdir()
    (tmp_path / "clone" / LOCK).write_bytes(read(project_bundle)[f"project/{LOCK}"])
    assert unpack(project_bundle, there).differences == ()
    library = variants.library(there)
    assert library.usable_lock(library.profile("small")).state == "locked"
    (tmp_path / "clone" / LOCK).write_text("{}")
    assert unpack(project_bundle, there).differences == (LOCK,)


def test_outside_of_the_project_nothing_is_compared(project_bundle: Path, tmp_path: Path) -> None:
    elsewhere = replace(lay(tmp_path / "clone"), project=None, definition=None)
    taken = unpack(project_bundle, elsewhere)
    assert taken.differences == ()
    assert {d.path.name for d in taken.written} == {"_mine.yaml", "small.yaml"}


def test_conda_packages_go_along(tmp_path: Path) -> None:
    text = "requirements_from: [environment.yml]\nprofiles: [small]\nexclude: [tiny-lib]\n"
    environment = "channels: [conda-forge]\ndependencies: [tiny-lib]\n"
    parent = PARENT.replace("[venv]", "[venv, conda]")
    changes = {"envbuilder.yaml": text, "environment.yml": environment}
    settings = lay(tmp_path / "mine", **changes, **{"profiles/_mine.yaml": parent})
    lock(settings)
    packages = conda_locks.package("python", "3.11.2"), conda_locks.package("tiny-lib")
    made = conda_locks.lock_of(variants.library(settings).profile("small"), *packages)
    beside = conda_lock.beside(tmp_path / "mine" / LOCK)
    beside.write_text(conda_lock.dump(made))
    for package in packages:
        Store.of(settings).take(package.sha256, [package.name.encode()])
    parts = parts_of(settings)
    assert f"project/{beside.relative_to(tmp_path / 'mine')}" in texts_of(*parts)
    assert {f"files/{p.sha256}" for p in packages} <= {p.member.path for p in parts}
    contents.check(manifest_of(parts), texts_of(*parts))


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("project/more.txt", b"rich>=14\n", "the lock of 'small' is stale"),
        ("project/more.txt", None, "no such file"),
        ("project/more.txt", b"-r ../../../etc/hosts\n", "outside the project|no such file"),
        ("project/unread.txt", b"x", "project/unread.txt, which belongs to none of its profiles"),
        ("project/envbuilder.yaml", b"profile: small\n", "lists no requirements"),
        (f"project/{LOCK}", b"{}", "the bundle's project/envbuilder.lock/default.small.json"),
        ("project/envbuilder.lock/other.small.json", b"{}", "which belongs to none"),
        (f"project/{LOCK}.intoto.jsonl", b"x", "jsonl"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    project_parts: tuple[Part, ...], path: str, text: bytes | None, words: str
) -> None:
    texts = {k: v for k, v in texts_of(*project_parts).items() if k != path}
    if text is not None:
        texts[path] = text
    with pytest.raises(InvalidError, match=words) as raised:
        contents.check(manifest_of(project_parts), texts)
    assert "/envbuilder-bundle-" not in raised.value.message


def test_another_environment_than_that_of_the_locks_is_refused(
    project_parts: tuple[Part, ...],
) -> None:
    with pytest.raises(InvalidError, match="no environment 'test'"):
        contents.check(manifest_of(project_parts, environment="test"), texts_of(*project_parts))


def test_a_url_with_credentials_is_not_passed_on(tmp_path: Path) -> None:
    secret = "indexes: {pytorch-cpu: 'https://me:hunter2@index.example/whl'}\n"
    settings = lay(tmp_path / "mine", **{"envbuilder.yaml": STATED + secret})
    lock(settings)
    with pytest.raises(InvalidError) as raised:
        parts_of(settings)
    assert raised.value.message == (
        "envbuilder.yaml:3: indexes.pytorch-cpu: the URL contains credentials, which the bundle"
        " would share"
    )


SECRET = "hunter2hunter2"
URL = f"https://me:{SECRET}@index.example/simple"


@pytest.mark.parametrize(
    ("file", "text", "where"),
    [
        (
            "pyproject.toml",
            f'[project]\nname = "x"\n\n[[tool.uv.index]]\nurl = "{URL}"\n',
            "pyproject.toml:5",
        ),
        (
            "profiles/_mine.yaml",
            f"{PARENT}# {URL}\n",
            f"profiles/_mine.yaml:{PARENT.count(chr(10)) + 1}",
        ),
        ("envbuilder.yaml", f"{STATED}environment: {{HF_TOKEN: {SECRET}}}\n", "envbuilder.yaml:3"),
    ],
)
def test_no_text_with_a_credential_is_packed(
    file: str, text: str, where: str, tmp_path: Path
) -> None:
    stated = STATED.replace("base.txt", "base.txt, pyproject.toml")
    more = {"pyproject.toml": '[project]\nname = "x"\n', "envbuilder.yaml": stated}
    settings = lay(tmp_path / "mine", **{**more, file: text})
    lock(settings)
    with pytest.raises(InvalidError) as raised:
        parts_of(settings)
    assert raised.value.message.startswith(f"{where}: would share a credential (")
    assert SECRET not in f"{raised.value.message} {raised.value.hint}"


def test_no_folder_with_a_credential_is_packed(tmp_path: Path) -> None:
    settings = lay(
        tmp_path / "mine", **{"ops/pyproject.toml": f'[[tool.uv.index]]\nurl = "{URL}"\n'}
    )
    recipe = source.of_path(source.located("./ops"), settings)
    file = File(
        name="ops",
        version="1",
        kind="source",
        file="ops.tar",
        sha256=recipe.sha256,
        size=None,
        source=BUILT,
        provenance="read",
        by="a test",
        recipe=recipe,
    )
    with pytest.raises(
        InvalidError, match=r"^./ops/pyproject.toml:2: would share a credential"
    ) as raised:
        contents.of_files([file], settings, ())
    assert SECRET not in raised.value.message


def test_a_manifest_states_a_project_if_and_only_if_it_has_one(
    project_parts: tuple[Part, ...],
) -> None:
    selection: tuple[contents.Selection, ...] = ()
    made = contents.manifest(selection, project_parts, (), "default")
    assert (made.schema, made.environment) == (3, "default")
    for environment, some in ((None, project_parts), ("default", ())):
        with pytest.raises(InvalidError, match="contradict each other"):
            contents.manifest(selection, some, (), environment)
    plain = contents.manifest(selection, (part("wheels/a.whl", b"", "wheel"),), ())
    assert plain.schema == 2
    assert "environment" not in msgspec.to_builtins(plain)
