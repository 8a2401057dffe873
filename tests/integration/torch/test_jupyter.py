"""`envbuilder jupyter` with the real JupyterLab, its kernel in a native environment with torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import notebooks

NATIVE = ("--profile", "cpu", "--backend", "venv")


@pytest.mark.soak
def test_a_notebook_on_the_projects_torch(
    session_environment: dict[str, str], torch_prefix: Path, tmp_path: Path
) -> None:
    notebooks.lay(tmp_path)
    with notebooks.serving(tmp_path, session_environment, *NATIVE, "notes.ipynb") as lab:
        assert lab.link.startswith("http://127.0.0.1:")
        assert "/lab/tree/notes.ipynb?token=" in lab.link
        results = lab.use(*notebooks.CELLS)
        if sys.platform == "linux":
            process = Path(f"/proc/{lab.server.pid}")
            assert lab.token not in (process / "environ").read_text()
            assert lab.token not in (process / "cmdline").read_text()
        folders = list((tmp_path / "scratch").iterdir())
        assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700]
    assert results["refused"]
    assert list(results["specs"]["kernelspecs"]) == ["python3"]
    version, facts = (cell["text"] for cell in results["cells"])
    assert version.endswith("'2.13.0+cpu'")
    pid, folder, prefix = facts.split()
    assert folder == str(tmp_path)
    assert Path(prefix) == (tmp_path / ".envbuilder/default").readlink()
    assert (results["interrupted"]["error"], results["after"]["text"]) == ("KeyboardInterrupt", "2")
    assert lab.server.returncode in notebooks.ENDED
    assert lab.seconds < notebooks.STOP_SECONDS
    assert notebooks.ends(int(pid))
    assert list((tmp_path / "scratch").iterdir()) == []
    assert lab.token not in lab.output
    text = (tmp_path / "envbuilder.yaml").read_text()
    assert text == "profiles: [cpu]\nrequirements: [einops]\n"
    locked = (tmp_path / "envbuilder.lock/default.cpu.json").read_text()
    assert not [name for name in ("jupyterlab", "ipykernel") if name in locked]


@pytest.mark.soak
def test_a_server_that_is_killed_takes_its_kernels_along(
    session_environment: dict[str, str], torch_prefix: Path, tmp_path: Path
) -> None:
    notebooks.lay(tmp_path)
    with notebooks.serving(tmp_path, session_environment, *NATIVE) as lab:
        pid = lab.use("import os; os.getpid()")["cells"][0]["text"]
        lab.server.kill()
        assert notebooks.ends(int(pid))
