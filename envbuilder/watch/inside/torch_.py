"""Observe trainings with PyTorch, from version 2.0 on.

Always on: optimizers' hooks count steps, `backward` shows the loss, and loaders are timed. Of short
steps most are only counted: what lies cold in the caches costs ten times what a timing loop shows.
In a sampled step, a dispatch mode sees each operator with its devices and dtypes. Compiled code is
not run under one, which would make it run uncompiled.
"""

from __future__ import annotations

import collections
import importlib
import os
import re
import time
import weakref
from contextlib import nullcontext
from functools import partial, wraps
from typing import Any, Callable, Deque, Dict, List, Set, Tuple

FIRST_STEP = 3
"""The first sampled step: the ones before allocate, tune and compile."""
EAGER = 64
"""The number of first steps that are all looked at, however short they are."""
QUIET = 0.05
"""Seconds for which steps are only counted."""
COUNTED = (
    "optimizers",
    "samples",
    "tokens",
    "windows",
    "window_seconds",
    "gradient_looks",
    "newest_gradient",
)
"""Fields of the record that are counted from 0."""
COMPILED = "training steps: if any, they were compiled with their optimizer"
CAPTURED = "training steps: those of a captured CUDA graph, when it is replayed"
READ_SECONDS = 1.0
MOST_KEPT = 128
"""How often losses are read from an accelerator, which waits for it; how many are kept for that."""
MOST_SAMPLED = 8
SMALL = 1 << 16
"""Parameters compared before and after a step, and elements of each."""


def observe(torch: Any, load: Callable[[str], Any], folder: str) -> None:
    """Begin to observe a framework that was just imported."""
    release = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    record = load("record").Record("torch", torch.__version__, folder)
    watch = _Watch(torch, record, load)
    if release < (2, 0):
        record.complete = lambda: {"unseen": ["training steps: seen from PyTorch 2.0 on"]}
        return
    for install in (_optimizers, _backward, _loaders, _scaling, _profilers):
        record.attempt(install, torch, watch)
    load("operators").see_fallbacks(watch.fallbacks, record)
    record.write(False)


def _optimizers(torch: Any, watch: _Watch) -> None:
    optimizer = importlib.import_module("torch.optim.optimizer")
    gives_way = watch.gives_way

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if watch.compares and not gives_way():
            watch.attempt(watch.before_step, optimizer)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if gives_way():
            return
        now = time.perf_counter()
        if now < watch.next and watch.optimizers.get(optimizer) == watch.steps:
            watch.steps += 1
            watch.optimizers[optimizer] = watch.steps
            watch.lengths.append(now - watch.last)
            watch.last = now
            watch.wants_loss = False
        else:
            watch.attempt(watch.after_step, optimizer, now)

    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)


def _backward(torch: Any, watch: _Watch) -> None:
    original = torch.autograd.backward
    gives_way = watch.gives_way

    @wraps(original)
    def backward(tensors: Any, *arguments: Any, **options: Any) -> Any:
        if gives_way():
            return original(tensors, *arguments, **options)
        if watch.pending:
            watch.count_batches()
        if watch.wants_loss:
            watch.attempt(watch.take_loss, tensors)
        return original(tensors, *arguments, **options)

    torch.autograd.backward = backward


def _loaders(torch: Any, watch: _Watch) -> None:
    from torch.utils.data import dataloader

    original = dataloader._BaseDataLoaderIter.__next__

    @wraps(original)
    def following(self: Any) -> Any:
        began = time.perf_counter()
        batch = original(self)
        watch.attempt(watch.at_batch, self, batch, time.perf_counter() - began)
        return batch

    dataloader._BaseDataLoaderIter.__next__ = following


