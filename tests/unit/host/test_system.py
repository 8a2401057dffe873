"""The C library, containers and WSL: each on a tree of files that is written here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from envbuilder.host import model as host, probe
from envbuilder.host.snapshot import Reader
from tests.support.repositories import lay

HEX = "0123456789abcdef" * 4


def found(
    root: Path, files: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> host.Host:
    lay(root, {"proc/version": "Linux version 6.8.0 ()\n", **files})
    return probe.host(root, environ)


@pytest.mark.parametrize(
    ("files", "libc"),
    [
        ({"libc.txt": "glibc 2.36\n"}, "glibc 2.36"),
        ({"libc.txt": "musl 1.2.4\n"}, "musl 1.2.4"),
        ({"libc.txt": "musl\n"}, "musl"),
        ({"libc.txt": "glibc 2.36", "lib/ld-musl-x86_64.so.1": ""}, "glibc 2.36"),
        ({"libc.txt": "uclibc 1\n"}, None),
        ({"libc.txt": "glibc " + "9" * 400}, None),
        ({"libc.txt": "", "lib/ld-musl-x86_64.so.1": ""}, "musl"),
        ({"lib/ld-musl-x86_64.so.1": ""}, "musl"),
        ({"lib/ld-musl-aarch64.so.1": ""}, "musl"),
        ({"lib/ld-musl-x86_64.so.1": "", "lib64/ld-linux-x86-64.so.2": ""}, None),
        ({}, None),
    ],
)
def test_c_library(files: dict[str, str], libc: str | None, tmp_path: Path) -> None:
    assert found(tmp_path, files).libc == libc


def test_c_library_of_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def read() -> dict[str, str]:
        reader = Reader(tmp_path)
        reader.live = True
        probe.read_system(reader)
        return reader.files

    monkeypatch.setattr("os.confstr", lambda name: f"glibc 2.99 of {name}")
    assert read()["libc.txt"] == "glibc 2.99 of CS_GNU_LIBC_VERSION"

    def refuse(name: str) -> str:
        raise ValueError(name)

    monkeypatch.setattr("os.confstr", refuse)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/ld-musl-x86_64.so.1").touch()
    files = read()
    assert "libc.txt" not in files
    assert "lib/ld-musl-x86_64.so.1" in files


@pytest.mark.parametrize(
    "files",
    [
        {".dockerenv": ""},
        {"run/.containerenv": ""},
        {".singularity.d/labels.json": "{}"},
        {"var/run/secrets/kubernetes.io/serviceaccount/namespace": "x"},
        {"run/systemd/container": "lxc\n"},
        {"run/host/container-manager": "systemd-nspawn\n"},
        {"proc/self/cgroup": f"4:cpu:/docker/{HEX}\n"},
        {"proc/self/cgroup": f"0::/system.slice/docker-{HEX}.scope\n"},
        {"proc/self/cgroup": "0::/kubepods.slice/kubepods-pod1.slice\n"},
        {"proc/self/cgroup": f"0::/system.slice/cri-containerd-{HEX}.scope\n"},
        {"proc/self/cgroup": f"0::/machine.slice/libpod-{HEX}.scope/container\n"},
        {"proc/self/cgroup": "0::/lxc.payload.box/init.scope\n"},
        {"proc/self/cgroup": "5:memory:/lxc/box\n"},
        {"proc/self/cgroup": "5:memory:/docker/buildkit/x\n"},
    ],
)
def test_signs_of_a_container(files: dict[str, str], tmp_path: Path) -> None:
    assert found(tmp_path, files).container


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/\n"},
        {"proc/self/cgroup": "0::/system.slice/docker.service\n"},
        {"proc/self/cgroup": "0::/system.slice/containerd.service\n"},
        {"proc/self/cgroup": "0::/user.slice/user-1000.slice/podman.service\n"},
        {"proc/self/cgroup": "0::/lxc.monitor.box\n"},
        {"run/systemd/container": "wsl\n"},
        {"run/systemd/container": "\n"},
        {"run/secrets/other": ""},
    ],
)
def test_what_is_no_sign_of_a_container(files: dict[str, str], tmp_path: Path) -> None:
    assert not found(tmp_path, files).container


@pytest.mark.parametrize(
    ("environ", "container"),
    [
        ({"container": "podman"}, True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True),
        ({"container": "my own word"}, False),
        ({}, False),
    ],
)
def test_variables_of_a_container(environ: dict[str, str], container: bool, tmp_path: Path) -> None:
    assert found(tmp_path, {"proc/self/cgroup": "0::/\n"}, environ).container is container


@pytest.mark.parametrize(
    ("kernel", "wsl", "first"),
    [
        ("4.4.0-19041-Microsoft\n", True, True),
        ("5.15.167.4-microsoft-standard-WSL2\n", True, False),
        ("4.4.0-210-generic\n", False, False),
    ],
)
def test_wsl_1_says_that_it_has_no_gpu(kernel: str, wsl: bool, first: bool, tmp_path: Path) -> None:
    here = found(tmp_path, {"proc/sys/kernel/osrelease": kernel})
    assert here.wsl is wsl
    assert any("WSL 1" in note for note in here.notes) is first
