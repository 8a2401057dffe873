"""Code, imports and commands of notebooks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from envbuilder.core.errors import InvalidError
from envbuilder.project import code, notebooks, repository
from tests.support.edited_text import edited
from tests.support.repositories import lay, notebook

CELLS = (
    """\
!pip install -q einops==0.8.0 'timm>=0.9' \\
    git+https://host.example/x.git
%pip install datasets
!{sys.executable} -m pip install rich
""",
    """\
%matplotlib inline
import torch.nn as nn, os
import numpy as np  # arrays
files = !ls
from sklearn.metrics import (
    f1_score,
)
await x
""",
    "%%bash\nconda install -y pandas\napt-get install -y ffmpeg",
)


def test_its_imports_as_a_program(tmp_path: Path) -> None:
    lay(tmp_path, {"a.ipynb": notebook(*CELLS)})
    assert notebooks.imports(tmp_path, "a.ipynb").splitlines() == [
        "import torch.nn as nn, os",
        "import numpy as np",
        "import sklearn.metrics",
    ]


def test_what_its_cells_install(tmp_path: Path) -> None:
    lay(tmp_path, {"a.ipynb": notebook(*CELLS)})
    hints = repository.install_hints(tmp_path, [*repository.files(tmp_path)])
    assert [*hints.requirements] == [
        "einops==0.8.0",
        "timm>=0.9",
        "git+https://host.example/x.git",
        "datasets",
        "rich",
        "pandas",
    ]
    assert {*hints.requirements.values()} == {"a.ipynb"}
    assert [*hints.system] == ["ffmpeg"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cells": 1}', "[" * 90_000, '{"cells": [{"x'])
def test_what_is_no_notebook(tmp_path: Path, text: str) -> None:
    lay(tmp_path, {"a.ipynb": text})
    with pytest.raises(InvalidError, match="not a notebook"):
        notebooks.code(tmp_path, "a.ipynb")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edited(CELLS, ["import ", "from ", ",", " as x", ".", "\n", "(", "1", "%", "\\"]))
def test_any_cell_is_read(tmp_path: Path, cell: str) -> None:
    lay(tmp_path, {"a.ipynb": notebook(cell)})
    assert isinstance(code.imports(tmp_path, ["a.ipynb"], (), ()), dict)
    repository.install_hints(tmp_path, ["a.ipynb"])
