"""No credential gets out: canaries in every source of them, and every command against loopback.

They are looked for in what commands print, in every file that they leave, and in the arguments of
every process that they start: as they are, percent-encoded and in base64.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import canaries
from tests.support.canaries import CANARY, ESCAPED, WRONG, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with canaries.machine(tmp_path) as made:
        yield made


@pytest.mark.slow
def test_commands_that_succeed_tell_no_credential(machine: Machine) -> None:
    def succeed(*arguments: str, **changes: str) -> Any:
        done = machine.run(*arguments, **changes)
        assert done.returncode == 0, (arguments, done.stderr)
        return done

    succeed("lock", "--profile", "lab")
    succeed("check", "lab")
    for target in ("dockerfile", "script", "requirements", "pylock", "conda"):
        succeed("render", "--profile", "lab", "--target", target)
        succeed("render", "--profile", "lab", "--target", target, "-o", target)
    note = (machine.project / "requirements/requirements.txt").read_text()
    assert "wants credentials" in note
    succeed("build", "--profile", "lab", "--backend", "venv", "--dry-run", "--json")
    succeed("build", "--profile", "lab", "--backend", "venv", "--json")
    succeed("build", "--profile", "lab", "--backend", "venv", "--rebuild")
    succeed("reproduce", "--profile", "lab", "--backend", "venv")
    succeed("sbom", "--profile", "lab")
    machine.run("bundle", "--profile", "lab", "-o", "lab.tar")  # the index has no hatchling
    succeed("profiles", "lab", "--json")
    succeed("detect", "--json")
    machine.run("doctor")
    machine.run("doctor", "--json")
    succeed("clean", "--dry-run")


WAYS = {
    "pip": ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "ENVBUILDER_INDEX_LAB"),
    "uv": ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "ENVBUILDER_INDEX_PYTORCH_CPU"),
    "proxy": ("http_proxy", "HTTP_PROXY", "PIP_PROXY", "ALL_PROXY"),
}
FAULTS = {
    "wrong password": "http://{wrong}@{host}/simple",
    "nobody listens": "http://{right}@127.0.0.1:9/simple",
    "port is no number": "http://{right}@127.0.0.1:port/simple",
    "slash in the password": f"http://me:{CANARY}/raw@127.0.0.1:9/simple",
    "address is cut off": f"http://{CANARY}@[::1/simple",
    "token in the query": f"http://{{right}}@{{host}}/simple?token={CANARY}",
    "token in the path": f"http://{{host}}/t/{CANARY}/simple",
}


PAIRS = [
    pytest.param(fault, way, marks=pytest.mark.soak if (place - number) % len(WAYS) else [])
    for number, fault in enumerate(FAULTS)
    for place, way in enumerate(WAYS)
]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "way"), PAIRS)
def test_commands_that_fail_tell_no_credential(machine: Machine, fault: str, way: str) -> None:
    assert machine.run("lock", "--profile", "lab").returncode == 0
    host = machine.index.partition("://")[2].partition("/")[0]
    url = FAULTS[fault].format(wrong=WRONG, right=ESCAPED, host=host)
    fresh = {"ENVBUILDER_CACHE_DIR": str(machine.folder / "fresh")}
    # uv would try for ten seconds; what it prints is the same.
    changes = {**dict.fromkeys(WAYS[way], url), "UV_HTTP_RETRIES": "0"}
    if way == "proxy":
        changes |= {"NO_PROXY": "", "no_proxy": ""}
    codes = [
        machine.run("lock", "--profile", "lab", "--upgrade", **fresh, **changes).returncode,
        machine.run(
            "build", "--profile", "lab", "--backend", "venv", **fresh, **changes
        ).returncode,
    ]
    assert 0 not in codes
    machine.run("render", "--profile", "lab", "--target", "requirements", **changes)
    machine.run("doctor", **changes)


def test_image_names_tell_no_credential(machine: Machine) -> None:
    assert machine.run("lock", "--profile", "lab").returncode == 0
    for image in (f"me:{CANARY}@127.0.0.1:9/x", f"http://me:{CANARY}@127.0.0.1:9/x"):
        for option in ("--base-image", "--push", "--tag", "--output"):
            build = ("build", "--profile", "lab", "--backend", "docker", option, image)
            assert machine.run(*build).returncode != 0
