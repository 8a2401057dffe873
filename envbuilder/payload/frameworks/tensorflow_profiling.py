"""Kernels that ran and where, from TensorFlow's profiler.

The profiler writes one *plane* for the host and one for each GPU. On the host, TensorFlow's
executor names each operation together with the kernel that it called: the kernel that really ran,
after all rewriting of the graph, so that oneDNN's are visible by their names
(``_MklNativeConv2D``), and so are those of a plug-in. On a GPU, events come from the driver's own
records (CUPTI), and tell that the GPU itself ran something. An operation that only launches a
kernel on a GPU is on the host's plane, too; a tensor's device is not recorded there.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Callable, DefaultDict, Iterator, Tuple

from ..evidence import Kernel, Observation

DEVICE = "/device:"
"""Beginning of the names of all planes but the host's and the profiler's own."""


def observe(tensorflow: Any, work: Callable[[], Any]) -> Observation:
    """Run ``work``, which waits for the device, under the profiler."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    profiler = tensorflow.profiler.experimental
    with TemporaryDirectory() as folder:
        profiler.start(folder)
        try:
            work()
        finally:
            profiler.stop()
        space = xplane_pb2.XSpace()
        for file in Path(folder).rglob("*.xplane.pb"):
            space.MergeFromString(file.read_bytes())
    return Observation(tuple(kernels(space)))


def kernels(space: Any) -> Iterator[Kernel]:
    """Yield the operations of the host and everything that ran on a device, each name once."""
    times: DefaultDict[Tuple[str, bool], float] = defaultdict(float)
    for plane in space.planes:
        on_device = plane.name.startswith(DEVICE)
        for line in plane.lines:
            for event in line.events:
                named = plane.event_metadata[event.metadata_id]
                # Of the host's events, only operations have a second name: the kernel's.
                name = named.name if on_device else named.display_name
                if name:
                    times[name, on_device] += event.duration_ps / 1e6
    for (name, on_device), microseconds in times.items():
        yield Kernel(name, microseconds, on_device)
