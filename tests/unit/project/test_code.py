"""A repository's own code: what it imports, and which of its files is its program."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuilder.project import repository
from tests.support.repositories import lay

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
    assert repository.program_arguments(tmp_path, found, shown) == expected


def test_imports_of_others_without_the_standard_library_and_its_own(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "train.py": "import os, cv2\nfrom lib.nets import x\nfrom . import y\nimport helper\n",
            "lib/nets.py": "def f():\n    import einops.layers, cv2\n",
            "tools/helper.py": "from yaml import safe_load\n",
            "tests/test_x.py": "import pytest\n",
            "old.py": "print 'two'\nimport six\n",
            "deep.py": f"x = {'(' * 5000}1{')' * 5000}\n",
            "nul.py": "import nul\0\n",
        },
    )
    found = repository.imports(tmp_path, [*repository.files(tmp_path)])
    assert found[0] == "cv2"
    assert {*found} == {"cv2", "einops", "yaml"}
