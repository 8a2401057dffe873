"""Data loading in worker processes, as users of DataLoader do it.

Workers find these names by importing this module, so they must not be closures or names of
``__main__``: spawned workers import them from the zipapp.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

from .. import start
from . import eager

if TYPE_CHECKING:
    from ..interface import Tensors


class Images:
    """Images and labels in memory; an image is converted and normalised on access."""

    def __init__(self, data: Tensors) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data.labels)

    def __getitem__(self, index: int) -> Tuple[Any, int]:
        return eager.normalise(self._data.images[index]), int(self._data.labels[index])


def begin(isolated: bool, bytecode: Optional[str], worker: int) -> None:
    """Set up a worker: require its parent's isolation, and use one thread.

    Workers run side by side; threads of their own would compete.
    """
    del worker
    start.require_like(isolated, bytecode)
    import torch

    torch.set_num_threads(1)


def make(
    torch: Any,
    data: Tensors,
    order: List[int],
    batch: int,
    workers: int,
    method: Optional[str],
    *,
    pinned: bool,
) -> Any:
    """Return a DataLoader over full batches of ``order``, which are indices into ``data``.

    ``method`` is the start method of the workers: fork, forkserver or spawn; it has no effect
    without workers.
    """
    alike = partial(begin, bool(sys.flags.isolated), sys.pycache_prefix)
    return torch.utils.data.DataLoader(
        Images(data),
        batch_size=batch,
        sampler=order,
        drop_last=True,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
        worker_init_fn=alike if workers else None,
        pin_memory=pinned,
    )


def method_of(dataloader: Any) -> Optional[str]:
    """Return the start method that a DataLoader really uses; None if it has no workers."""
    context = dataloader.multiprocessing_context
    return str(context.get_start_method()) if dataloader.num_workers and context else None
