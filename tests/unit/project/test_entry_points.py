"""The program of a folder, if it is clear which one it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from envbuilder.project import entry_points

if TYPE_CHECKING:
    from pathlib import Path

GUARD = 'def main(): ...\n\nif __name__ == "__main__":\n    main()\n'


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ()),
        ({"train.py": ""}, ("train.py",)),
        (
            {"train.py": "", "test_train.py": GUARD, "setup.py": "", "conftest.py": ""},
            ("train.py",),
        ),
        ({"train.py": GUARD, "model.py": "", "data.py": ""}, ("train.py",)),
        ({"train.py": GUARD, "evaluate.py": GUARD}, ()),
        ({"a.py": "", "b.py": ""}, ()),
        ({"thing/__main__.py": "", "thing/model.py": ""}, ("-m", "thing")),
        ({"thing/__main__.py": "", "helper.py": ""}, ("-m", "thing")),
        ({"thing/__main__.py": "", "train.py": GUARD}, ()),
        ({"one/__main__.py": "", "two/__main__.py": ""}, ()),
        ({"not-a-name/__main__.py": ""}, ()),
        ({"thing/train.py": GUARD}, ()),
    ],
)
def test_the_only_candidate(
    tmp_path: Path, files: dict[str, str], expected: tuple[str, ...]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert entry_points.arguments(tmp_path) == expected
