"""An image out of layers: those made before come from the cache, only the others are made.

From the bottom: one layer for each large wheel, one for all small ones, one that ties the
environment to the base image's Python, one for system packages, and the payload. What changes often
or belongs to one base is above what is large and shared.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from envbuilder.indexes import uv_program
from envbuilder.oci import archive, base, descriptor, facts, image, layer, rootfs, scratch, system
from envbuilder.oci.cache import LayerCache
from envbuilder.oci.descriptor import Index, Manifest
from envbuilder.oci.image import Added
from envbuilder.oci.layer import Layer, Member
from envbuilder.oci.layout import Layout, place
from envbuilder.oci.staging import Python, Stage
from envbuilder.pack import payload_pyz, payload_sha256
from envbuilder.plan import Assemble, Step, UnpackTool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from envbuilder.lockfile import File
    from envbuilder.store import Store

LARGE = 4 << 20
"""Bytes of a wheel that gets its own layer, at the least."""
MOST_LAYERS = 100
"""Layers of an image at most, the base image's among them: overlay file systems take 127."""
_INSTALLED = 5
"""Bytes of an installed wheel per byte of the wheel, at the most: 3.6 for torch's CPU wheel."""
_TOUCHED = frozenset({"etc", "var/lib/dpkg"})
"""Folders of the base that get a new time although nothing new is in them, as in the Dockerfile."""
_OWN_LAYERS = 4
"""Those that are no single wheel's."""


