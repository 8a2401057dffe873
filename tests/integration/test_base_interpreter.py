"""What a native environment uses of the interpreter that it is based on, asked of a real one."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from envbuilder.builds.backends import integrity
from envbuilder.host import interpreters

_LOADED = """
import copy, json, ssl, sys
print(json.dumps([m.__file__ for m in sys.modules.values() if getattr(m, "__file__", None)]))
"""


def test_all_that_a_venv_loads_of_its_base_is_sealed(tmp_path: Path) -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    found = interpreters.find(version, [version], platform.machine())
    base = integrity.base_of(str(found.path))
    subprocess.run([found.path, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env/bin/python"
    done = subprocess.run([python, "-I", "-c", _LOADED], check=True, capture_output=True, text=True)
    loaded = {*json.loads(done.stdout), str(python.resolve())}
    entries = {entry.path for entry in integrity.walk(tmp_path / "env", (), base)}
    assert len(loaded) > 20
    assert loaded <= entries


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this system has no /proc")
def test_the_library_of_the_interpreter_itself_is_sealed() -> None:
    base = integrity.base_of(sys.executable)
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    assert {path for path in mapped if "/libpython" in path} <= set(base)
