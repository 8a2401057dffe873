"""Images of `rocm`, from small wheels under the names of the locked ones: the real one has 6.2 GB.

A wheel of that size is built by test_huge_wheel.py with `--soak`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuilder.core.settings import load as load_settings
from envbuilder.packages.store import Store
from tests.conftest import missing, succeeded
from tests.integration.conftest import start
from tests.support import shipped_locks

PROFILE = """\
extends: rocm
description: rocm for one Python, for tests
python: {default: "3.11", supported: ["3.11"]}
"""
SHIPPED = shipped_locks.target("rocm", "linux/amd64")
ASK = "import json, torch, triton_rocm, os; print(json.dumps([torch.__file__, dict(os.environ)]))"


@pytest.fixture
def environment(session_environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Variables for commands in a project whose profile `mine` is locked to generated wheels."""
    wheels = shipped_locks.generate(tmp_path / "wheels", SHIPPED, b"no program")
    store = Store(load_settings(session_environment).store_dir)
    shipped_locks.lay(tmp_path, PROFILE, "rocm", SHIPPED, wheels, store)
    return session_environment


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["layers", pytest.param("buildkit", marks=pytest.mark.soak)])
def test_the_image_is_the_same_twice_and_imports(
    builder: str,
    environment: dict[str, str],
    base_image: str,
    docker_client: Any,
    tmp_path: Path,
) -> None:
    how = ("--profile", "mine", "--builder", builder, "--json")
    environment = {**environment, "ENVBUILDER_BASE_IMAGE": base_image}
    twice = start(("reproduce", *how), environment, cwd=tmp_path)
    if "cannot be reached" in twice.stderr:
        missing("network", f"libnuma1 or uv cannot be had here: {twice.stderr[-400:]}")
    assert twice.returncode == 0, twice.stderr
    done = succeeded(start(("build", "--backend", "docker", *how), environment, cwd=tmp_path))
    ref = json.loads(done.stdout)["artifact"]["ref"]
    try:
        printed = docker_client.containers.run(
            ref, ["python", "-c", ASK], remove=True, network_mode="none"
        )
        library = docker_client.containers.run(
            ref, ["ls", "/usr/lib/x86_64-linux-gnu/libnuma.so.1"], remove=True, network_mode="none"
        )
    finally:
        docker_client.images.remove(ref, force=True)
    file, variables = json.loads(printed)
    assert file == "/opt/env/lib/python3.11/site-packages/torch/__init__.py"
    assert library.strip() == b"/usr/lib/x86_64-linux-gnu/libnuma.so.1"
    # Which GPUs a run uses, and whether it lies about them, is nothing for an image.
    assert not [name for name in variables if name.startswith(("HIP_", "HSA_", "ROCR_", "CUDA_"))]
