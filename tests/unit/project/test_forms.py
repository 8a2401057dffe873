"""The files that requirements are read from, by their names."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest

from envbuilder.commands import init
from envbuilder.core import settings
from envbuilder.project import draft, forms, repository, variants
from envbuilder.project.forms import Form, form_of, read
from envbuilder.project.lines import Listed, parse_lenient, read_text
from tests.fuzz.texts import REPOSITORY as FUZZED
from tests.support.repositories import lay
from tests.support.requirement_projects import refusal, texts

GUIDE = Path(__file__).parents[3] / "docs/guides/your-own-project.md"
PYLOCK = 'lock-version = "1.0"\ncreated-by = "x"\npackages = []\n'


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("requirements.txt", "rich"),
        ("pyproject.toml", '[project]\nname = "x"\ndependencies = ["rich"]\n'),
        ("environment.yml", "dependencies: [{pip: [rich]}]"),
        ("conda/env.yaml", "dependencies: [{pip: [rich]}]"),
        ("setup.py", "setup(install_requires=['rich'])"),
        ("setup.cfg", "[options]\ninstall_requires = rich\n"),
        ("Pipfile", "[packages]\nrich = '*'\n"),
        ("Pipfile.lock", '{"default": {"rich": {}}}'),
        ("pixi.toml", "[pypi-dependencies]\nrich = '*'\n"),
        ("cog.yaml", "build: {python_packages: [rich]}"),
        ("pyproject.toml", "[project]\nname = 'x'\n[tool.pixi.dependencies]\nrich = '*'\n"),
        ("pyproject.toml", "[tool.poetry.dependencies]\nrich = '*'\n"),
    ],
)
def test_a_file_is_read_by_its_kind(tmp_path: Path, file: str, text: str) -> None:
    lay(tmp_path, {file: text})
    assert texts(read(tmp_path, file).requirements) == ["rich"]


@pytest.mark.parametrize(
    ("file", "files"),
    [
        ("setup.py", {"setup.py": "setup()", "setup.cfg": "[options]\ninstall_requires = six\n"}),
        ("a/r.txt", {"a/r.txt": "./ops\n-r more.txt\n", "a/more.txt": "six\n",
                     "a/ops/pyproject.toml": "[build-system]\nrequires = []\n",
                     "a/ops/setup.cfg": "[metadata]\nname = my-ops\n"}),
        ("a/r.txt", {"a/r.txt": "-e ./ops#egg=ops\n", "a/ops/setup.py": "setup(name='my-ops')\n"}),
        ("r.txt", {"r.txt": "-e .\n",
                   "pyproject.toml": '[project]\nname = "x"\ndynamic = ["dependencies"]\n'
                   '[tool.setuptools.dynamic]\ndependencies = { file = ["b/more.txt"] }\n',
                   "b/more.txt": "six\n"}),
        ("pyproject.toml", {
            "pyproject.toml": '[project]\nname = "x"\ndependencies = ["y"]\n'
            '[tool.uv]\nsources.y.workspace = true\nworkspace.members = ["packages/*"]\n',
            "packages/b/pyproject.toml": '[project]\nname = "y"\n',
        }),
    ],
)  # fmt: skip
def test_all_files_that_decide_are_recorded(
    tmp_path: Path, file: str, files: dict[str, str]
) -> None:
    """With them alone, as in a bundle, the same is read."""
    first = tmp_path / "first"
    lay(first, {**files, "unread.txt": "attrs"})
    listed = read(first, file)
    assert listed.read_from == tuple(sorted(files))
    copy = tmp_path / "copy"
    lay(copy, {name: (first / name).read_text() for name in listed.read_from})
    assert read(copy, file) == listed


@pytest.mark.parametrize("name", forms.supported().split(", "))
def test_help_and_guide_name_each_kind(name: str) -> None:
    assert name in str(init.command.help)
    assert name in GUIDE.read_text()


def test_every_form_is_fuzzed() -> None:
    fuzzed = {form.read for name in FUZZED if (form := form_of(PurePosixPath(name).name))}
    assert fuzzed == {form.read for form in forms.FORMS}


def test_a_form_is_a_row_and_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_wishes(project: Path, file: str) -> Listed:
        return Listed(requirements=(parse_lenient(read_text(project, file), file)[0],))

    row = Form(names="wishes.md", pattern=r"wishes\.md", read=read_wishes)
    monkeypatch.setattr(forms, "FORMS", (*forms.FORMS, row))
    lay(tmp_path, {"below/wishes.md": "rich>=13", "README.md": "Optional: `pip install x`"})
    files = [*repository.files(tmp_path)]
    choice = draft.choose(tmp_path, files, repository.install_hints(tmp_path, files))
    lay(tmp_path, {"envbuilder.yaml": draft.text(choice, draft.Draft())})
    project = variants.of_project(settings.load({}, tmp_path))
    assert project
    assert texts(project.contents.requirements) == ["rich>=13"]
    assert refusal(tmp_path, "x.toml")[1].endswith(", wishes.md.")
    loader = init.__spec__ and init.__spec__.loader
    assert loader
    again = ModuleType(init.__name__)
    loader.exec_module(again)
    assert "(PEP 723), wishes.md;" in again.command.help


def test_locks_are_read_by_their_kind(tmp_path: Path) -> None:
    lay(tmp_path, {"pylock.toml": PYLOCK, "pylock.gpu.toml": PYLOCK, "uv.lock": "version = 3\n"})
    for name in ("pylock.toml", "pylock.gpu.toml"):
        assert read(tmp_path, name).notes == (f"{name}: the file lists no requirements.",)
    assert "version 3 of uv's lock format" in refusal(tmp_path, "uv.lock")[0]


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        ("poetry.lock", "pyproject.toml"),
        ("pixi.lock", "List pixi.toml."),
        ("other.toml", "Supported are uv.lock, pylock.toml, requirements.txt"),
        ("requirements", "Supported are"),
        ("x\x1b[2J.toml", "Supported are"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, file: str, hint: str) -> None:
    lay(tmp_path, {file: "rich"})
    message, next_step = refusal(tmp_path, file)
    assert message.endswith(": envbuilder does not read requirements from this kind of file")
    assert hint in next_step
    assert not form_of(file)


@pytest.mark.parametrize("file", ["requirements.txt", "environment.yml"])
def test_files_without_extras_and_groups(tmp_path: Path, file: str) -> None:
    lay(tmp_path, {file: ""})
    message = f"{file}: this kind of file has no "
    assert refusal(tmp_path, file, ["a"]) == (f"{message}extras", "Remove extras: a.")
    assert refusal(tmp_path, file, (), ["a"]) == (f"{message}groups", "Remove groups: a.")


@pytest.mark.parametrize("file", ["requirement.txt", "uv.lock", "missing/../../uv.lock"])
def test_a_missing_file(tmp_path: Path, file: str) -> None:
    hint = "Write the path relative to the file that names it."
    assert refusal(tmp_path, file) == (f"{file}: no such file", hint)


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml", "uv.lock", "pylock.toml"])
def test_nothing_outside_the_project_is_read(tmp_path: Path, name: str) -> None:
    project = tmp_path / "project"
    lay(tmp_path, {"secret.txt": "secret", "outside/x.txt": "secret", name: "secret"})
    lay(project, {"real.txt": "rich\n"})
    (project / "folder").symlink_to(tmp_path / "outside")
    (project / name).symlink_to("../secret.txt")
    for file in (name, f"../{name}", str(tmp_path / name), "folder/x.txt"):
        message, hint = refusal(project, file)
        assert message == f"{file} is outside the project"
        assert hint == "Copy the file into the project, and name the copy."


def test_a_file_that_others_can_write_is_not_read(tmp_path: Path) -> None:
    lay(tmp_path, {"requirements.txt": "-r more/b.txt", "more/b.txt": "rich"})
    assert texts(read(tmp_path, "requirements.txt").requirements) == ["rich"]
    (tmp_path / "more/b.txt").chmod(0o666)
    message, hint = refusal(tmp_path, "requirements.txt")
    assert "more/b.txt is writable by every user" in message
    assert "ENVBUILDER_TRUSTED_FOLDERS" in hint


def test_links_inside_the_project_are_read(tmp_path: Path) -> None:
    lay(tmp_path, {"project/real/a.txt": "rich\n"})
    (tmp_path / "link").symlink_to("project")
    (tmp_path / "project/b.txt").symlink_to("real/a.txt")
    assert texts(read(tmp_path / "link", "b.txt").requirements) == ["rich"]


def test_what_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").mkdir()
    os.mkfifo(tmp_path / "b.txt")
    (tmp_path / "c.txt").symlink_to("c.txt")
    for file in ("a.txt", "b.txt", "c.txt", "d\0.txt", f"{'e' * 300}.txt"):
        assert "cannot be read: " in refusal(tmp_path, file)[0]


def test_what_a_source_shows_in_its_text(tmp_path: Path) -> None:
    code = "from setuptools import setup\nsetup(name='tiny', install_requires=['six>=1'])\n"
    folder = lay(tmp_path / "plain", {"setup.py": code})
    assert forms.shown(folder) == ("tiny", "", ("six>=1",))
    stated = code.replace("name='tiny'", "name='tiny', version='1.2'")
    assert forms.shown(lay(tmp_path / "stated", {"setup.py": stated})) == (
        "tiny",
        "1.2",
        ("six>=1",),
    )
    assert forms.shown(lay(tmp_path / "none", {"setup.py": "def ("})) is None
