"""What a user states for a command holds in a conda environment, whatever its scripts set."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from envbuilder.builds.backends import conda
from tests.conftest import exited
from tests.support.folders import names_in


def test_what_a_user_states_holds_after_the_activation(tmp_path: Path) -> None:
    """Packages' scripts set variables, too: compilers set CXX."""
    script = tmp_path / "activate.sh"
    script.write_text("export CXX=g++ OMP=4 OTHER=script\n_name=x\n")
    tricky = "a b\n'c' \"d\" $(touch e) `f` \\\\"
    environ = {"PATH": os.environ["PATH"], "CXX": tricky, "OMP": "8", "OTHER": "mine"}
    names = {"_envbuilder_stated": "CXX OMP MISSING"}
    for told, expected in ((names, (tricky, "8", "script")), ({}, ("g++", "4", "script"))):
        show = ["python3", "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
        done = subprocess.run(
            ["bash", "-c", conda._INSIDE, str(script), *show],
            env={**environ, **told},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        seen = json.loads(done.stdout)
        assert (seen["CXX"], seen["OMP"], seen["OTHER"]) == expected
        assert "_envbuilder_stated" not in seen
    assert names_in(tmp_path) == {"activate.sh"}
    script.write_text("return 3\n")
    done = exited(
        3, subprocess.run(["bash", "-c", conda._INSIDE, str(script), "touch", "x"], check=False)
    )
