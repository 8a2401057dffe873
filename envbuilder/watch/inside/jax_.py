"""Observe programs with JAX: where its arrays live, what it compiles, and losses that it reads.

JAX has neither optimizers nor steps of its own. A thread looks at the live arrays now and then,
from the first compilation on, when the script has initialized its devices; what was replaced
between two looks are the parameters and the optimizer's state.
"""

from __future__ import annotations

import atexit
import importlib
import linecache
import math
import os
import re
import sys
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Tuple

MOST_ARRAYS = 20_000
"""Arrays that are looked at; the user's script may hold any number."""
_KINDS = {"gpu": "cuda", "metal": "mps"}
_LOSS = re.compile(r"loss|cost|nll", re.IGNORECASE)
_UNSEEN = (
    "steps, batches and waiting for data: JAX has none; a loss's number is that of its reading",
    "operators, copies and gradients: they are within compiled functions",
)


def observe(jax: Any, load: Callable[[str], Any], folder: str) -> None:
    """Begin to observe a framework that was just imported."""
    record = load("record").Record("jax", jax.__version__, folder, _UNSEEN)
    watch = _Watch(jax, record, load("record").rows)
    record.complete = watch.complete
    atexit.register(watch.stop)
    record.write(False)
    for install in (_compilations, _readings):
        record.attempt(install, watch)


def _compilations(watch: _Watch) -> None:
    importlib.import_module("jax.monitoring").register_event_duration_secs_listener(watch.at_event)


def _readings(watch: _Watch) -> None:
    """See numbers that the script reads itself, which costs nothing."""
    kind = importlib.import_module("jax._src.array").ArrayImpl
    read = kind._value.fget

    def value(self: Any) -> Any:
        result = read(self)
        if result.ndim == 0 and result.dtype.kind in "fV":
            watch.attempt(watch.at_reading, self, result)
        return result

    kind._value = property(value)


class _Watch:
    def __init__(self, jax: Any, record: Any, rows: Callable[..., Any]) -> None:
        self._jax = jax
        self._record = record
        self._rows = rows
        self.attempt = record.attempt
        self._library = os.path.dirname(jax.__file__) + os.sep
        self._done = threading.Event()
        self._thread: Any = None
        self._before: Dict[int, Any] = {}
        self._replaced: Deque[Dict[Tuple[str, str], int]] = deque(maxlen=5)
        self._all: Dict[Tuple[str, str], int] = {}
        self._devices: List[Dict[str, Any]] = []
        self._readings = 0
        self._read: Deque[Any] = deque(maxlen=8)

    def at_event(self, event: str, seconds: float, **details: object) -> None:
        """Begin to look at arrays with the first compilation."""
        if self._thread is None and event.startswith("/jax/core/compile"):
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def at_reading(self, array: Any, value: Any) -> None:
        """Keep a number that the script reads, if its name or its line says that it is a loss."""
        frame: Any = sys._getframe(3)
        while frame and frame.f_code.co_filename.startswith(self._library):
            frame = frame.f_back
        if frame is None or threading.current_thread() is self._thread:
            return
        if _LOSS.search(linecache.getline(frame.f_code.co_filename, frame.f_lineno)):
            names = [name for name, bound in frame.f_locals.items() if bound is array]
            # What is read again is a constant.
            is_new = not any(seen() is array for seen in self._read)
            self._read.append(weakref.ref(array))
            if is_new and (not names or any(map(_LOSS.search, names))):
                self._readings += 1
                self._record.add_loss(self._readings, float(value))

    def _run(self) -> None:
        # In a busy program, a thread mostly waits for its turn, which costs others nothing.
        while not self._done.wait(self._record.look(self._arrays, time.thread_time)):
            self._record.heartbeat()

    def _arrays(self) -> None:
        """Add up the arrays that were replaced since the last look, and all there are."""
        # None of this initializes a backend: the script has done that.
        platforms = tuple(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", ()))
        arrays: List[Any] = []
        devices: List[Any] = []
        for name in platforms:
            arrays += self._jax.live_arrays(name)
            devices += self._jax.local_devices(backend=name)
        arrays = [a for a in arrays[:MOST_ARRAYS] if a.dtype.kind in "fV" and not a.is_deleted()]
        before = self._before
        self._before = {id(a): weakref.ref(a) for a in arrays}
        replaced = [a for a in arrays if id(a) not in before or before[id(a)]() is not a]
        self._all = _placed(arrays) or self._all
        if before and replaced:
            self._replaced.append(_placed(replaced))
        self._devices = list(map(_described, devices[:64]))

    def stop(self) -> None:
        """End the thread before the interpreter ends, with a last look."""
        self._done.set()
        if self._thread is not None:
            self._thread.join(1.0)
            self._record.attempt(self._arrays)

    def complete(self) -> Dict[str, Any]:
        """Return all fields of the record, as they are now.

        A look in the middle of a step sees its parameters twice, and on a busy machine most do.
        """
        sizes = [sum(placed.values()) for placed in self._replaced]
        whole = [size for size in sizes if 2 * size >= max(sizes)]
        parameters = self._replaced[sizes.index(min(whole))] if whole else self._all
        return {
            "devices": self._devices,
            "parameters": self._rows(parameters, "device", "dtype", "bytes"),
        }


def _name(device: Any) -> str:
    kind = _KINDS.get(device.platform.lower(), device.platform.lower())
    if kind in ("cpu", "mps"):
        return str(kind)
    return "%s:%d" % (kind, device.id)


def _placed(arrays: List[Any]) -> Dict[Tuple[str, str], int]:
    """Return bytes by device and dtype: of accelerators, unless all arrays are on the CPU.

    What is prepared on the CPU are batches: one function cannot use arrays of both.
    """
    table: Dict[Tuple[str, str], int] = {}
    for array in arrays:
        size = math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
        for device in array.sharding.addressable_devices:
            key = _name(device), str(array.dtype)
            table[key] = table.get(key, 0) + size
    return {key: size for key, size in table.items() if key[0] != "cpu"} or table


def _described(device: Any) -> Dict[str, Any]:
    counted = getattr(device, "memory_stats", lambda: None)() or {}
    return {
        "device": _name(device),
        "title": "" if device.platform == "cpu" else str(device.device_kind)[:200],
        "peak": counted.get("peak_bytes_in_use"),
    }
