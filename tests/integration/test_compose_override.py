"""The script that writes compose.override.yaml, on constructed machines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from envbuilder.containers.engine.container import limits
from tests.conftest import exited, missing, ran, succeeded
from tests.support.folders import names_in

GOLDEN = Path(__file__).parents[1] / "golden"
PROFILES = ("cpu", "cuda", "rocm", "xpu")
"""One of each accelerator: the scripts of others differ in a name."""
SCRIPTS = [p for name in PROFILES for p in GOLDEN.glob(f"{name}/**/compose-override.sh")]
NAME = "compose.override.yaml"
DOCKER = '#!/bin/sh\n[ "$*" = \'info --format {{json .}}\' ] || exit 9\ncat "${0%/*}/info.json"\n'
NVIDIA = {"Runtimes": {"runc": {"path": "runc"}, "nvidia": {"path": "nvidia-container-runtime"}}}
CDI = {"CDISpecDirs": ["/etc/cdi", "/var/run/cdi"]}
SPECIFICATION = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: all}]\n"
COUNT = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
BY_CDI = {"driver": "cdi", "device_ids": ["nvidia.com/gpu=all"], "capabilities": ["gpu"]}
GROUP = str(os.getgid())


class Machine:
    """A project with a profile's script, a tree to look at, and an engine that says something."""

    def __init__(self, folder: Path, profile: str, target: str = "compose") -> None:
        self.root = folder / r"the machine's $root \t"
        self.project = folder / r"my project: 'x' $y \n"
        self.programs = folder / "programs"
        for path in (self.root, self.project, self.programs):
            path.mkdir()
        place = ".devcontainer/" if target == "devcontainer" else ""
        shutil.copy(GOLDEN / profile / target / place / "compose-override.sh", self.project)
        self.variables: dict[str, str] = {}

    def lay(self, files: Mapping[str, str]) -> Machine:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return self

    def engine(self, **says: Any) -> Machine:
        (self.programs / "docker").write_text(DOCKER)
        (self.programs / "docker").chmod(0o755)
        (self.programs / "info.json").write_text(json.dumps(says, separators=(",", ":")))
        return self

    def run(self, **options: Any) -> subprocess.CompletedProcess[str]:
        return ran(
            ["sh", str(self.project / "compose-override.sh"), str(self.root)],
            env={"PATH": f"{self.programs}:{tools(self.programs)}", **self.variables},
            cwd="/",
            **options,
        )

    def service(self, note: str = "") -> dict[str, Any]:
        """What the override says of the service, less the user; `note` is in stderr."""
        done = self.run()
        assert (done.returncode, done.stdout) == (0, "")
        assert note in done.stderr
        assert bool(note) == bool(done.stderr)
        read = yaml.safe_load((self.project / NAME).read_text())
        assert not list(self.project.glob(f"{NAME}.*"))
        service = dict(read["services"].get("env", {}))
        service.pop("user", None)
        return service

    def yaml_path(self, path: str) -> str:
        """A path of the tree as compose is to read it."""
        return str(self.root).replace("$", "$$") + path


def tools(folder: Path) -> str:
    """A folder for PATH with what the script may use, and no engine."""
    place = folder / "tools"
    if not place.exists():
        place.mkdir()
        for name in ("awk", "cat", "dirname", "grep", "id", "ls", "mv", "rm", "sed", "sh"):
            (place / name).symlink_to(str(shutil.which(name)))
    return str(place)


def reserved(service: dict[str, Any]) -> Any:
    (request,) = service["deploy"]["resources"]["reservations"]["devices"]
    return request


def test_shellcheck_accepts() -> None:
    if shutil.which("shellcheck") is None:
        missing("shellcheck", "it is not installed")
    succeeded(ran(["shellcheck", "--norc", *SCRIPTS]))


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) == 2 * len(PROFILES)


@pytest.mark.parametrize("target", ["compose", "devcontainer"])
@pytest.mark.parametrize(
    ("profile", "note"),
    [("cuda", "no NVIDIA GPU"), ("rocm", "no AMD GPU"), ("xpu", "no Intel GPU"), ("cpu", "")],
)
def test_a_machine_without_the_device_has_none_in_its_override(
    profile: str, note: str, target: str, tmp_path: Path
) -> None:
    assert Machine(tmp_path, profile, target).lay({"dev/null": ""}).service(note) == {}


