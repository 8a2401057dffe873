"""An import of torch that never ends, in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from envbuilder.payload.machine import device
from tests.conftest import exited, ran


def test_an_import_that_hangs_ends_the_process(tmp_path: Path) -> None:
    """It holds the interpreter's lock, as a library's initialisation does."""
    hangs = "import ctypes; ctypes.PyDLL(None).pause()\n"
    (tmp_path / "torch.py").write_text(hangs)
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from envbuilder.payload.machine import device\n"
        "device.SECONDS = 0.2\n"
        "device.torch_for('cpu')\n"
    )
    root = str(Path(device.__file__).parents[3])
    done = exited(
        1,
        ran([sys.executable, "-c", code, str(tmp_path), root], timeout=60),
    )
    assert device.HUNG in done.stderr
    assert "torch.py" in done.stderr, "where it hung"
