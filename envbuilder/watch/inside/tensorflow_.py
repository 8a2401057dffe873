"""Observe trainings with TensorFlow: by Keras' callbacks, version 2 or 3, and by its optimizers.

Keras is imported when a script first uses it, so it is observed by its own import. Of loops that a
script writes itself, optimizers tell their steps and variables, and nothing tells the loss.
"""

from __future__ import annotations

import math
import sys
import time
import weakref
from typing import Any, Callable, Dict, List

MOST_READING = 0.01
"""Share of the time that reading losses from a device may take."""
MOST_SAMPLED = 8
SMALL = 1 << 16
"""Variables that are compared, the smallest ones, and elements of each."""
_UNSEEN = (
    "operators, copies, gradients and waiting for data: they are within TensorFlow's functions",
)
_watches: List[_Watch] = []
_waiting: List[Any] = []
"""Keras that was imported before TensorFlow, which some releases import at their end."""


def observe(module: Any, load: Callable[[str], Any], folder: str) -> None:
    """Begin to observe TensorFlow, or Keras on it, that was just imported."""
    if module.__name__ == "tensorflow":
        record = load("record").Record("tensorflow", module.__version__, folder, _UNSEEN)
        _watches.append(_Watch(module, record))
        record.complete = _watches[0].complete
        record.write(False)
    else:
        _waiting.append(module)
    while _watches and _waiting:
        keras = _waiting.pop()
        backend = getattr(getattr(keras, "backend", None), "backend", lambda: "")
        for install in (_callbacks, _optimizers) if backend() == "tensorflow" else ():
            _watches[0].record.attempt(install, keras, _watches[0])


def _callbacks(keras: Any, watch: _Watch) -> None:
    """See the calls of all callbacks; a callback of ours would be one that a script can see."""
    kind = keras.callbacks.CallbackList
    # Keras 3 calls the second one, in a thread, if no callback needs to be in step.
    batch_end = "_on_train_batch_end" if hasattr(kind, "_on_train_batch_end") else None
    for name, seen in (
        ("on_train_begin", watch.at_fit),
        ("on_epoch_begin", watch.at_epoch),
        (batch_end or "on_train_batch_end", watch.at_batch),
    ):
        watch.record.wrap(kind, name, after=seen)
    iterators: Any = sys.modules.get("keras.src.trainers.epoch_iterator")
    if iterators is not None:  # Keras 3
        watch.record.wrap(iterators.EpochIterator, "__init__", after=watch.at_data)


def _optimizers(keras: Any, watch: _Watch) -> None:
    watch.record.wrap(keras.optimizers.Optimizer, "build", after=watch.at_build)