def test_amd_has_its_nodes_and_their_groups(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "rocm").lay(
        {
            "dev/kfd": "",
            "dev/dri/card0": "",
            "dev/dri/renderD128": "",
            "dev/dri/renderD129 x\ny": "",
        }
    )
    assert machine.service() == {
        "devices": [
            f"{machine.yaml_path('/dev/kfd')}:/dev/kfd",
            f"{machine.yaml_path('/dev/dri')}:/dev/dri",
        ],
        "group_add": [GROUP],
    }


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to other groups")
def test_each_group_is_joined_once_by_its_number(tmp_path: Path) -> None:
    nodes = {"kfd": 44, "dri/renderD128": 4, "dri/renderD129": 44, "dri/renderD130": 144}
    machine = Machine(tmp_path, "rocm").lay({f"dev/{name}": "" for name in nodes})
    for name, group in nodes.items():
        os.chown(machine.root / "dev" / name, 0, group)
    assert machine.service()["group_add"] == ["44", "4", "144"]


INTEL = {
    "dev/dri/renderD128": "",
    "dev/dri/by-path/pci-0000:00:02.0-render": "",
    "sys/class/drm/renderD128/device/vendor": "0x8086\n",
}
RADEON = {
    "dev/kfd": "",
    "dev/dri/renderD129": "",
    "sys/class/drm/renderD129/device/vendor": "0x1002\n",
}
GEFORCE = {"dev/nvidiactl": "", "dev/nvidia0": ""}


def test_intel_has_its_render_nodes_and_their_names_by_path(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "xpu").lay(INTEL)
    place = "/dev/dri/by-path"
    assert machine.service() == {
        "devices": [f"{machine.yaml_path('/dev/dri')}:/dev/dri"],
        "group_add": [GROUP],
        "volumes": [
            {"type": "bind", "source": machine.yaml_path(place), "target": place, "read_only": True}
        ],
    }


def test_another_vendors_render_node_is_no_intel_gpu(tmp_path: Path) -> None:
    assert Machine(tmp_path, "xpu").lay(RADEON | GEFORCE).service("no Intel GPU") == {}


def test_an_intel_gpu_is_no_amd_gpu(tmp_path: Path) -> None:
    assert Machine(tmp_path, "rocm").lay(INTEL).service("no AMD GPU") == {}


@pytest.mark.parametrize(
    ("profile", "keys"),
    [
        ("cuda", {"deploy"}),
        ("rocm", {"devices", "group_add"}),
        ("xpu", {"devices", "group_add", "volumes"}),
        ("cpu", set()),
    ],
)
def test_of_several_vendors_the_profiles_own_counts(
    profile: str, keys: set[str], tmp_path: Path
) -> None:
    assert set(Machine(tmp_path, profile).lay(INTEL | RADEON | GEFORCE).service()) == keys


def test_wsl_has_one_node_for_intel_and_the_drivers_of_windows(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "xpu").lay({"dev/dxg": "", "usr/lib/wsl/lib/libdxcore.so": ""})
    wsl = "/usr/lib/wsl"
    assert machine.service() == {
        "environment": {"LD_LIBRARY_PATH": "/usr/lib/wsl/lib"},
        "devices": [f"{machine.yaml_path('/dev/dxg')}:/dev/dxg"],
        "volumes": [
            {"type": "bind", "source": machine.yaml_path(wsl), "target": wsl, "read_only": True}
        ],
    }


@pytest.mark.parametrize(
    ("files", "says", "request_"),
    [
        (GEFORCE, NVIDIA, COUNT),
        (GEFORCE, NVIDIA | CDI, COUNT),
        (GEFORCE | {"etc/cdi/nvidia.yaml": SPECIFICATION}, CDI, BY_CDI),
        (GEFORCE | {"var/run/cdi/nvidia.json": '{"kind": "nvidia.com/gpu"}'}, CDI, BY_CDI),
        ({"dev/dxg": "", "usr/lib/wsl/lib/libcuda.so.1": ""}, NVIDIA, COUNT),
    ],
)
def test_nvidia_is_requested_as_the_engine_can_give_it(
    files: dict[str, str], says: dict[str, Any], request_: dict[str, Any], tmp_path: Path
) -> None:
    service = Machine(tmp_path, "cuda").lay(files).engine(**says).service()
    assert reserved(service) == request_


def test_an_engine_that_does_not_answer_is_asked_for_nvidia_as_usual(tmp_path: Path) -> None:
    assert reserved(Machine(tmp_path, "cuda").lay(GEFORCE).service()) == COUNT


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (GEFORCE, CDI),
        (GEFORCE | {"etc/cdi/amd.json": '{"kind": "amd.com/gpu"}'}, CDI),
        (GEFORCE | {"etc/cdi/nvidia.yaml": SPECIFICATION}, {"CDISpecDirs": []}),
    ],
)
def test_what_the_engine_cannot_give_is_not_requested(
    files: dict[str, str], says: dict[str, Any], tmp_path: Path
) -> None:
    machine = Machine(tmp_path, "cuda").lay(files).engine(Runtimes={"runc": {}}, **says)
    assert machine.service("install NVIDIA's container toolkit") == {}


