"""A cache of layers that all profiles share. Every layer is hashed before it is used.

Layers are looked up by their inputs. An entry refers to a blob by the blob's digest. Each blob and
each entry is put in place by a single rename, so a build that is killed leaves nothing behind that
a later build would wrongly trust. Deleting the folder costs only time, since layers can be made
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from envbuilder.builds.plan import fingerprint
from envbuilder.containers.oci.layer import Layer, compressor
from envbuilder.containers.oci.layout import Layout, decode, encode
from envbuilder.core import files
from envbuilder.core.errors import EnvbuilderError, InvalidError

_T = TypeVar("_T")
FORMAT = 4
"""Version of the layers' format. Increment it when the same inputs give different bytes."""
SYSTEM_FORMAT = 2
"""Version of the format of layers whose packages were installed by an engine. It is used like
`FORMAT`."""


class LayerCache:
    """A folder of layers, which are looked up by their inputs.

    If `fresh` is true, existing layers are never returned.
    """

    def __init__(self, folder: Path, note: Callable[[str], None], *, fresh: bool) -> None:
        self.layout = Layout(folder)
        self._note = note
        self._fresh = fresh

    def find(self, inputs: Mapping[str, Any]) -> Layer | None:
        """Return the layer made from `inputs`, or None if there is none.

        The layer's blob is hashed first. If the blob is damaged, the damage is reported and the
        layer is removed, so that it will be made again.
        """
        if self._fresh:
            return None
        entry = self._entry(inputs)
        try:
            layer = decode(entry.read_bytes(), Layer, str(entry))
            self.layout.checked(layer.descriptor)
        except FileNotFoundError:
            return None
        except EnvbuilderError as error:
            self._note(f"warning: making a layer again: {error.message}")
            entry.unlink(missing_ok=True)
            if not isinstance(error, InvalidError):
                self.layout.blob(layer.digest).unlink(missing_ok=True)
            return None
        return layer

    def ensure(self, inputs: Mapping[str, Any], make: Callable[[], Layer]) -> Layer:
        """Return the layer made from `inputs`, calling `make` if there is none."""
        return self.find(inputs) or make()

    def keep(self, inputs: Mapping[str, Any], layer: Layer, written: Path) -> Layer:
        """Add a new layer to the cache, and return it.

        The layer's file `written`, which must be on the same disk as the cache, is moved into the
        cache.
        """
        files.ensure_folder(self.layout.folder)
        blob = self.layout.blob(layer.digest)
        blob.parent.mkdir(parents=True, exist_ok=True)
        written.replace(blob)
        files.write(self._entry(inputs), encode(layer))
        return layer

    def remembered(self, inputs: Mapping[str, Any], kind: type[_T], make: Callable[[], _T]) -> _T:
        """Return the cached result of `make` for `inputs`, calling `make` if necessary.

        A damaged cache entry is ignored.
        """
        files.ensure_folder(self.layout.folder)
        return files.cached(self._entry(inputs), kind, make)

    def _entry(self, inputs: Mapping[str, Any]) -> Path:
        key = fingerprint({"format": FORMAT, **compressor(), "facts": inputs})
        return self.layout.folder / "made" / f"{key}.json"
