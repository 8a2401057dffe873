"""What JAX says has run: its profiler's events, read by the names of what XLA compiled.

On a GPU, the profiler records the kernels of each stream with their times, through CUPTI. On the
CPU it records the instructions of the compiled step as XLA executes them. An instruction is counted
only if the executable has it, so that events of Python and of the runtime are none; one that merges
others carries the names of the convolutions and products in it. This proves that XLA executed these
instructions of this executable there. It does not prove which library computed them.
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Set, Tuple

from ..evidence import Kernel, Observation

HOST, DEVICE, STREAM = "/host:CPU", "/device:", "Stream"
"""Names of the profiler's planes, or how they begin; lines of a device that hold kernels."""

HEAVY = ("convolution", "dot", "custom-call")

_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = (.*)")
_OPERATION = re.compile(r"(?:^|\s)([a-z][a-z0-9-]*)\(")
_CALLS = re.compile(r"\bcalls=%?([\w.-]+)")
_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.-]+) .*\{$")
_FLOAT = re.compile(r"\b(bf16|f16|f32|f64|f8\w*)\[")
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}


def observe(jax: Any, executable: str, work: Callable[[], None]) -> Observation:
    """Run ``work`` under the profiler; ``executable`` is the text of what it executes."""
    names = instructions(executable)
    spent: Dict[Tuple[str, bool], float] = defaultdict(float)
    with tempfile.TemporaryDirectory(prefix="envbuilder-") as folder:
        with jax.profiler.trace(folder):
            work()
        for file in Path(folder).rglob("*.xplane.pb"):
            data = jax.profiler.ProfileData.from_file(str(file))
            for name, on_device, nanoseconds in _events(data, names):
                spent[name, on_device] += nanoseconds / 1000
    kernels = [Kernel(name, time, on_device) for (name, on_device), time in spent.items()]
    return Observation(tuple(kernels))


def _events(data: Any, names: Dict[str, str]) -> Iterator[Tuple[str, bool, float]]:
    """Yield name, side and duration of each kernel and each instruction of the executable."""
    for plane in data.planes:
        on_device = plane.name.startswith(DEVICE)
        if not on_device and plane.name != HOST:
            continue
        for line in plane.lines:
            if on_device and not line.name.startswith(STREAM):
                continue
            for event in line.events:
                if on_device or event.name in names:
                    yield names.get(event.name, event.name), on_device, event.duration_ns


def instructions(executable: str) -> Dict[str, str]:
    """Return instruction → its name with the convolutions and products that it merges."""
    called: Dict[str, str] = {}
    contains: Dict[str, Set[str]] = defaultdict(set)
    computation = ""
    for line in executable.splitlines():
        if not line.startswith(" "):
            header = _COMPUTATION.match(line)
            computation = header.group(1) if header else computation
            continue
        instruction = _INSTRUCTION.match(line)
        operation = _OPERATION.search(instruction.group(2)) if instruction else None
        if instruction and operation:
            contains[computation].add(operation.group(1))
            calls = _CALLS.search(instruction.group(2))
            called[instruction.group(1)] = calls.group(1) if calls else ""
    result = {}
    for name, callee in called.items():
        heavy = [operation for operation in HEAVY if operation in contains[callee]]
        result[name] = f"{name} ({', '.join(heavy)})" if callee and heavy else name
    return result


def float_types(executable: str) -> Set[str]:
    """Return the types of floating-point numbers that an executable computes with."""
    return {_DTYPES.get(name, name) for name in _FLOAT.findall(executable)}