def test_windows_node_alone_is_no_nvidia_gpu(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "cuda").lay({"dev/dxg": ""}).engine(**NVIDIA)
    assert machine.service("no NVIDIA GPU") == {}


@pytest.mark.parametrize("memory", [1 << 28, 1 << 31, 25276510208, 1 << 40])
@pytest.mark.parametrize("cpus", [1, 2, 33, 384])
def test_limits_are_those_that_run_sets(memory: int, cpus: int, tmp_path: Path) -> None:
    machine = Machine(tmp_path, "cpu").engine(
        MemoryLimit=True, PidsLimit=True, NCPU=cpus, MemTotal=memory, Name="x"
    )
    expected = limits(memory, cpus)
    assert machine.service() == {
        "mem_limit": expected.memory,
        "memswap_limit": -1,
        "pids_limit": expected.processes,
    }


def test_an_engine_without_limits_gets_none(tmp_path: Path) -> None:
    says = {"MemoryLimit": False, "PidsLimit": False, "NCPU": 2, "MemTotal": 1 << 32}
    assert Machine(tmp_path, "cpu").engine(**says).service() == {}


@pytest.mark.parametrize(
    ("security", "expected"),
    [
        ([], {"user": "5:6"}),
        (["name=seccomp,profile=builtin", "name=rootless"], {"user": "0:0"}),
        (["name=userns"], {"user": "5:6", "userns_mode": "host"}),
    ],
)
@pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")
def test_files_are_the_folders_owners(
    security: list[str], expected: dict[str, str], tmp_path: Path
) -> None:
    machine = Machine(tmp_path, "cpu").engine(SecurityOptions=security)
    os.chown(machine.project, 5, 6)
    assert machine.run().returncode == 0
    assert yaml.safe_load((machine.project / NAME).read_text())["services"]["env"] == expected


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def user() -> dict[str, Any]:
    """Options that run the script as somebody who is not root."""
    root = {"user": 7, "group": 8, "extra_groups": []}
    return root if os.getuid() == 0 else {"user": os.getuid(), "group": os.getgid()}


def test_a_user_writes_as_that_user(open_folder: Path) -> None:
    machine = Machine(open_folder, "cpu")
    who = user()
    os.chown(machine.project, who["user"], who["group"])
    succeeded(machine.run(**who))
    written = yaml.safe_load((machine.project / NAME).read_text())
    assert written["services"]["env"] == {"user": f"{who['user']}:{who['group']}"}


def test_a_proxys_bundle_is_a_secret_of_the_build(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "cpu")
    bundle = tmp_path / r"the company's \c.pem"
    bundle.write_text("x")
    machine.variables["SSL_CERT_FILE"] = str(bundle)
    assert machine.service() == {"build": {"secrets": ["ca"]}}
    written = yaml.safe_load((machine.project / NAME).read_text())
    assert written["secrets"] == {"ca": {"file": str(bundle)}}
    bundle.unlink()
    assert machine.service() == {}


# ---- what is there already


def test_its_own_file_is_replaced(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "rocm").lay(RADEON)
    assert machine.service()
    shutil.rmtree(machine.root / "dev")
    assert machine.service("no AMD GPU") == {}


@pytest.mark.parametrize("kind", ["file", "folder", "pipe", "link"])
def test_what_it_did_not_write_stays(kind: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, "cpu")
    path = machine.project / NAME
    other = tmp_path / "other"
    other.write_text("services: {mine: {}}\n")
    match kind:
        case "file":
            shutil.copy(other, path)
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(other)
    before = path.lstat()
    assert f"error: {path}: exists" in exited(2, machine.run(timeout=10)).stderr
    now = path.lstat()  # it was read, perhaps in the next second
    assert (now.st_ino, now.st_mode, now.st_ctime_ns) == (
        before.st_ino,
        before.st_mode,
        before.st_ctime_ns,
    )
    assert other.read_text() == "services: {mine: {}}\n"
    assert names_in(machine.project) == {"compose-override.sh", NAME}


def test_a_folder_that_cannot_be_written_is_named(open_folder: Path) -> None:
    machine = Machine(open_folder, "cpu")
    machine.project.chmod(0o555)
    done = exited(2, machine.run(**user()))
    assert done.stderr == f"error: {machine.project}: cannot be written\n"
    assert not (machine.project / NAME).exists()
