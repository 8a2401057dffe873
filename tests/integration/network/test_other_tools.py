"""What the doctor prints is what the tools take: afterwards it is content.

With wheels that are torch by name alone, from an index on this machine.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from envbuilder.core import process
from envbuilder.core.settings import load as load_settings
from envbuilder.packages import fetch
from envbuilder.packages.python import indexes
from tests.conftest import missing, ran
from tests.integration.conftest import Cli
from tests.support import host_trees, make_wheels
from tests.support.http_server import Files, serving

PROJECT = """\
[project]
name = "demo"
version = "0.1.0"
requires-python = ">=3.11,<3.15"
dependencies = []

[tool.poetry]
package-mode = false

[tool.pdm]
distribution = false

[[tool.pdm.source]]
name = "pypi"
url = "{url}/cpu"

[[tool.poetry.source]]
name = "first"
url = "{url}/cpu"
priority = "primary"

[[tool.uv.index]]
name = "pytorch-cpu"
url = "{url}/cpu"
explicit = true

[tool.uv.sources]
torch = {{ index = "pytorch-cpu" }}
torchvision = {{ index = "pytorch-cpu" }}
"""
WHEELS = ("torch==2.5.1+cpu", "torchvision==0.20.1+cpu")
UV = process.uv_path()
BASE = str(Path(sys.executable).resolve())
MADE: dict[str, tuple[tuple[str, ...], ...]] = {
    "uv": (
        (UV, "venv", "--python", BASE),
        (UV, "pip", "install", *WHEELS, "--index-url", "{url}/cpu"),
    ),
    "uv project": ((UV, "add", "--python", BASE, *WHEELS),),
    "pip": (
        (BASE, "-m", "venv", ".venv"),
        (".venv/bin/python", "-m", "pip", "install", *WHEELS, "--index-url", "{url}/cpu"),
    ),
    "poetry": (("poetry", "add", *WHEELS),),
    "pdm": (("pdm", "add", *WHEELS),),
}
"""Tool → what makes an environment with it."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """The URL of a folder with an index for each build."""
    builds = {"torch": ("2.5.1",), "torchvision": ("0.20.1",)}
    for build in ("cpu", "cu124"):
        for name, versions in builds.items():
            page = tmp_path / "index" / build / name
            page.mkdir(parents=True)
            for version in versions:
                stated = f"{version}+{build}"
                code = {f"{name}/version.py": f"__version__ = '{stated}'\n".encode()}
                needs = ["torch==2.5.1"] if name != "torch" else []
                wheel = make_wheels.write(page, name, code, version=stated, needs=needs)
                (page / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    handler = functools.partial(Files, directory=str(tmp_path / "index"))
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with serving(http):
        yield f"http://127.0.0.1:{http.server_address[1]}"


@pytest.fixture(scope="session")
def tools(test_cache: Path) -> Callable[[str], str]:
    """`tools(name)` installs a tool once, by uv; returns the folder of its program."""

    def install(name: str) -> str:
        folders = {
            "UV_TOOL_DIR": str(test_cache / "tools"),
            "UV_TOOL_BIN_DIR": str(test_cache / "tools/bin"),
        }
        variables = fetch.uv_variables(indexes.DEFAULT, load_settings())
        # pdm 2.29 with hishel 2: "no attribute SyncSqliteStorage".
        done = ran(
            [UV, "tool", "install", name, "--with", "hishel<2"],
            env={**os.environ, **variables, **folders},
        )
        if done.returncode != 0:
            missing("network", f"{name} cannot be installed: {done.stderr[-400:]}")
        return folders["UV_TOOL_BIN_DIR"]

    return install


@pytest.mark.parametrize("tool", MADE)
def test_the_lines_are_what_the_tool_takes(
    tool: str, index: str, tools: Callable[[str], str], cli: Cli, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    path = f"{Path(UV).parent}:/usr/local/bin:/usr/bin:/bin"
    program = tool
    if tool in {"poetry", "pdm"}:
        program = f"{tools(tool)}/{tool}"
        path = f"{Path(program).parent}:{path}"
    if tool not in {"uv", "pip"}:
        (folder / "pyproject.toml").write_text(PROJECT.format(url=index))
    environment = {
        "PATH": path,
        "HOME": str(tmp_path / "home"),
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "POETRY_VIRTUALENVS_IN_PROJECT": "true",
        "PIP_CONFIG_FILE": "/dev/null",
    }
    run = functools.partial(ran, cwd=folder, env=environment)
    for words in MADE[tool]:
        first, *others = [word.format(url=index) for word in words]
        done = run([program if first == tool else first, *others])
        assert done.returncode == 0, done.stderr + done.stdout
    python = str(folder / ".venv/bin/python")
    host = str(host_trees.FOLDER / "rtx4090.json")

    def judged() -> dict[str, object]:
        arguments = ("doctor", "--python", python, "--target-host", host, "--json")
        done = cli(*arguments, environment={"ENVBUILDER_INDEX_PYTORCH_CU124": f"{index}/cu124"})
        found: dict[str, object] = json.loads(done.stdout)["environment"]
        assert f"'tool': '{tool}'" in str(found["place"])
        return found

    before = judged()
    assert before["verdict"] == "slower"
    done = run(["bash", "-ec", str(before["paste"])])
    assert done.returncode == 0, done.stderr + done.stdout
    after = judged()
    assert (after["verdict"], after["build"], after["paste"]) == ("right", "cu124", "")
    assert run([python, "-c", "import torch.version, torchvision.version"]).returncode == 0