class _Watch:
    def __init__(self, tensorflow: Any, record: Any) -> None:
        self._tensorflow = tensorflow
        self.record = record
        self._variables: Any = weakref.WeakKeyDictionary()
        """Optimizer → its variables, weakly."""
        self._placed: Dict[Any, int] = {}
        self._steps = 0
        self._batch = -1
        self._samples = 0
        self._size = self._next_size = 0
        self._labels: Dict[str, int] = {}
        self._counters: List[Any] = []
        """Each optimizer's number of steps, which outlives it."""
        self._first = self._last = self._due = self._read = 0.0
        self._before: List[bytes] = []

    def at_data(self, iterator: Any, *arguments: Any) -> None:
        """Take the size of batches and the labels, where they are known before there is a batch."""
        self._next_size = iterator.data_adapter.batch_size or 0
        for labels in getattr(iterator.data_adapter, "_inputs", ())[1:2]:
            if getattr(getattr(labels, "dtype", None), "kind", "") in ("i", "u", "f"):
                some = labels[:SMALL]
                # Of a vector, the place of its 1 is the class.
                if some.ndim == 2 and some.max(1).sum() == some.sum() == len(some):
                    some = some.argmax(1)
                if some.dtype.kind != "f":
                    some = some.ravel()[:SMALL].tolist()
                    self._labels = {"classes": len(set(some)), "labels": len(some)}

    def at_fit(self, callbacks: Any, *arguments: Any) -> None:
        """Take the last batches that were prepared as those of this training."""
        self._size = self._next_size
        self._next_size = 0

    def at_epoch(self, callbacks: Any, *arguments: Any) -> None:
        """Count batches from the first one again."""
        self._batch = -1

    def at_batch(self, callbacks: Any, batch: int, logs: Any = None) -> None:
        """Count the steps up to a batch, keep its loss, and now and then look at variables."""
        now = time.perf_counter()
        # In threads of Keras, batches may come out of order.
        steps = max(int(batch) - self._batch, 0)
        self._batch = max(int(batch), self._batch)
        self._steps += steps
        if self._first:
            self._samples += steps * self._size
        else:
            self._first = now
        self._last = now
        if logs and "loss" in logs and now >= self._read:
            self.record.add_loss(self._steps, float(logs["loss"]))
            self._read = now + (time.perf_counter() - now) / MOST_READING
        if now >= self._due:
            self._due = now + self.record.look(self._look)
        self.record.heartbeat()

    def at_build(self, optimizer: Any, variables: Any, *arguments: Any) -> None:
        """Take an optimizer's variables, which it gets once."""
        if optimizer not in self._variables:
            self._counters.append(optimizer.iterations)
        self._variables[optimizer] = list(map(weakref.ref, variables))
        self._place()

    def _values(self) -> List[Any]:
        """Return TensorFlow's variables behind those of all optimizers; Keras 3 has its own."""
        values = []
        for references in list(self._variables.values()):
            for reference in references:
                variable = reference()
                if variable is not None:
                    value = getattr(variable, "value", None)
                    values.append(variable if callable(value) else value)
        return values

    def _place(self) -> None:
        table: Dict[Any, int] = {}
        variables = self._values()
        for variable in variables:
            key = _device(variable.device), variable.dtype.base_dtype.name
            table[key] = table.get(key, 0) + math.prod(variable.shape) * variable.dtype.size
        if variables:
            self._placed = table

    def _look(self) -> None:
        """Compare some variables with those at the last look, and see where all of them are."""
        self._place()
        chosen = sorted(self._values(), key=lambda v: math.prod(v.shape))[:MOST_SAMPLED]
        now = [self._tensorflow.reshape(v, [-1])[:SMALL].numpy().tobytes() for v in chosen]
        if self._before:
            self.record.compared(self._before != now, self._steps)
        self._before = now

    def complete(self) -> Dict[str, Any]:
        """Return all fields of the record, as they are now."""
        if sys.is_finalizing():
            return {}
        info = self._tensorflow.config.experimental.get_memory_info
        # Optimizers count steps themselves; the one with the most has those of the training.
        counted = (int(counter.numpy()) for counter in self._counters)
        steps = self._steps or max(counted, default=0)
        if steps and not self._steps:
            self.record.note("the loss, batches and time of steps: Keras' `fit` did not take them")
        return {
            "devices": [
                {
                    "device": name,
                    "peak": info(name.replace("cuda", "GPU"))["peak"] if "cuda" in name else None,
                }
                for name in sorted({device for device, _ in self._placed})
            ],
            "optimizers": len(self._counters),
            "steps": steps,
            "training_seconds": self._last - self._first,
            "samples": self._samples or None,
            "parameters": self.record.rows(self._placed, "device", "dtype", "bytes"),
            **self._labels,
        }


def _device(name: str) -> str:
    """Return the name that all frameworks share of `/job:…/device:GPU:0`."""
    kind, _, index = name.rpartition("device:")[2].lower().partition(":")
    if kind in ("", "cpu"):
        return "cpu"
    return "%s:%s" % ({"gpu": "cuda"}.get(kind, kind), index or "0")
