"""The doctor trains in an environment that is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.conftest import Cli


@pytest.mark.slow
def test_an_environment_is_proved(cli: Cli, torch_python: Path) -> None:
    done = cli("doctor", "--python", str(torch_python), "--prove", "--json")
    found = json.loads(done.stdout)
    assert found["environment"]["verdict"] == "right"
    assert found["proof"]["status"] == "passed"
    assert found["proof"]["artifact"]["ref"] == str(torch_python)
