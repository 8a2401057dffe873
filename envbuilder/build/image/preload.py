"""An image's lower layers into the engine while those above are made.

An engine unpacks layer after layer, in one thread; making them takes about as long. What is loaded
is an image of its own, without the upper layers: when the whole one comes, the engine has the lower
ones unpacked already, and they are not sent again.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Self

from envbuilder.containers.engine import client as engine
from envbuilder.containers.engine import images as engines
from envbuilder.core.errors import EnvbuilderError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from envbuilder.build.image.config import Added
    from envbuilder.containers.oci.descriptor import Bytes
    from envbuilder.containers.oci.layout import Layout

    Write = Callable[[Sequence[Added]], Layout]

WORTH = 16 << 20
"""Bytes that are worth a load of their own, which takes some 0.2 s besides."""
_GRACE_SECONDS = 10.0
"""How long a build that failed waits for what the engine is doing."""


class Ahead:
    """Loads layers under the name `ref`, in a thread; none where that is empty.

    In the end it waits for what is under way. After an error the engine forgets the name; else
    the caller removes the tag once the whole image is loaded.
    """

    def __init__(self, ref: str, made: Layout) -> None:
        self._ref, self._made = ref, made
        self._offers: queue.SimpleQueue[tuple[tuple[Added, ...], Write] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._loaded = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *about: object) -> None:
        if self._thread is None:
            return
        self._offers.put(None)
        self._thread.join(None if kind is None else _GRACE_SECONDS)
        if kind is not None:
            with contextlib.suppress(EnvbuilderError):
                engine.forget(self._ref)

    def offer(self, added: Sequence[Added], left: Bytes, write: Write) -> None:
        """The last of these layers was just made, and files of `left` bytes are yet to come.

        `write` makes an image of the layers. It is loaded when no other is being loaded, unless
        more layers are offered by then; not where too little is new, or left.
        """
        if not self._ref or left < WORTH:
            return
        self._offers.put((tuple(added), write))
        if self._thread is None:
            # A daemon: an engine that hangs must not keep the command from ending.
            self._thread = threading.Thread(target=self._load_offers, daemon=True)
            self._thread.start()

    def _load_offers(self) -> None:
        while offer := self._offers.get():
            if self._offers.empty():
                # The load of the whole image will meet the same trouble, and tell.
                with contextlib.suppress(EnvbuilderError, OSError):
                    self._load(*offer)

    def _load(self, added: Sequence[Added], write: Write) -> None:
        if sum(above.layer.size for above in added[self._loaded :]) >= WORTH:
            self._loaded = len(added)
            engines.load(engine.connect(), write(added), self._made, ahead=self._ref)