def _scaling(torch: Any, watch: _Watch) -> None:
    from torch.amp import autocast_mode

    def entered(context: Any) -> None:
        if getattr(context, "_enabled", False):
            watch.autocast["entered"] += watch.torch.is_grad_enabled()
            dtype = str(getattr(context, "fast_dtype", "")).replace("torch.", "")
            if dtype not in watch.autocast["dtypes"]:
                watch.autocast["dtypes"].append(dtype)

    def scaled(scaler: Any, outputs: Any) -> None:
        if scaler.is_enabled():
            watch.autocast["scaled"] = True
            if watch.wants_loss:
                watch.take_loss(outputs)

    watch.record.wrap(autocast_mode.autocast, "__enter__", before=entered)
    # That of CUDA has been a kind of the other one since 2.3.
    scaler = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
    watch.record.wrap(scaler, "scale", before=scaled)


def _profilers(torch: Any, watch: _Watch) -> None:
    """End a dispatch mode when the script's own profiler begins: each operator would be two."""
    for name in ("_prepare_trace", "_start_trace"):
        watch.record.wrap(torch.autograd.profiler.profile, name, before=watch.end_mode)


class _Watch:
    """What is known of this process's training, and when the next step is sampled."""

    mode: Any = None

    def __init__(self, torch: Any, record: Any, load: Callable[[str], Any]) -> None:
        self.torch = torch
        self.record = record
        self.attempt = record.attempt
        self._is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", bool)
        self._counting = load("operators")
        dispatch = importlib.import_module("torch.utils._python_dispatch")
        self._current_mode = dispatch._get_current_dispatch_mode
        stacked = torch._C._len_torch_dispatch_stack
        disable = dispatch._disable_current_modes
        # Of operators in this context no dispatch mode sees any, neither ours nor the script's.
        self._paused: Any = lambda: disable() if stacked() else nullcontext()
        self._tensors = partial(self._counting.tensors_in, torch.Tensor)
        self.fallbacks: Set[str] = set()
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        # → the step that it last took. One that has not stepped yet in the current step takes part
        # in that, as those of several parts of a model do.
        self.optimizers: Any = weakref.WeakKeyDictionary()
        self.steps = 0
        self.record.complete = self.complete
        self.fields: Dict[str, Any] = dict.fromkeys(COUNTED, 0)
        # The first step and the last; when there is more to do after one than to count it.
        self.first = self.last = self.next = self.due = self.read = 0.0
        self.pending: List[Any] = []
        self.loader: Dict[str, Any] = {"batches": 0, "waited": 0.0, "workers": 0}
        self.losses: Deque[Tuple[int, Any]] = collections.deque(maxlen=MOST_KEPT)
        self.wants_loss = True
        if self.mode is not None:  # a worker of a loader, forked while its parent was sampled
            self.mode.is_over = True
        self.mode = None
        self.sampled = False
        self.counts = self._counting.Operators(self.torch)
        self.autocast: Dict[str, Any] = {"entered": 0, "dtypes": [], "scaled": False}
        self.lengths: Deque[float] = collections.deque(maxlen=31)
        self.before: List[Any] = []
        self.compares = True
        self.trainable: Set[int] = set()
        self.without: Set[int] = set()
        """Those that had no gradient so far."""
        self.placed: Dict[Any, int] = {}

    def gives_way(self) -> bool:
        """End looking if this step is being compiled or captured; return whether it is."""
        if self._is_compiling():
            return True
        if not self._counting.is_capturing(self.torch.cuda):
            return False
        self.record.note(CAPTURED)
        self.sampled = False
        self.attempt(self.end_mode)
        return True

    def at_batch(self, iterator: Any, batch: Any, seconds: float) -> None:
        """Count a loader's batch, as one of the training once `backward` follows it."""
        workers = getattr(iterator, "_num_workers", 0)
        tensors = self._tensors(batch)
        self.pending.append((seconds, *self._counting.sized(tensors), workers))
        # An evaluation's; loaders may be a batch ahead.
        if len(self.pending) > 2 or not self.torch.is_grad_enabled():
            self.pending.pop(0)
            if self.mode is not None:
                self.mode.is_over = True

    def take_loss(self, loss: Any) -> None:
        """Keep a step's first loss, which is scaled later if gradients are scaled."""
        if isinstance(loss, self.torch.Tensor) and loss.numel() == 1:
            with self._paused():
                # A view would keep what it is a part of.
                kept = getattr(loss, "_local_tensor", loss).detach().clone()
            self.losses.append((self.steps + 1, kept))
            self.wants_loss = False

    def count_batches(self) -> None:
        """Count the batches that led to a loss."""
        if self.first:
            for seconds, samples, tokens, workers in self.pending:
                self.loader["batches"] += 1
                self.loader["waited"] += seconds
                self.loader["workers"] = workers
                self.fields["samples"] += samples
                self.fields["tokens"] += tokens
        self.pending.clear()

    def before_step(self, optimizer: Any) -> None:
        """Keep some parameters as they were."""
        if self.optimizers.get(optimizer, self.steps) == self.steps:
            # Of all sizes: in half precision, a small rate changes none of the small ones.
            # A rate of zero may freeze some of them.
            chosen = self._trainable(optimizer, "lr") or self._trainable(optimizer)
            chosen.sort(key=lambda p: -p.numel())
            chosen = chosen[:: -(-len(chosen) // MOST_SAMPLED) or 1]
            with self._paused():
                self.before = []
                for parameter in chosen:
                    rows = self._touched(parameter)
                    self.before.append((parameter, rows, self._shard(parameter)[rows].clone()))

    def _shard(self, tensor: Any) -> Any:
        # Of the whole of a sharded one, operators would wait for ranks that look at other steps.
        return self.torch.atleast_1d(getattr(tensor, "_local_tensor", tensor).detach())

    def _touched(self, parameter: Any) -> Any:
        """Return rows that have a gradient: of an embedding, some. A slice if none is known."""
        shard = self._shard(parameter)
        most = max(SMALL * len(shard) // shard.numel(), 1)
        gradient = parameter.grad
        if gradient is None:
            return slice(most)
        if gradient.is_sparse:
            return gradient._indices()[0, :most]
        gradient = self._shard(gradient)
        rows = gradient[(slice(None), *[0] * (gradient.dim() - 1))].nonzero()[:most, 0]
        return rows if len(rows) else slice(0)

    def _trainable(self, optimizer: Any, needed: str = "params") -> List[Any]:
        """Return the parameters that may change here: shards can be empty."""
        return [
            p
            for group in optimizer.param_groups
            if group.get(needed)
            for p in group["params"]
            if p.requires_grad and getattr(p, "_local_tensor", p).numel()
        ]

    def _see_gradients(self, optimizer: Any) -> None:
        """Look which parameters have a gradient, which may be gone when the step is over."""
        trainable = self._trainable(optimizer)
        self.without |= set(map(id, trainable)) - self.trainable
        self.trainable.update(map(id, trainable))
        having = self.without.intersection(id(p) for p in trainable if p.grad is not None)
        self.without -= having
        if having:
            self.fields["newest_gradient"] = self.fields["gradient_looks"]

    def after_step(self, optimizer: Any, now: float) -> None:
        """Count a step; end the sampled one, and begin another if it is time to."""
        if optimizer not in self.optimizers:
            self.fields["optimizers"] += 1
        is_over = self.optimizers.get(optimizer, 0) == self.steps
        if self.sampled or self.without or not self.trainable:
            self.fields["gradient_looks"] += is_over
            self._see_gradients(optimizer)
        self.steps += is_over
        self.optimizers[optimizer] = self.steps
        if not is_over:
            return
        if not self.first:
            self.first = self.last = now
        length = now - self.last
        sampled = self.sampled
        self.sampled = False
        self.end_mode()
        if self.before:
            with self._paused():
                self._compare()
        if sampled or (not self.placed and self.steps >= FIRST_STEP):
            self._place()
        if sampled:
            more = max(length - self._usual(length), 0.0)
            self.counts.end_step(self.trainable)
            self.fields["windows"] += 1
            self.fields["window_seconds"] += length
            self.due = time.perf_counter() + self.record.rest(more)
        elif self.steps >= FIRST_STEP:
            self.lengths.append(length)
        # An accelerator is not waited for: its losses are read when they are old.
        on_cpu = self._loss_device() == "cpu"
        if on_cpu or now >= self.read:
            self.read = now + READ_SECONDS
            self._read_losses(0 if on_cpu else 1)
        self.wants_loss = True
        # Steps follow one another, unless there was an evaluation, say.
        follows = len(self.lengths) < 5 or length < 4 * self._usual(length) + 0.1
        if self.steps >= FIRST_STEP - 1 and now >= self.due and follows:
            self._begin()
        self.record.heartbeat()
        self.compares = self.sampled or self.steps < 2
        # What was done here is no part of the next step.
        self.last = time.perf_counter()
        is_counted = self.steps >= EAGER and not self.sampled and self.mode is None
        self.next = self.last + QUIET if is_counted else 0.0

    def _usual(self, length: float) -> float:
        """Return the median length of the steps before; `length` if there were none."""
        lengths = sorted(self.lengths) or [length]
        return lengths[len(lengths) // 2]

    def _read_losses(self, newest: int = 0) -> None:
        """Record all losses but the newest ones, for which the device may have work to do."""
        with self._paused():
            while len(self.losses) > newest:
                step, loss = self.losses.popleft()
                self.record.add_loss(step, float(loss))

    def _loss_device(self) -> str:
        """Return the kind of device of the losses that are kept; the CPU's if there are none."""
        return str(self.losses[-1][1].device.type) if self.losses else "cpu"

    def _read_if_idle(self) -> None:
        """Read losses unless that would wait: what hangs on the device must not hang the end."""
        kind = self._loss_device()
        stream = getattr(getattr(self.torch, kind, None), "current_stream", None)
        if kind == "cpu" or stream is None or stream().query():
            self._read_losses()

    def _begin(self) -> None:
        """Sample the next step: its operators, too, unless those would be changed by that."""
        self.sampled = True
        if not (
            self._counting.is_compiled()
            or self.torch._C._len_torch_dispatch_stack()
            or self.torch.autograd._profiler_enabled()
        ):
            self.mode = self._counting.mode(self.counts, self.record)
            self.mode.__enter__()

    def end_mode(self, profile: Any = None) -> None:
        """End the dispatch mode; one that another mode lies on is ignored until that has ended."""
        mode = self.mode
        if mode is None:
            return
        mode.is_over = True
        if self._current_mode() is mode:
            mode.__exit__(None, None, None)
            self.mode = None

    def _compare(self) -> None:
        before = self.before
        self.before = []
        is_changed = had_gradient = False
        for parameter, rows, old in before:
            if parameter.device == old.device:
                is_changed |= not self.torch.equal(self._shard(parameter)[rows], old)
                had_gradient |= not isinstance(rows, slice)
        if self.steps > 1 and (had_gradient or is_changed):  # a schedule may begin with 0
            self.record.compared(is_changed, self.steps)

    def _place(self) -> None:
        """Note where the parameters of all optimizers are."""
        self.placed = {}
        for optimizer in list(self.optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._counting.add_bytes(self.placed, parameter)

    def complete(self) -> Dict[str, Any]:
        """Return all fields of the record, as they are now."""
        self.attempt(self._read_if_idle)
        rows = self.record.rows
        compiled = self._counting.is_compiled()
        began = self.record.began
        return {
            "devices": self._counting.devices(self.torch),
            "steps": self.steps,
            **self.fields,
            "began": self.record.started + (self.first or began) - began,
            "training_seconds": self.last - self.first,
            "loader": self.loader if self.loader["batches"] else None,
            "trainable": len(self.trainable),
            "without_gradient": len(self.without),
            "parameters": rows(self.placed, "device", "dtype", "bytes"),
            **self.counts.fields(rows),
            "fallbacks": sorted(self.fallbacks),
            "autocast": self.autocast,
            "threads": self.torch.get_num_threads(),
            "unseen": self.record.unseen + [COMPILED] * (compiled and not self.steps),
        }