class Assembly:
    """One image being made, in a folder of its own."""

    def __init__(
        self,
        step: Assemble,
        store: Store,
        run: Callable[[Step], None],
        note: Callable[[str], None],
    ) -> None:
        self._step, self._store, self._run = step, store, run
        self._cache = LayerCache(Path(step.cache), note, fresh=step.fresh)
        self._work = Path(step.work)
        self._work.mkdir(parents=True)
        self._base = base.read(step.base, step.platform, self._cache)
        self._packages, self._root = self._system()
        search = image.environment(self._base.config)["PATH"]
        path, version = self._root.python(step.python, search)
        self._python = Python(path=path, version=version, platform=step.platform)
        self._scratch = self._work
        self._stage: Stage | None = None
        self._skeleton: tuple[Member, ...] = ()

    def make(self) -> Layout:
        """Make the image: an OCI layout that holds it and nothing else."""
        needed = sum(_INSTALLED * self._size(w) for w in self._step.wheels)
        with scratch.folder(needed, self._work) as self._scratch:
            added = [*self._wheels(), *self._packages, self._frame(), self._payload()]
        step, below = self._step, self._base
        layout = Layout.create(Path(step.layout))
        for blob in below.layers:
            place(below.layout.checked(blob), layout.blob(blob.digest))
        for above in added:
            kept = self._cache.layout.blob(above.layer.digest)
            place(kept, layout.blob(above.layer.digest))
        config = image.config(below.config, added, step.variables, step.labels, step.epoch)
        manifest = Manifest(
            schema_version=2,
            media_type=descriptor.MANIFEST,
            config=layout.add(descriptor.encode(config), descriptor.CONFIG),
            layers=(*below.layers, *(a.layer.descriptor for a in added)),
        )
        found = layout.add(
            descriptor.encode(manifest),
            descriptor.MANIFEST,
            platform=descriptor.platform(step.platform),
        )
        named = [replace(found, annotations=archive.named(name)) for name in step.names]
        layout.write_index(
            Index(schema_version=2, media_type=descriptor.INDEX, manifests=tuple(named or [found]))
        )
        return layout

    # --- layers

    def _wheels(self) -> list[Added]:
        """A layer for each large wheel, the largest lowest, and one for the others.

        An engine unpacks a layer anew where what is below it changed.
        """
        sizes = {w.sha256: self._size(w) for w in self._step.wheels}
        room = MOST_LAYERS - len(self._base.manifest.layers) - _OWN_LAYERS
        ranked = sorted(self._step.wheels, key=lambda w: (-sizes[w.sha256], w.sha256))
        large = [w for w in ranked[: max(room, 0)] if sizes[w.sha256] >= LARGE]
        groups = [[w] for w in large]
        small = [w for w in self._step.wheels if w not in large]
        made = [(g, f"{g[0].name} {g[0].version}") for g in groups]
        made += [(small, f"{len(small)} smaller packages")] if small else []
        found = {why: self._cache.find(self._wheel_facts(g)) for g, why in made}
        missing = [w for g, why in made if found[why] is None for w in g]
        if missing:
            self._install(missing)
        return [
            Added(layer=found[why] or self._make(self._wheel_facts(g), self._files(g)), reason=why)
            for g, why in made
        ]

    def _size(self, wheel: File) -> int:
        return self._store.path(wheel.sha256).stat().st_size

    def _frame(self) -> Added:
        """What ties the environment to this base: its interpreter, its users."""
        step, contents = self._step, self._root.contents
        made_from = {
            "kind": "frame",
            "uv": step.uv_version,
            "python": msgspec.to_builtins(self._python),
            "users": {n: descriptor.digest_of(c) for n, c in contents.items() if "dpkg" not in n},
            "epoch": step.epoch,
        }
        found = self._cache.find(made_from)
        if found is None:
            self._staged()
            found = self._make(made_from, [*self._skeleton, *self._users()], on_base=True)
        return Added(layer=found, reason=f"environment for Python {self._python.version}")

    def _system(self) -> tuple[list[Added], rootfs.RootFs]:
        """The layer of system packages, and the files that are there with it."""
        step, below = self._step, self._base
        if not step.debs:
            return [], below.root
        if step.system is not None:
            return system.built(step, step.system, below, self._cache, self._work, self._run)
        made = system.unpacked(
            step, below, self._store, self._cache, lambda f, m: self._make(f, m, on_base=True)
        )
        return made, below.root

    def _payload(self) -> Added:
        """The payload, last: it changes with envbuilder."""
        made_from = {"kind": "payload", "sha256": payload_sha256(), "epoch": self._step.epoch}
        member = Member(path=facts.PAYLOAD.lstrip("/"), content=payload_pyz())
        found = self._cache.find(made_from) or self._make(made_from, [member])
        return Added(layer=found, reason="payload")

    def _make(
        self, made_from: Mapping[str, Any], members: Iterable[Member], *, on_base: bool = False
    ) -> Layer:
        """Write a layer and keep it; `on_base`: folders that lead somewhere are the base's own."""
        listed = list(members)
        stated = {m.path for m in listed}
        above = [f for f in layer.folders_above(stated) if f.path not in stated]
        if on_base:
            new = stated - self._base.root.entries.keys()
            changed = _TOUCHED | {p.rpartition("/")[0] for p in new}
            above = [self._as_in_base(f, changed=f.path in changed) for f in above]
        listed += above
        part = self._work / "layer"
        made = layer.write(listed, part, self._step.epoch)
        return self._cache.keep(made_from, made, part)

    def _as_in_base(self, folder: Member, *, changed: bool) -> Member:
        there = self._base.root.entries.get(folder.path)
        if there is None or there.kind != "folder":
            return folder
        time = None if changed else there.time
        return replace(folder, mode=there.mode, uid=there.uid, gid=there.gid, time=time)

    # --- wheels

    def _wheel_facts(self, wheels: Sequence[File]) -> dict[str, Any]:
        return {
            "kind": "wheels",
            "wheels": sorted(w.sha256 for w in wheels),
            "uv": self._step.uv_version,
            "site": self._python.site,
            "epoch": self._step.epoch,
        }

    def _files(self, wheels: Sequence[File]) -> Iterable[Member]:
        stage = self._staged()
        prefix = facts.PREFIX.lstrip("/")
        owners: dict[str, File] = {}
        for wheel in wheels:
            for path in stage.files_of(wheel):
                if owners.setdefault(path, wheel) is wheel:
                    yield layer.member(str(stage.env), path, prefix)

    def _install(self, wheels: Sequence[File]) -> None:
        folder = self._work / "wheels"
        folder.mkdir()
        for wheel in wheels:
            self._store.link(wheel, folder)
        self._staged().install(wheels, folder)

    def _staged(self) -> Stage:
        """The folder that uv installs into, made when the first layer needs it."""
        if self._stage is None:
            uv = self._scratch / "uv"
            if self._step.uv is None:
                uv = Path(uv_program())
            else:
                self._run(UnpackTool(what="unpack uv", file=self._step.uv, name="uv", path=str(uv)))
            self._stage = Stage(self._scratch, uv, self._python, self._run)
            self._stage.make()
            # Before packages are installed: later it could not be told which files are theirs.
            self._skeleton = tuple(layer.tree(self._stage.env, facts.PREFIX.lstrip("/")))
        return self._stage

    def _users(self) -> list[Member]:
        """The image's user, and the folders that it owns."""
        number, home, work = facts.ID, facts.HOME.lstrip("/"), facts.WORK.lstrip("/")
        lines = {"etc/passwd": f"{facts.PASSWD}\n", "etc/group": f"{facts.GROUP}\n"}
        contents = self._root.contents
        return [
            *(Member(path=n, content=contents.get(n, b"") + t.encode()) for n, t in lines.items()),
            *(
                Member(path=p, kind="folder", mode=0o755, uid=number, gid=number)
                for p in (home, work)
            ),
        ]
