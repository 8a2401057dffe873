"""Modules are imported in processes of their own, by a script that any Python runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from envbuilder.builds.inside import import_modules
from tests.support.installed import record
from tests.support.repositories import lay

SCRIPT = Path(import_modules.__file__)
MISSING = "cannot open shared object file: No such file or directory"
MODULES = {
    "good": "print('noise', flush=True)",
    "graphics": f"raise ImportError('libGL.so.1: {MISSING}')",
    "leaving": "raise SystemExit(3)",
    "crashing": "import os; os.kill(os.getpid(), 9)",
    "slow": "import time; time.sleep(60)",
    "leaves_a_thread": "import threading as t; t.Thread(target=t.Event().wait).start()",
    "two_lines": "raise ImportError('first\\nsecond')",
    "asks": "import sys; input()",
}


def site(folder: Path, *names: str) -> Path:
    """Lay modules where they can be imported from."""
    lay(folder, {f"{name}.py": MODULES[name] for name in names})
    return folder


def results(folder: Path, **asked: Any) -> dict[str, dict[str, Any]]:
    """What the script says of each module, with a folder to import from."""
    request = {"modules": [], "packages": [], "seconds": 20, **asked}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(request)],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        check=True,
        text=True,
    )
    return {each["module"]: each for each in json.loads(done.stdout)}


def test_each_module_is_a_process_and_tells_its_error(tmp_path: Path) -> None:
    names = ["good", "graphics", "crashing", "leaving", "leaves_a_thread", "nosuch", "two_lines"]
    found = results(site(tmp_path, *{*names} - {"nosuch"}), modules=names)
    assert [*found] == names
    codes = {name: each["code"] for name, each in found.items()}
    assert codes == dict(zip(names, (0, 1, -9, 3, 0, 1, 1), strict=True))
    assert f"\nImportError: libGL.so.1: {MISSING}\n" in found["graphics"]["errors"]
    assert found["two_lines"]["errors"].endswith("ImportError: first\nsecond\n")


def test_one_that_hangs_is_ended(tmp_path: Path) -> None:
    found = results(site(tmp_path, "slow", "asks"), modules=["slow", "asks"], seconds=1)
    assert found["slow"]["errors"] == "TimeoutError: it did not end within 1 s"
    assert "EOFError" in found["asks"]["errors"]  # nobody is asked


def test_one_module_of_each_package_beside_those_of_the_code(tmp_path: Path) -> None:
    record(tmp_path, "python-good", ["tests/__init__.py", "good.py", "other.py"])
    record(tmp_path, "second", ["second.py"])
    lay(tmp_path, {"second.py": "", "good.py": ""})
    packages = ["python-good", "second"]
    found = results(tmp_path, modules=["good", "elsewhere"], packages=packages)
    assert {name: each["package"] for name, each in found.items()} == {
        "good": "python-good",
        "elsewhere": "",
        "second": "second",
    }


def test_the_script_goes_through_an_argument(tmp_path: Path) -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    asked = json.dumps({"modules": ["json"], "packages": [], "seconds": 20})
    command = [sys.executable, "-I", "-c", text, asked]
    done = subprocess.run(command, capture_output=True, check=True, cwd=tmp_path, text=True)
    (result,) = json.loads(done.stdout)
    assert result == {"module": "json", "package": "", "code": 0, "errors": ""}
