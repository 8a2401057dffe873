"""What NVIDIA's management library is asked, and what is made of its answers and failures."""

from __future__ import annotations

import ctypes
import importlib
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from envbuilder.host.gpus import nvml


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakeNvml:
    """A driver with H100s; the functions named in `failing` fail, and some answer `otherwise`."""

    nvmlMemory_v2 = 0x02000028  # noqa: N815 (its name there)
    NVMLError = NVMLError

    def __init__(
        self, count: int = 2, failing: tuple[str, ...] = (), code: int = 3, **otherwise: Any
    ) -> None:
        self.count = count
        self.failing = failing
        self.code = code
        self.otherwise = otherwise

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def function(*arguments: Any, **named: Any) -> Any:
            if name in self.failing or f"{name}({arguments[:1]})" in self.failing:
                raise NVMLError(self.code)
            return self.otherwise.get(name, partial(self.answer, name))(*arguments, **named)

        return function

    def answer(self, name: str, *arguments: Any, **named: Any) -> Any:
        if name == "nvmlDeviceGetPciInfo":
            return SimpleNamespace(busId=f"00000000:{arguments[0] + 1:02X}:00.0")
        if name == "nvmlDeviceGetMemoryInfo":
            reserved = {"reserved": 2**28} if named.get("version") == self.nvmlMemory_v2 else {}
            return SimpleNamespace(total=80 * 2**30, **reserved)
        if name == "nvmlDeviceGetMaxClockInfo":
            return {2: 2619}[arguments[1]]
        return {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlSystemGetDriverVersion": "580.95.05",
            "nvmlDeviceGetCount": self.count,
            "nvmlDeviceGetHandleByIndex": arguments[0] if arguments else None,
            "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetMemoryBusWidth": 5120,
            "nvmlDeviceGetMigMode": [0, 0],
        }[name]


def ask(monkeypatch: pytest.MonkeyPatch, library: object) -> nvml.Answer:
    monkeypatch.setattr(importlib, "import_module", lambda _: library)
    text = nvml.ask()
    answer = nvml.parse(text)
    assert text is not None
    return answer


H100 = nvml.Device(
    name="NVIDIA H100 80GB HBM3",
    bus="0000:01:00.0",
    memory_bytes=80 * 2**30,
    reserved_bytes=2**28,
    sm="9.0",
    memory_mhz=2619,
    memory_bits=5120,
    mig=False,
)


def test_two_h100(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ask(monkeypatch, FakeNvml())
    assert answer.error == ""
    assert answer.devices[0] == H100
    assert answer.devices[1].bus == "0000:02:00.0"


FUNCTIONS: dict[str, dict[str, Any]] = {
    "nvmlSystemGetDriverVersion": {},
    "nvmlDeviceGetName": {"name": "NVIDIA GPU"},
    "nvmlDeviceGetCudaComputeCapability": {"sm": None},
    "nvmlDeviceGetMemoryInfo": {
        "memory_bytes": None,
        "reserved_bytes": None,
        "shared_memory": True,
    },
    "nvmlDeviceGetMaxClockInfo": {"memory_mhz": None},
    "nvmlDeviceGetMigMode": {"mig": None},
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_failing_call_costs_only_its_own_value(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ask(monkeypatch, FakeNvml(failing=(function,)))
    assert answer.error == ""
    expected = {name: getattr(H100, name) for name in nvml.Device.__struct_fields__}
    assert answer.devices[0] == nvml.Device(**{**expected, **FUNCTIONS[function]})
    assert (answer.driver_version is None) == (function == "nvmlSystemGetDriverVersion")


def test_memory_that_may_not_be_asked_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ask(monkeypatch, FakeNvml(failing=("nvmlDeviceGetMemoryInfo",), code=4))
    assert (answer.devices[0].memory_bytes, answer.devices[0].shared_memory) == (None, None)


def test_an_old_package_has_only_the_first_form_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = FakeNvml(nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=16 * 2**30))
    device = ask(monkeypatch, old).devices[0]
    assert (device.memory_bytes, device.reserved_bytes) == (16 * 2**30, None)


def test_a_lost_gpu_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = "nvmlDeviceGetHandleByIndex((0,))"
    answer = ask(monkeypatch, FakeNvml(failing=(lost,), code=15))
    assert [device.bus for device in answer.devices] == ["0000:02:00.0"]
    only = ask(monkeypatch, FakeNvml(count=1, failing=(lost,), code=15))
    assert (only.devices, only.error) == ((), "error 15")


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount"])
def test_without_a_start_there_is_no_answer(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ask(monkeypatch, FakeNvml(failing=(function,)))
    assert (answer.devices, answer.error) == ((), "error 3")


def test_without_the_package_nvml_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=ImportError))
    assert nvml.ask() is None


@pytest.mark.parametrize("instances", [(), (0, 3)])
def test_instances_are_counted(instances: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def instance(handle: int, index: int) -> int:
        if index not in instances:
            raise NVMLError(6)
        return handle

    library = FakeNvml(
        1,
        nvmlDeviceGetMigMode=lambda handle: [1, 1],
        nvmlDeviceGetMaxMigDeviceCount=lambda handle: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=instance,
    )
    (device,) = ask(monkeypatch, library).devices
    assert (device.mig, device.instances) == (True, len(instances))


class Fabric(ctypes.Structure):
    _fields_ = (("status", ctypes.c_uint), ("state", ctypes.c_uint))


@pytest.mark.parametrize(
    ("state", "status", "expected"), [(0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 0, 3), (3, 15, 2)]
)
def test_the_state_of_the_fabric(
    state: int, status: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(handle: int, info: Any) -> None:
        info._obj.state = state
        info._obj.status = status

    library = FakeNvml(1, nvmlDeviceGetGpuFabricInfo=tell)
    monkeypatch.setattr(library, "c_nvmlGpuFabricInfo_t", Fabric, raising=False)
    (device,) = ask(monkeypatch, library).devices
    assert device.fabric == expected
