"""The variables that choose the GPUs of an environment."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from envbuilder.builds.backends import container, devices
from envbuilder.builds.request import Request
from envbuilder.containers.engine.container import Devices
from envbuilder.core import types
from envbuilder.core.settings import Settings
from envbuilder.profiles.profile import Run
from tests.support.engines import FakeEngine
from tests.support.pipeline import a_build
from tests.unit.builds.backends.test_backends import TARGET, docker_plan, probe, shipped

CUDA = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}
HIP = {"HIP_VISIBLE_DEVICES": "1"}
ROCM = replace(
    shipped("xpu")[0],
    accelerator="rocm",
    run=Run(
        devices=("/dev/kfd", "/dev/dri"), groups_of=("/dev/kfd", "/dev/dri/renderD*"), shm_size="8g"
    ),
)
NODES = {"/dev/kfd": 110, "/dev/dri": 0, "/dev/dri/renderD128": 992, "/dev/dri/renderD129": 992}
ACCESS = Devices(nodes=("/dev/kfd", "/dev/dri"), groups=(110, 992), shm_size="8g")
BY_CDI = Devices(cdi=("amd.com/gpu=all",), groups=(110, 992), shm_size="8g")


@pytest.mark.parametrize(
    ("accelerator", "hiding", "environ", "expected", "note"),
    [
        ("cuda", {}, {}, {}, ""),
        ("cuda", {}, {"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "1"}, ""),
        ("xpu", {}, {"CUDA_VISIBLE_DEVICES": "1"}, {}, ""),
        ("cpu", {}, {"CUDA_VISIBLE_DEVICES": "1"}, {}, ""),
        ("cuda", CUDA, {}, CUDA, "CUDA_VISIBLE_DEVICES=1 hides GPUs that do not work"),
        ("cuda", CUDA, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, CUDA, "CUDA_VISIBLE_DEVICES=1 hides"),
        (
            "cuda",
            CUDA,
            {"CUDA_VISIBLE_DEVICES": "0,1"},
            {"CUDA_VISIBLE_DEVICES": "0,1"},
            "CUDA_VISIBLE_DEVICES=0,1 is set",
        ),
        (
            "xpu",
            {"ZE_AFFINITY_MASK": "1"},
            {"ONEAPI_DEVICE_SELECTOR": "level_zero:0"},
            {"ONEAPI_DEVICE_SELECTOR": "level_zero:0"},
            "ONEAPI_DEVICE_SELECTOR=level_zero:0 is set",
        ),
        ("rocm", HIP, {}, HIP, "HIP_VISIBLE_DEVICES=1 hides GPUs that do not work"),
        (
            "rocm",
            HIP,
            {"ROCR_VISIBLE_DEVICES": "0"},
            {"ROCR_VISIBLE_DEVICES": "0"},
            "ROCR_VISIBLE_DEVICES=0 is set",
        ),
        (
            "rocm",
            HIP,
            {"CUDA_VISIBLE_DEVICES": "0"},
            {"CUDA_VISIBLE_DEVICES": "0"},
            "CUDA_VISIBLE_DEVICES=0 is set",
        ),
    ],
)
def test_what_the_user_set_takes_precedence(
    accelerator: types.Accelerator,
    hiding: dict[str, str],
    environ: dict[str, str],
    expected: dict[str, str],
    note: str,
) -> None:
    chosen, said = devices.visible(accelerator, hiding, environ)
    assert chosen == expected
    assert note in said


def test_the_groups_of_kfd_and_of_the_render_nodes_may_differ() -> None:
    """/dev/kfd is passed on and decides on a group; the folder /dev/dri belongs to root."""
    assert devices.devices(ROCM, NODES) == ACCESS
    assert devices.devices(ROCM, {**NODES, "/dev/kfd": 992}).groups == (992,)
    assert devices.devices(ROCM, {}) == Devices(shm_size="8g"), "only what the host has"


@pytest.mark.parametrize(
    ("nodes", "force", "expected"),
    [(NODES, False, BY_CDI), (NODES, True, ACCESS), ({}, False, Devices(shm_size="8g"))],
    ids=["amd", "amd-forced", "none"],
)
def test_a_container_gets_what_its_engine_describes_and_its_host_has(
    nodes: dict[str, int],
    force: bool,
    expected: Devices,
    found: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "host_nodes", lambda profile: nodes)
    engine = FakeEngine("trial:1")
    engine.described = frozenset({"amd.com/gpu=all"})
    planned = docker_plan("cpu", found, only_tag="trial:1")
    request = Request(force=force)
    build = a_build(found, ROCM, request=request, device_variables=HIP)
    environment = container.DockerEnvironment(build, TARGET, planned, engine)
    probe(environment)
    (started,) = engine.containers
    assert started.devices == expected
    assert started.variables["HIP_VISIBLE_DEVICES"] == "1"
    assert "HSA_OVERRIDE_GFX_VERSION" not in started.variables
