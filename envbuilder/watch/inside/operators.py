"""Count PyTorch's operators in sampled steps: where they ran, in which dtype, and what was copied.

A dispatch mode sees each operator once, below autograd, forward and backward, with the tensors that
it really gets: after autocast, and after any wrapper that a script never called.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import time
import warnings
import weakref
from functools import lru_cache
from typing import Any, Callable, Dict, List, Set, Tuple

MOST_SECONDS = 3.0
"""A sampled step that takes longer, such as one with a validation in it, is seen up to here."""
MOST_KEYS = 4096
"""Kinds of operators that are counted apart; the user's script may make any number."""
_COPIES = ("aten::_to_copy", "aten::copy_")
_LOSSES = ("aten::nll_loss_forward", "aten::nll_loss2d_forward")
_WORK = ("operator", "device", "dtype", "flops", "seconds", "inferred")
_COPY = ("source", "target", "where", "shape", "bytes", "calls", "again")
_FALLBACK = re.compile(
    r"[Oo]perator '?([\w:.]{3,80})'? .{0,60}fall back to run on the CPU"
    r"|fallback from \w+ to CPU.{0,200}?(aten::\w{1,60})",
    re.DOTALL,
)
_HERE = os.path.dirname(os.path.abspath(__file__))


def device_name(device: Any) -> str:
    """Return a device's name, of accelerators with their index."""
    if device.index is not None and device.type != "cpu":
        return str(device)
    return str(device.type)


def tensors_in(kind: Any, value: Any, depth: int = 0) -> List[Any]:
    """Return the tensors in a batch of lists, tuples and mappings, the first of each 32."""
    if isinstance(value, kind):
        return [value]
    if hasattr(value, "values"):
        value = list(value.values())
    if depth == 4 or not isinstance(value, (list, tuple)):
        return []
    return [t for each in value[:32] for t in tensors_in(kind, each, depth + 1)]


def sized(tensors: List[Any]) -> Tuple[int, int]:
    """Return the samples of a batch, and its tokens if it holds sequences of numbers."""
    if not tensors or not tensors[0].dim():
        return 0, 0
    ids = [t for t in tensors if t.dim() == 2 and not t.is_floating_point() and t.shape[1] > 1]
    return tensors[0].shape[0], ids[0].numel() if ids else 0


def is_compiled() -> bool:
    """Return whether `torch.compile` has compiled something."""
    counters = sys.modules.get("torch._dynamo.utils")
    return bool(counters and counters.counters["frames"].get("ok"))


def is_capturing(cuda: Any) -> bool:
    """Return whether a CUDA graph is captured: waiting for the device would break that."""
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def see_fallbacks(names: Set[str], record: Any) -> None:
    """Add the operators to which warnings say that they fell back to the CPU."""

    def shown(message: Any, *details: Any) -> None:
        found = _FALLBACK.search(str(message)[:1000])
        if found and len(names) < 64:
            names.add(found[1] or found[2])

    record.wrap(warnings, "showwarning", before=shown)


def add_bytes(table: Dict[Any, int], tensor: Any) -> None:
    """Add a tensor's bytes to those of its device and dtype."""
    key = device_name(tensor.device), str(tensor.dtype).replace("torch.", "")
    table[key] = table.get(key, 0) + tensor.numel() * tensor.element_size()


