"""The page of proven hardware shows reports that strangers sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools import proven_page

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("home", ["/home/alice", "/Users/alice", "/root"])
def test_a_report_that_names_its_user_is_not_published(home: str, tmp_path: Path) -> None:
    text = (proven_page.REPORTS / "cpu.json").read_text()
    sent = tmp_path / "report.json"
    sent.write_text(text.replace("(path)", f"{home}/.local/share/envbuilder/envs/cpu"))
    with pytest.raises(SystemExit, match="names its user"):
        proven_page.report(sent)
    sent.write_text(sent.read_text().replace(home, "~"))
    assert proven_page.report(sent).profile == "cpu"
