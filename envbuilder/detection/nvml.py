"""What NVIDIA's own library says: the driver's version and each GPU's compute capability.

`ask` needs the package `nvidia-ml-py`, which is optional. `nvml.json` in a recorded tree has the
same form: {"driver_version", "devices": [{"name", "bus", "memory_bytes", "sm"}]} or {"error"}.
"""

from __future__ import annotations

import importlib
from typing import Any

import msgspec
from msgspec import Struct

from envbuilder.detection.text import clean, version


class Device(Struct, frozen=True, kw_only=True):
    """One GPU that the driver lets this process use."""

    name: str
    bus: str | None = None
    memory_bytes: int | None = None
    sm: str | None = None


class Answer(Struct, frozen=True, kw_only=True):
    """The library's answer; `error` where it gave none."""

    driver_version: str | None = None
    devices: tuple[Device, ...] = ()
    error: str = ""


def ask() -> str | None:
    """The library's answer as JSON; None where `nvidia-ml-py` is not installed."""
    try:
        library: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
        try:
            answer = _collect(library)
        finally:
            library.nvmlShutdown()
    except Exception as error:  # noqa: BLE001 (the library defines its errors at run time)
        answer = Answer(error=str(error) or type(error).__name__)
    return msgspec.json.encode(answer).decode()


def _collect(library: Any) -> Answer:
    devices = []
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        major, minor = library.nvmlDeviceGetCudaComputeCapability(handle)
        devices.append(
            Device(
                name=_text(library.nvmlDeviceGetName(handle)),
                bus=_text(library.nvmlDeviceGetPciInfo(handle).busId),
                memory_bytes=_memory(library, handle),
                sm=f"{major}.{minor}",
            )
        )
    return Answer(
        driver_version=_text(library.nvmlSystemGetDriverVersion()), devices=tuple(devices)
    )


def _memory(library: Any, handle: Any) -> int | None:
    try:
        return int(library.nvmlDeviceGetMemoryInfo(handle).total)
    except library.NVMLError:  # GPUs that share the host's memory have no answer
        return None


def _text(value: object) -> str:
    # Older versions of the package return bytes.
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


def parse(text: str | None) -> Answer | None:
    """The recorded answer, its text made safe; None for none, `error` where it is damaged."""
    if text is None:
        return None
    try:
        answer = msgspec.json.decode(text, type=Answer)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return Answer(error=f"nvml.json is damaged ({clean(str(error))})")
    return Answer(
        driver_version=clean(answer.driver_version),
        devices=tuple(_checked(device) for device in answer.devices),
        error=clean(answer.error) or "",
    )


def _checked(device: Device) -> Device:
    size = device.memory_bytes
    numbers = version(device.sm)
    good = numbers is not None and len(numbers) == 2 and numbers[0] < 100 and numbers[1] < 10
    return Device(
        name=clean(device.name) or "NVIDIA GPU",
        bus=address(device.bus),
        memory_bytes=size if size is not None and 0 <= size <= 2**53 else None,
        sm=f"{numbers[0]}.{numbers[1]}" if good and numbers else None,
    )


def address(bus: str | None) -> str | None:
    """A PCI address as sysfs spells it: NVML's has eight digits for the domain, in capitals."""
    domain, separator, rest = (clean(bus) or "").lower().partition(":")
    return f"{domain[-4:]}:{rest}" if separator else None
