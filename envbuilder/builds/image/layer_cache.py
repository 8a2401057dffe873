"""Cache layers: derived data, shared by all profiles, never trusted without a hash.

Layers are looked up by their inputs. An entry names a blob by digest, which is hashed before use.
Blobs and entries each appear by one rename, so that a killed build leaves nothing that a later one
would trust. Deleting the folder costs only time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from envbuilder.builds.plan import fingerprint
from envbuilder.containers.oci.layer import Layer, compressor
from envbuilder.containers.oci.layout import Descriptor, Layout, decode, encode
from envbuilder.core import files
from envbuilder.core.errors import EnvbuilderError, InvalidError

_T = TypeVar("_T")
FORMAT = 4
"""Incremented when the same inputs give different bytes."""
SYSTEM_FORMAT = 2
"""The same for layers whose packages an engine installed."""


class MadeLayers:
    """The layers of the builds of one command, so that none of them is made or hashed twice."""

    def __init__(self) -> None:
        self.entries: set[Path] = set()
        """Those that were made."""
        self._sound: set[Path] = set()
        """The blobs that have the right hash."""
        self._guard = threading.Lock()
        self._turns: dict[Path, threading.Lock] = {}

    def turn(self, path: Path) -> threading.Lock:
        """Return the lock to hold while making an entry's layer, or hashing a blob."""
        with self._guard:
            return self._turns.setdefault(path, threading.Lock())

    def check(self, layout: Layout, blob: Descriptor) -> None:
        """Hash a blob unless a build of this command has; raise as `Layout.checked` does."""
        path = layout.blob(blob.digest)
        with self.turn(path):
            if path not in self._sound:
                self._sound.add(layout.checked(blob))


class LayerCache:
    """Layers by their inputs, below one folder.

    `fresh`: existing layers are not used, except those in `shared`, of builds beside this one.
    """

    def __init__(
        self,
        folder: Path,
        note: Callable[[str], None],
        *,
        fresh: bool,
        shared: MadeLayers | None = None,
    ) -> None:
        self.layout = Layout(folder)
        self._note = note
        self._fresh = fresh
        self._shared = shared or MadeLayers()
        self.check = self._shared.check

    def find(self, inputs: Mapping[str, Any]) -> Layer | None:
        """Return the layer made from `inputs` after hashing its blob; None if there is none.

        A damaged layer is reported and removed, so that it is made again.
        """
        entry = self._entry(inputs)
        if self._fresh and entry not in self._shared.entries:
            return None
        try:
            layer = decode(entry.read_bytes(), Layer, str(entry))
            self.check(self.layout, layer.descriptor)
        except FileNotFoundError:
            return None
        except EnvbuilderError as error:
            self._note(f"warning: {error.message}; it is made again")
            entry.unlink(missing_ok=True)
            if not isinstance(error, InvalidError):
                self.layout.blob(layer.digest).unlink(missing_ok=True)
            return None
        return layer

    def ensure(self, inputs: Mapping[str, Any], make: Callable[[], Layer]) -> Layer:
        """Return the layer made from `inputs`, by `make` unless there is one.

        If a build beside this one makes it at this moment, it is waited for.
        """
        with self._shared.turn(self._entry(inputs)):
            return self.find(inputs) or make()

    def keep(self, inputs: Mapping[str, Any], layer: Layer, written: Path) -> Layer:
        """Add a layer that was just written to a file on the same disk; the file is moved."""
        files.ensure_folder(self.layout.folder)
        blob = self.layout.blob(layer.digest)
        blob.parent.mkdir(parents=True, exist_ok=True)
        written.replace(blob)
        files.write(self._entry(inputs), encode(layer))
        self._shared.entries.add(self._entry(inputs))
        return layer

    def remembered(self, inputs: Mapping[str, Any], kind: type[_T], make: Callable[[], _T]) -> _T:
        """Return the cached result of `make` for `inputs`; entries carry a hash of their own."""
        files.ensure_folder(self.layout.folder)
        return files.cached(self._entry(inputs), kind, make)

    def _entry(self, inputs: Mapping[str, Any]) -> Path:
        key = fingerprint({"format": FORMAT, **compressor(), "facts": inputs})
        return self.layout.folder / "made" / f"{key}.json"
