"""Many builds at once with one store: nothing is lost, and nothing is downloaded twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from envbuilder.packages import upstream
from envbuilder.packages.store import Store
from tests.conftest import succeeded
from tests.integration.conftest import Cli, locked
from tests.support import index_server, small_profiles


@pytest.fixture
def project(
    cli: Cli, tmp_path: Path, session_environment: dict[str, str], test_cache: Path
) -> Path:
    """The profiles, locked; their wheels, and uv's, are in `wheels`."""
    wheels = small_profiles.lay(tmp_path)
    environment = {**session_environment, "PIP_FIND_LINKS": str(wheels)}
    for name in small_profiles.names():
        locked(tmp_path, name, environment)
    ((sha256, uv),) = small_profiles.tools(tmp_path).items()
    succeeded(cli("build", "--profile", "small-0", "--backend", "venv", environment=environment))
    shutil.copyfile(Store(test_cache / "store").path(sha256), wheels / uv)
    return tmp_path


@pytest.mark.soak  # with the other tests, images are built so
@pytest.mark.parametrize(
    "copies",
    [2, 20],
    ids=lambda copies: f"{copies * small_profiles.COUNT} builds",
)
def test_many_builds_at_once_share_one_store(
    project: Path, session_environment: dict[str, str], copies: int
) -> None:
    files = small_profiles.locked_files(project)
    own = {"ENVBUILDER_CACHE_DIR": str(project / "cache"), "PIP_FIND_LINKS": ""}
    offers = [upstream.read_wheel(p) for p in sorted((project / "wheels").glob("*.whl"))]
    requests: list[str] = []
    with index_server.serve(offers, requests=requests) as url:
        index = {"UV_DEFAULT_INDEX": url, "NO_PROXY": "127.0.0.1", "PIP_CONFIG_FILE": os.devnull}
        # Each folder of environments gets each profile from two builds at the same time.
        environments = [
            {
                **session_environment,
                **own,
                **index,
                "ENVBUILDER_DATA_DIR": str(project / f"data-{copy // 2}"),
            }
            for copy in range(copies)
        ]
        builds = small_profiles.build_at_once(project, environments, "--backend", "venv")
    assert [b for b in builds if b.code != 0] == []
    small_profiles.require_whole(project / "cache", files)
    downloads = Counter(Path(path).name for path in requests if "/files/" in path)
    assert downloads == dict.fromkeys(files.values(), 1)

    built = [json.loads(b.stdout) for b in builds]
    # Each is built once: the other build may be in use by now, and is left as it is.
    prefixes = sorted(b["artifact"]["ref"] for b in built if b["status"] == "built")
    assert len(prefixes) == len(small_profiles.names()) * (copies // 2)
    assert prefixes == sorted({b["artifact"]["ref"] for b in built})
    for prefix in prefixes:
        name = Path(prefix).name.partition("-py")[0].replace("-", "_")
        script = f"import small_common, {name}; assert {name}.HERE"
        subprocess.run([f"{prefix}/bin/python", "-I", "-c", script], check=True)
    hidden = {path.name for path in project.glob("data-*/envs/.*")}
    assert [name for name in hidden if not name.endswith(".partial.lock")] == []
