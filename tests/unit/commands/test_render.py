"""A rendered Dockerfile has a copy of the project's files beside it, made anew each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuilder.builds.render import RenderedFile
from envbuilder.commands.render import _copied
from envbuilder.core.errors import InvalidError
from tests.support import project_layers


def test_the_projects_files_are_copied_anew(tmp_path: Path) -> None:
    output = tmp_path / "image"
    output.mkdir()
    files = {"train.py": b"1", "src/a.py": b"2"}
    project = project_layers.lay(tmp_path / "code", files)
    for _ in range(2):
        assert [*_copied(project, output)] == [output / "project"]
    (output / "project/files/left.py").touch()
    (tmp_path / "code/train.py").write_bytes(b"3")
    changed = project_layers.lay(tmp_path / "code", {"train.py": b"3"})
    assert [*_copied(changed, output)] == [output / "project"]
    copies = [p for p in (output / "project/files").rglob("*") if p.is_file()]
    assert [(p.name, p.read_bytes()) for p in copies] == [("train.py", b"3")]


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_lies_there_and_is_not_ours_stays(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "project"
    if kind == "folder":
        place.mkdir()
    elif kind == "file":
        place.touch()
    else:
        place.symlink_to(tmp_path / "nowhere")
    project = project_layers.lay(tmp_path / "code", {"train.py": b"1"})
    with pytest.raises(InvalidError, match="exists and was not made by envbuilder"):
        [*_copied(project, tmp_path)]
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["code", "project"]


def test_no_credential_is_rendered() -> None:
    with pytest.raises(
        InvalidError,
        match=r"Dockerfile, line 2: the rendered file would contain a credential \(HF_",
    ):
        RenderedFile(name="Dockerfile", content=b"FROM x\nENV HF_TOKEN=hf_abc\n")
    RenderedFile(name="Dockerfile", content=b"FROM x\nENV HF_TOKEN=$HF_TOKEN\n")
