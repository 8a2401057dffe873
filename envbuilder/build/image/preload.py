"""Preload an image's lower layers into the engine while the upper ones are being made.

An engine unpacks layers one by one in a single thread, which takes about as long as making them. A
preload is an image of its own without the upper layers: when the complete image is loaded, the
engine has already unpacked the lower layers, and they are not sent again.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Self

from envbuilder.containers.engine import connection, images
from envbuilder.core.errors import EnvbuilderError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from envbuilder.build.image.config import Added
    from envbuilder.containers.oci.layout import Bytes, Layout

    Write = Callable[[Sequence[Added]], Layout]

WORTH = 16 << 20
"""Minimum bytes for a preload, which has an overhead of about 0.2 s."""
_GRACE_SECONDS = 10.0
"""How long a failed build waits for a load in progress."""
_STOP_SECONDS = 0.3
"""How long an interrupted one does."""


class Preloader:
    """A background loader of layers under the name `ref`; inactive if `ref` is empty.

    On exit it waits for a load in progress. After an error it removes the name from the engine;
    otherwise the caller removes the tag once the complete image is loaded.
    """

    def __init__(self, ref: str, recorded: Layout) -> None:
        self._ref, self._recorded = ref, recorded
        self._offers: queue.SimpleQueue[tuple[tuple[Added, ...], Write] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._loaded = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self._thread is None:
            return
        self._offers.put(None)
        stopped = kind is not None and not issubclass(kind, Exception)
        grace = _STOP_SECONDS if stopped else _GRACE_SECONDS
        self._thread.join(None if kind is None else grace)
        if kind is not None:
            with contextlib.suppress(EnvbuilderError), connection.connect() as engine:
                engine.forget(self._ref)

    def offer(self, added: Sequence[Added], remaining: Bytes, write: Write) -> None:
        """Offer layers, the last of which was just made; `remaining` bytes of files are left.

        `write` makes an image of the layers. It is loaded once no other load is running, unless
        more layers have been offered by then. It is not loaded if too little is new or remaining.
        """
        if not self._ref or remaining < WORTH:
            return
        self._offers.put((tuple(added), write))
        if self._thread is None:
            # A daemon thread: an engine that hangs must not keep the command from exiting.
            self._thread = threading.Thread(target=self._load_offers, daemon=True)
            self._thread.start()

    def _load_offers(self) -> None:
        while offer := self._offers.get():
            if self._offers.empty():
                # Loading the complete image will hit the same error and report it.
                with contextlib.suppress(EnvbuilderError, OSError):
                    self._load(*offer)

    def _load(self, added: Sequence[Added], write: Write) -> None:
        if sum(item.layer.size for item in added[self._loaded :]) >= WORTH:
            self._loaded = len(added)
            with connection.connect() as engine:
                images.load(engine, write(added), self._recorded, preload=self._ref)
