"""A script that states what it requires itself (PEP 723)."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuilder.core import settings
from envbuilder.project import scripts
from envbuilder.project.forms import read
from tests.support.repositories import lay
from tests.support.requirement_projects import places, refusal, texts

SCRIPT = """\
#!/usr/bin/env python
# /// script
# requires-python = ">=3.10"
# dependencies = [
#   "einops>=0.8",
#
#   "tiny",
# ]
# [tool.uv.sources]
# tiny = { git = "https://host.example/tiny", tag = "v1" }
# ///
import einops
"""


@pytest.mark.parametrize("text", [SCRIPT, SCRIPT.replace("\n", "\r\n")])
def test_its_block_is_read_with_its_places_and_its_sources(tmp_path: Path, text: str) -> None:
    lay(tmp_path, {"train.py": text})
    listed = read(tmp_path, "train.py")
    assert texts(listed.requirements) == ["einops>=0.8", "tiny"]
    assert places(listed.requirements) == ["train.py:5", "train.py:7"]
    assert listed.requirements[1].source == "git+https://host.example/tiny@v1"
    assert texts(listed.pythons) == [">=3.10"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import einops\n", "train.py: the script lists no requirements"),
        ("# /// script\n# dependencies = []\n", "train.py: the script lists no requirements"),
        (SCRIPT.replace('"tiny",', '"tiny'), "train.py:7: not valid TOML"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, text: str, message: str) -> None:
    lay(tmp_path, {"train.py": text})
    assert refusal(tmp_path, "train.py")[0].startswith(message)


def test_outside_of_a_project_it_is_one_of_its_own(tmp_path: Path) -> None:
    lay(tmp_path, {"Train_v2.py": SCRIPT, "plain.py": "", "train.sh": SCRIPT})
    outside = settings.load({}, tmp_path)
    own = scripts.of_script(outside, tmp_path / "Train_v2.py")
    assert own.project == tmp_path
    assert own.environment == "train-v2-py"
    for name in ("plain.py", "train.sh", "gone.py"):
        assert scripts.of_script(outside, tmp_path / name) is outside
    assert scripts.of_script(own, tmp_path / "Train_v2.py") is own