class Operators:
    """The counts of all sampled steps of a process."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._tensor = torch.Tensor
        self._roots: Dict[int, Tuple[Any, int]] = {}
        """Outermost modules of this step that run with gradients, and how many samples each got."""
        self._labels: Set[int] = set()
        self.seen: Dict[str, int] = dict.fromkeys(("classes", "labels", "evaluating", "single"), 0)
        self._work: Dict[Any, Any] = {}
        self._copies: Dict[Any, Any] = {}
        self.copied: Dict[Any, Any] = {}
        """Tensor and a device that had it in this step → the tensor, and the one there, weakly."""

    def operators(
        self, function: Any, arguments: Any, options: Any, out: Any, seconds: float
    ) -> None:
        """Count an operator that ran."""
        results = out if isinstance(out, (tuple, list)) else (out,)
        tensor = next((each for each in results if isinstance(each, self._tensor)), None)
        if tensor is None:
            return
        name = function._schema.name
        if name in _COPIES:
            self._count_copy(name, arguments, tensor)
        dtype = str(tensor.dtype).replace("torch.", "")
        flops = _flops(function, arguments, options, out)
        is_learning = self._torch.is_grad_enabled()
        is_inferring = not is_learning and self._torch._C._current_graph_task_id() < 0
        more = (flops, seconds, flops * is_inferring)
        _add(self._work, (name, device_name(tensor.device), dtype), more)
        if is_learning and flops:
            self._keep_root()
        is_loss = is_learning and name in _LOSSES and not is_capturing(self._torch.cuda)
        if is_loss and type(arguments[1]) is self._tensor:
            labels = arguments[1].flatten().tolist()
            labels = [label for label in labels if label >= 0]  # others are ignored
            self.seen["labels"] += len(labels)
            self._labels.update(labels)

    def _keep_root(self) -> None:
        root: Any = None
        frame: Any = sys._getframe(3)
        while frame is not None:
            if frame.f_code is self._torch.nn.Module._call_impl.__code__:
                root = frame
            frame = frame.f_back
        if root is not None:
            module = root.f_locals["self"]
            samples, _ = sized(tensors_in(self._tensor, root.f_locals["args"]))
            self._roots[id(module)] = module, samples

    def end_step(self, trained: Set[int]) -> None:
        """Count a sampled step by the modules that it ran, of those with trained parameters."""
        of_torch = self._torch.nn.modules
        kinds = of_torch.batchnorm._BatchNorm, of_torch.dropout._DropoutNd
        sizes: Set[int] = set()
        modules: List[Any] = []
        for root, samples in self._roots.values():
            if not trained.isdisjoint(map(id, root.parameters())):
                sizes.add(samples)
                modules += root.modules()
        self._roots.clear()
        # A dropout of nothing is the same after `eval()`.
        is_changed = any(isinstance(m, kinds) and getattr(m, "p", 1) for m in modules)
        self.seen["classes"] = len(self._labels)
        self.seen["evaluating"] += is_changed and not any(m.training for m in modules)
        self.seen["single"] += sizes == {1}

    def _count_copy(self, name: str, arguments: Any, out: Any) -> None:
        source = arguments[0] if name == _COPIES[0] else arguments[1]
        if not isinstance(source, self._tensor) or source.device.type == out.device.type:
            return
        key = (
            device_name(source.device),
            device_name(out.device),
            _line(),
            str(tuple(source.shape)),
        )
        size = source.numel() * source.element_size()
        moved = id(source), key[1]
        # Another one may have got the id of one that is gone, and none is kept for this.
        same, origin = self.copied.get(moved, (lambda: None, bool))
        again = same() is source and origin() is not None
        _add(self._copies, key, (size, 1, int(again)))
        self.copied[moved] = weakref.ref(source), weakref.ref(source)
        self.copied[id(out), key[0]] = weakref.ref(out), weakref.ref(source)

    def fields(self, rows: Callable[..., List[Dict[str, Any]]]) -> Dict[str, Any]:
        """Return the counts as fields of the record."""
        return {
            **self.seen,
            "work": rows(self._work, *_WORK),
            "copies": rows(self._copies, *_COPY),
        }


def devices(torch: Any) -> List[Dict[str, Any]]:
    """Return the devices in use; none is initialized for it."""
    rows: List[Dict[str, Any]] = [{"device": "cpu"}]
    for kind in ("cuda", "xpu"):
        module: Any = getattr(torch, kind, None)
        if getattr(module, "is_initialized", lambda: False)():
            rows += [
                {
                    "device": "%s:%d" % (kind, index),
                    "title": module.get_device_name(index)[:200],
                    "peak": module.max_memory_allocated(index),
                }
                for index in range(module.device_count())
            ]
    return rows[:64]


def _add(table: Dict[Any, Any], key: Tuple[str, ...], more: Tuple[float, ...]) -> None:
    if key in table or len(table) < MOST_KEYS:
        table[key] = [a + b for a, b in zip(table.get(key, (0,) * len(more)), more)]


def _flops(function: Any, arguments: Any, options: Any, out: Any) -> int:
    from torch.utils.flop_counter import flop_registry

    formula = flop_registry.get(function.overloadpacket)
    if formula is None:
        return 0
    try:
        return int(formula(*arguments, **options, out_val=out))
    except Exception:
        return 0


@lru_cache(maxsize=None)
def _libraries() -> Tuple[str, ...]:
    paths = set(map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
    return tuple(os.path.join(path, "") for path in paths if path)


def _line() -> str:
    """Return FILE:LINE of the script that led here; empty if only libraries did."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((*_libraries(), "<", _HERE)):
            return "%s:%d" % (os.path.relpath(name)[-180:], frame.f_lineno)
        frame = frame.f_back
    return ""


def mode(counted: Operators, record: Any) -> Any:
    """Return a dispatch mode that counts each operator; its class needs the framework."""
    from torch.utils._python_dispatch import TorchDispatchMode

    counted.copied.clear()

    class Mode(TorchDispatchMode):  # type: ignore[misc]  # torch is not there when this is checked
        is_over = False
        began = time.perf_counter()
        # Else what a script first compiles in a sampled step stays uncompiled.
        ignore_compile_internals = classmethod(lambda cls: True)

        def __torch_dispatch__(
            self, function: Any, types: Any, arguments: Any = (), options: Any = None
        ) -> Any:
            options = options or {}
            if self.is_over:
                return function(*arguments, **options)
            began = time.perf_counter()
            out = function(*arguments, **options)
            ended = time.perf_counter()
            record.attempt(counted.operators, function, arguments, options, out, ended - began)
            if ended - self.began > MOST_SECONDS:
                self.is_over = True
            return out

    return Mode()
