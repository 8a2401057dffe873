"""Observe programs with JAX: the calls of compiled functions, and losses that the script reads.

JAX has neither optimizers nor steps of its own. A function that gets back what it returned takes
steps: what comes back are the parameters and the optimizer's state.
"""

from __future__ import annotations

import importlib
import linecache
import math
import os
import re
import sys
import time
import weakref
from typing import Any, Callable, Dict, List

MOST_BYTES = 1 << 26
"""A larger state is not compared, which would copy it."""
MOST_CALLS = 256
"""Calls among which one with a state is sought that is as large as the last one."""
_LOSS = re.compile(r"loss|cost|nll", re.IGNORECASE)
_UNSEEN = (
    "batches and waiting for data: JAX has none; a loss's number is that of its reading",
    "operators, copies and gradients: they are within compiled functions",
)


def observe(jax: Any, load: Callable[[str], Any], folder: str) -> None:
    """Begin to observe a framework that was just imported."""
    record = load("record").Record("jax", jax.__version__, folder, _UNSEEN)
    watch = _Watch(jax, record)
    record.complete = watch.complete
    record.write(False)
    for install in (_calls, _readings):
        record.attempt(install, watch)


def _calls(watch: _Watch) -> None:
    """See calls of compiled functions, unless JAX looks for NaN there."""
    api = importlib.import_module("jax._src.api")
    hook = api._post_hook_state
    if hook.get_global() is None:
        hook.set_global(watch.at_call)
        for each in (api.config.debug_nans, api.config.debug_infs):
            # Where a thread has left a region of these, it has no hook, whatever is set for all.
            watch.record.wrap(
                each,
                "_update_thread_local_hook",
                after=lambda *_: hook.get_local() or hook.set_local(watch.at_call),
            )


def _readings(watch: _Watch) -> None:
    """See numbers that the script reads itself, which costs nothing."""
    read = watch.kind._value.fget

    def value(self: Any) -> Any:
        result = read(self)
        if result.ndim == 0 and result.dtype.kind in "fV":
            watch.record.attempt(watch.at_reading, self, result)
        return result

    watch.kind._value = property(value)


class _Watch:
    def __init__(self, jax: Any, record: Any) -> None:
        self._jax = jax
        self.record = record
        self.kind = importlib.import_module("jax._src.array").ArrayImpl
        self._library = os.path.dirname(jax.__file__) + os.sep
        self._counted: Dict[int, Any] = {}
        """Function → its calls but the one that compiled it, and when the first and last were."""
        self._returned: Dict[int, Any] = {}
        """Function → what its last call returned, weakly, since the last look."""
        self._due = 0.0
        self._sought = self._step = self._size = 0
        """Calls since the last look; the function that takes steps, and the bytes of its state."""
        self._placed: Dict[Any, int] = {}
        self._before: List[int] = []
        self._readings = 0

    def at_call(self, function: Any, given: Any, options: Any, results: Any) -> None:
        """Count a call of a compiled function, and look at it if it is time to."""
        key = id(function)
        now = time.perf_counter()
        counted = self._counted.get(key) or self._counted.setdefault(key, [1, now, now])
        counted[0] += 1
        counted[2] = now
        if now >= self._due:
            self.record.attempt(self._look, key, (given, options), results, now)

    def _look(self, key: int, given: Any, results: Any, began: float) -> None:
        """Take what a function gets back as its state, if no other one has a larger one."""
        back = set(map(id, self._arrays(given)))
        now = self._arrays(results)
        self._placed = self._placed or _placed(now)
        state = []
        for reference, array in zip(self._returned.get(key, ()), now):
            old = reference()
            # What a step returns as it came is frozen.
            if old is not array and id(old) in back:
                state.append(array)
        size = sum(array.nbytes for array in state)
        self._returned[key] = list(map(weakref.ref, now))
        self._sought += 1
        if size and size >= self._size:
            self._step = key
            self._size = size
            self.record.attempt(self._see, state)
        elif self._sought < MOST_CALLS:
            return
        self._sought = 0
        self._returned.clear()
        self._due = began + self.record.rest(time.perf_counter() - began)
        self.record.heartbeat()

    def _arrays(self, tree: Any) -> List[Any]:
        leaves = self._jax.tree_util.tree_leaves(tree)
        return [a for a in leaves if isinstance(a, self.kind) and a.ndim and a.dtype.kind in "fV"]

    def _see(self, state: List[Any]) -> None:
        """Note where a state is, and compare it with that of the last look."""
        self._placed = _placed(state)
        if self._size > MOST_BYTES:
            self.record.note("whether steps change the state, which is larger than 64 MiB")
            return
        steps = self._counted[self._step][0]
        before = self._before
        values = [array._value for array in state]
        self._before = [hash(value.tobytes()) for value in values]
        # Averages of gradients change with a rate of 0, too, and where there are none stay 0: of
        # each shape, one array must be still, or hold NaN.
        shapes = {value.shape for value in values}
        pairs = zip(values, before, self._before)
        still = {value.shape for value, old, new in pairs if old == new}
        lost = {value.shape for value in values if math.isnan(value.sum())}
        if lost == shapes and not self._readings:
            self.record.add_loss(steps, math.nan)
        if before:
            self.record.compared(still != shapes, steps)

    def at_reading(self, array: Any, value: Any) -> None:
        """Keep a number that the script reads, if its name or its line says that it is a loss."""
        frame: Any = sys._getframe(3)
        while frame and frame.f_code.co_filename.startswith(self._library):
            frame = frame.f_back
        if frame and _LOSS.search(linecache.getline(frame.f_code.co_filename, frame.f_lineno)):
            names = [name for name, bound in frame.f_locals.items() if bound is array]
            if not names or any(map(_LOSS.search, names)):
                self._readings += 1
                self.record.add_loss(self._readings, float(value))

    def complete(self) -> Dict[str, Any]:
        """Return all fields of the record, as they are now."""
        steps, first, last = self._counted.get(self._step, (0, 0.0, 0.0))
        # To ask for devices would initialize them.
        devices = self._jax.local_devices() if self._counted else []
        return {
            "devices": [
                {
                    "device": _name(device),
                    "title": "" if device.platform == "cpu" else str(device.device_kind)[:200],
                    "peak": (device.memory_stats() or {}).get("peak_bytes_in_use"),
                }
                for device in devices[:64]
            ],
            "parameters": self.record.rows(self._placed, "device", "dtype", "bytes"),
            "steps": steps,
            "training_seconds": last - first,
        }


def _name(device: Any) -> str:
    if device.platform == "cpu":
        return "cpu"
    return "%s:%d" % (device.platform.lower().replace("gpu", "cuda"), device.id)


def _placed(arrays: List[Any]) -> Dict[Any, int]:
    """Return bytes by device and dtype."""
    table: Dict[Any, int] = {}
    for array in arrays:
        for shard in array.addressable_shards:
            key = _name(shard.device), str(array.dtype)
            table[key] = table.get(key, 0) + shard.data.nbytes
    return table
