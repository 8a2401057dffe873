"""A repository's own code: what it imports, and which of its files is its program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from envbuilder.project import code, repository
from tests.support.repositories import lay, notebook

GUARD = 'def main(): ...\n\nif __name__ == "__main__":\n    main()\n'


@pytest.mark.parametrize(
    ("files", "shown", "expected"),
    [
        ({}, (), ()),
        ({"a.py": GUARD, "test_a.py": GUARD, "setup.py": "", "conftest.py": ""}, (), ("a.py",)),
        ({"train.py": "", "evaluate.py": GUARD, "sample.py": GUARD}, (), ("train.py",)),
        ({"thing/__main__.py": "", "main.py": GUARD}, (), ("main.py",)),
        ({"a.py": GUARD, "b.py": GUARD}, (), ()),
        ({"a.py": GUARD, "b.py": GUARD}, (("gone.py",), ("./b.py",)), ("b.py",)),
        ({"download_models.py": GUARD, "prepare_data.py": ""}, (("download_models.py",),), ()),
        ({"a/run/go.py": "", "b.py": ""}, (("-m", "venv"), ("-m", "a.run.go")), ("-m", "a.run.go")),
        ({"thing/__main__.py": "", "thing/model.py": ""}, (), ("-m", "thing")),
        ({"one/__main__.py": "", "two/__main__.py": ""}, (), ()),
    ],
)
def test_the_program(
    tmp_path: Path,
    files: dict[str, str],
    shown: tuple[tuple[str, ...], ...],
    expected: tuple[str, ...],
) -> None:
    lay(tmp_path, files)
    found = [*repository.files(tmp_path)]
    assert code.program_arguments(tmp_path, found, shown) == expected


def imported(folder: Path, *programs: Sequence[str], all_start: bool = False) -> dict[str, str]:
    """Return the modules that a repository's code imports → the file, with ! for those at start."""
    files = [*repository.files(folder)]
    uses = code.imports(folder, files, programs, all_start=all_start)
    return {name: "!" * use.at_start + use.file for name, use in uses.items()}


def test_imports_of_others_without_the_standard_library_and_its_own(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "train.py": "import os, cv2\nfrom lib.nets import x\nfrom . import y\nimport helper\n",
            "lib/nets.py": "def f():\n    import einops.layers, cv2\n",
            "tools/helper.py": "from yaml import safe_load\n",
            "tests/test_x.py": "import pytest\n",
            "noxfile.py": "import nox\n",
            "old.py": "print 'two'\nimport six\n",
            "deep.py": f"x = {'(' * 5000}1{')' * 5000}\n",
            "nul.py": "import nul\0\n",
        },
    )
    found = imported(tmp_path)
    assert next(iter(found)) == "cv2"
    assert found == {"cv2": "!train.py", "einops": "lib/nets.py", "yaml": "tools/helper.py"}


def test_what_a_program_cannot_start_without(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "train.py": "import a1, pkg.sub.x\nfrom pkg import net\nif True:\n    import later\n"
            "try:\n    import maybe\nexcept ImportError:\n    pass\n",
            "pkg/__init__.py": "import a2\n",
            "pkg/net.py": "from .blocks import b\nfrom ..top import c\n",
            "pkg/blocks.py": "import a3, a1\n",
            "pkg/sub/x.py": "import a4\n",
            "top.py": "import a5\n",
            "pkg/unused.py": "import b1\n",
            "src/thing/go.py": "from thing import rest\n",
            "src/thing/rest.py": "import a6\n",
            "examples/show.py": "import b2, a1\n",
            "plot.ipynb": notebook("import b3"),
        },
    )
    found = imported(tmp_path, ("-m", "src.thing.go"))
    assert {name: file for name, file in found.items() if file[0] == "!"} == {
        "a1": "!train.py",
        "a2": "!pkg/__init__.py",
        "a3": "!pkg/blocks.py",
        "a4": "!pkg/sub/x.py",
        "a5": "!top.py",
        "a6": "!src/thing/rest.py",
    }
    assert {*found} >= {"b1", "b2", "b3", "later", "maybe"}


def test_without_a_program_all_files_count_only_if_that_is_asked_for(tmp_path: Path) -> None:
    lay(tmp_path, {"lib/x.py": "import a1\n", "plot.ipynb": notebook("import a2\n")})
    assert imported(tmp_path) == {"a1": "lib/x.py", "a2": "plot.ipynb"}
    assert {*imported(tmp_path, all_start=True).values()} == {"!lib/x.py", "!plot.ipynb"}


def test_hostile_code_is_read_in_no_time(tmp_path: Path) -> None:
    lay(tmp_path, dict.fromkeys(["a.py", "b.py", "c.py"], "import a1\n" * 26_000))
    assert imported(tmp_path) == {"a1": "!a.py"}


def test_what_is_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path, {f"m{number}.py": f"import m{number + 1}, a{number}\n" for number in range(30)})
    monkeypatch.setattr(code, "_MOST_FILES", 10)
    assert len(imported(tmp_path)) == 10
