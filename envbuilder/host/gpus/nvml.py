"""Query NVIDIA's management library (NVML) about the driver and each GPU.

`ask` needs the optional package `nvidia-ml-py`. In a recorded tree, `nvml.json` has the format that
`ask` returns: {"driver_version", "devices": [`Device`]} or {"error"}. The only required field of a
device is its name. Unknown keys are ignored.
"""

from __future__ import annotations

import importlib
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import decoding
from envbuilder.host.snapshot import clean, version

# Values from nvml.h.
_CLOCK_MEMORY = 2
_NOT_SUPPORTED = 3
_NOT_FOUND = 6
_FABRIC_STARTED = 2
_FABRIC_COMPLETED = 3
_MOST_INSTANCES = 64
"""Maximum number of MIG instances to query on one card."""


class Device(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU that NVML lists, which means that the driver lets this process use it."""

    name: str
    bus: str | None = None
    minor: int | None = None
    """The number of the device node: N in /dev/nvidiaN."""
    memory_bytes: int | None = None
    reserved_bytes: int | None = None
    """The part of `memory_bytes` that the driver and the firmware reserve."""
    shared_memory: bool | None = None
    """True if NVML reports that the GPU has no memory of its own; otherwise None."""
    sm: str | None = None
    memory_mhz: int | None = None
    """The highest clock rate of the memory in MHz."""
    memory_bits: int | None = None
    """Width of the memory bus in bits."""
    mig: bool | None = None
    instances: int | None = None
    """Number of MIG instances that programs can use; None if MIG is off or the number is
    unknown."""
    fabric: int | None = None
    """State of the NVLink fabric (nvmlGpuFabricState_t): 0 none, 1 not started, 2 in progress, 3
    completed."""


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """NVML's response. If the query failed, `error` contains the reason."""

    driver_version: str | None = None
    devices: tuple[Device, ...] = ()
    error: str = ""


def ask() -> str | None:
    """Return NVML's response as JSON, or None if `nvidia-ml-py` is not installed."""
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
    handles = {}
    lost: Exception | None = None
    for index in range(library.nvmlDeviceGetCount()):
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
            handles[library.nvmlDeviceGetPciInfo(handle).busId] = handle
        except Exception as error:  # noqa: BLE001 (as above; one lost GPU must not hide the others)
            lost = error
    if lost is not None and not handles:
        raise lost
    return Answer(
        driver_version=_value(library, "nvmlSystemGetDriverVersion"),
        devices=tuple(_device(library, bus, handle) for bus, handle in handles.items()),
    )


def _device(library: Any, bus: str, handle: Any) -> Device:
    def number(function: str, *more: object) -> int | None:
        value = _value(library, function, handle, *more)
        if isinstance(value, int):
            return value
        return None

    name = _value(library, "nvmlDeviceGetName", handle)
    capability = _value(library, "nvmlDeviceGetCudaComputeCapability", handle)
    modes = _value(library, "nvmlDeviceGetMigMode", handle)
    total, reserved, shared = _memory(library, handle)
    return Device(
        name=name or "",
        bus=bus,
        minor=number("nvmlDeviceGetMinorNumber"),
        memory_bytes=total,
        reserved_bytes=reserved,
        shared_memory=shared,
        sm=".".join(map(str, capability)) if capability else None,
        memory_mhz=number("nvmlDeviceGetMaxClockInfo", _CLOCK_MEMORY),
        memory_bits=number("nvmlDeviceGetMemoryBusWidth"),
        mig=bool(modes[0]) if modes else None,
        instances=_instances(library, handle) if modes and modes[0] else None,
        fabric=_fabric(library, handle),
    )


def _instances(library: Any, handle: Any) -> int | None:
    """Return the number of a card's MIG instances, or None if it is unknown."""
    most = _value(library, "nvmlDeviceGetMaxMigDeviceCount", handle)
    if not isinstance(most, int):
        return None
    count = 0
    for index in range(min(most, _MOST_INSTANCES)):
        try:
            library.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except Exception as error:  # noqa: BLE001 (the library defines its errors at run time)
            if getattr(error, "value", None) != _NOT_FOUND:
                return None
        else:
            count += 1
    return count


def _fabric(library: Any, handle: Any) -> int | None:
    """Return the state of a card's NVLink fabric.

    Return None if the driver or the Python package does not report the state.
    """
    import ctypes

    try:
        info = library.c_nvmlGpuFabricInfo_t()
        library.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    except Exception:  # noqa: BLE001 (as above)
        return None
    # Set up, but with an error.
    if info.state == _FABRIC_COMPLETED and info.status != 0:
        return _FABRIC_STARTED
    return int(info.state)


def _memory(library: Any, handle: Any) -> tuple[int | None, int | None, bool | None]:
    """Return a GPU's total and reserved memory in bytes, and whether it has no memory of its own.

    Each of the three values is None if it is unknown.
    """
    try:
        info = library.nvmlDeviceGetMemoryInfo(handle, version=library.nvmlMemory_v2)
        return int(info.total), int(info.reserved), None
    except Exception:  # noqa: BLE001, S110 (older drivers and packages lack version 2)
        pass
    try:
        return int(library.nvmlDeviceGetMemoryInfo(handle).total), None, None
    except Exception as error:  # noqa: BLE001 (as above)
        shared = getattr(error, "value", None) == _NOT_SUPPORTED
        return None, None, True if shared else None


def _value(library: Any, function: str, *arguments: object) -> Any:
    """Call an NVML function and return its result.

    Return None if the driver or the Python package does not support the function.
    """
    try:
        return getattr(library, function)(*arguments)
    except Exception:  # noqa: BLE001 (the library defines its errors at run time)
        return None


def parse(text: str | None) -> Answer | None:
    """Parse a recorded response, clean its values, and return it.

    Return None if there is no response. If the response is damaged, the `error` of the result says
    so.
    """
    if text is None:
        return None
    try:
        answer = decoding.from_json(text, Answer)
    except (ValueError, RecursionError) as error:
        return Answer(error=f"nvml.json is damaged ({clean(str(error))})")
    return Answer(
        driver_version=clean(answer.driver_version),
        devices=tuple(map(_checked, answer.devices)),
        error=clean(answer.error) or "",
    )


def _checked(device: Device) -> Device:
    numbers = version(device.sm)
    good = numbers is not None and len(numbers) == 2 and numbers[0] < 100 and numbers[1] < 10
    return replace(
        device,
        name=clean(device.name) or "NVIDIA GPU",
        bus=address(device.bus),
        minor=_within(device.minor, 254, least=0),
        memory_bytes=_within(device.memory_bytes, 2**53),
        reserved_bytes=_within(device.reserved_bytes, 2**53, least=0),
        sm=f"{numbers[0]}.{numbers[1]}" if good and numbers else None,
        # NVML sets all bits for "not available".
        memory_mhz=_within(device.memory_mhz, 10**5),
        memory_bits=_within(device.memory_bits, 2**16),
        instances=_within(device.instances, 10**3, least=0),
        fabric=_within(device.fabric, 2**31, least=0),
    )


def _within(value: int | None, most: int, least: int = 1) -> int | None:
    if value is not None and least <= value <= most:
        return value
    return None


def address(bus: str | None) -> str | None:
    """Convert a PCI address to the format of sysfs (lower case, four-digit domain).

    NVML writes addresses in upper case, with an eight-digit domain. Return None if the address is
    missing or malformed.
    """
    domain, separator, rest = (clean(bus) or "").lower().partition(":")
    if separator:
        return f"{domain[-4:]}:{rest}"
    return None
