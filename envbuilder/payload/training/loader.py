"""Loading data in worker processes, as users of DataLoader do.

Workers find these names by importing this module, so it must be neither ``__main__`` nor a closure:
workers that are spawned import it from the zipapp.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, List, Optional, Tuple

from .. import start
from . import train


class Digits:
    """Images and labels in memory; an image is converted and normalised when it is asked for."""

    def __init__(self, data: train.Tensors) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data.labels)

    def __getitem__(self, index: int) -> Tuple[Any, int]:
        return train.normalise(self._data.images[index]), int(self._data.labels[index])


def begin(isolated: bool, bytecode: Optional[str], worker: int) -> None:
    """What each worker does first: be isolated as its parent, and use one thread.

    Workers run side by side; threads of their own would compete.
    """
    del worker
    start.require_like(isolated, bytecode)
    import torch

    torch.set_num_threads(1)


def make(
    torch: Any,
    data: train.Tensors,
    order: List[int],
    batch: int,
    workers: int,
    method: Optional[str],
    *,
    pinned: bool,
) -> Any:
    """A DataLoader over full batches of ``order``, which are indices into ``data``.

    ``method`` starts the workers: fork, forkserver or spawn; it says nothing without workers.
    """
    alike = partial(begin, bool(sys.flags.isolated), sys.pycache_prefix)
    return torch.utils.data.DataLoader(
        Digits(data),
        batch_size=batch,
        sampler=order,
        drop_last=True,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
        worker_init_fn=alike if workers else None,
        pin_memory=pinned,
    )


def method_of(made: Any) -> Optional[str]:
    """The start method that a DataLoader really uses; None where it has no workers."""
    context = made.multiprocessing_context
    return str(context.get_start_method()) if made.num_workers and context else None
