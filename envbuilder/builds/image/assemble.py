"""Assemble an image from layers, reusing cached layers and building only the missing ones.

The layers are, from bottom to top: one or more for each large wheel, one for all small wheels, one
for system packages, one for the locked interpreter if the base has another Python, one for the venv
scaffold (which ties the environment to the image's Python), one for the payload, and one for the
project's own files, if there are any. Layers that change often or depend on the base image are
above the large layers, which images can share.
"""

from __future__ import annotations

import queue
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from envbuilder.builds import conventions, project_layer
from envbuilder.builds.image import interpreter, system
from envbuilder.builds.image.base import (
    Added,
    base_variables,
    image_config,
    read_contents,
    write_image,
)
from envbuilder.builds.image.layer_cache import LayerCache
from envbuilder.builds.image.unpacked import Compiler, bytecode_path, compile_modules
from envbuilder.builds.image.wheels import (
    CUT,
    SPREAD,
    Packed,
    Part,
    Python,
    Stage,
    Wheel,
    completed,
    cut,
    parts,
)
from envbuilder.builds.payload import compiler_sha256, payload_pyz, payload_sha256
from envbuilder.builds.plan import Assemble, Step, UnpackPython, UnpackTool
from envbuilder.containers.engine import connection, images
from envbuilder.containers.oci import layer, rootfs
from envbuilder.containers.oci.layout import Bytes, Layout, digest_of, place
from envbuilder.core import process, types
from envbuilder.core.errors import EnvbuilderError
from envbuilder.packages.interpreters import program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from envbuilder.packages.store import Store
    from envbuilder.profiles.lock import File

    _WriteImage = Callable[[Sequence[Added]], Layout]


MOST_LAYERS = 100
"""Maximum number of layers, including those of the base image. Overlay file systems support 127."""
_TOUCHED = frozenset({"etc", "var/lib/dpkg"})
"""Folders of the base that get a new mtime even if nothing is added to them, as in an image built
from the Dockerfile."""
_OTHER_LAYERS = 4
"""Number of layers that do not belong to a single wheel: those for small wheels, system packages,
the venv scaffold and the payload. The layer of the project's own files is not counted, because it
must not affect how wheels are split."""

WORTH = 16 << 20
"""Minimum size of a preload in bytes. Smaller preloads are not worth their overhead of about 0.2
s."""
_GRACE_SECONDS = 10.0
"""Time in seconds for which a failed build waits for a load that is in progress."""
_STOP_SECONDS = 0.3
"""Time in seconds for which an interrupted build waits for a load that is in progress."""
_PREFIX = conventions.PREFIX.lstrip("/")


class Assembly:
    """The assembly of a single image, which takes place in a separate work folder."""

    def __init__(
        self,
        step: Assemble,
        store: Store,
        run: Callable[[Step], None],
        note: Callable[[str], None],
        show: Callable[[int, int], object] = lambda done, total: None,
    ) -> None:
        """Create the work folder and read the base image.

        `show` is called with the number of bytes written so far and the total number to write.
        """
        self._step = step
        self._store = store
        self._run = run
        self._show = show
        self._written = self._to_write = 0
        self._cache = LayerCache(Path(step.cache), note, fresh=step.fresh)
        self._work = Path(step.work)
        self._work.mkdir(parents=True)
        self._base = read_contents(step.base, step.platform, self._cache)
        for blob in self._base.layers:
            self._base.layout.checked(blob)
        self._stage: Stage | None = None
        self._scaffold: tuple[layer.Member, ...] = ()
        self._open = ExitStack()
        self._wheels_open: dict[types.Sha256, Wheel] = {}
        self._to_install: tuple[File, ...] = ()
        self._compiler: Compiler | None = None
        self._bytecode: dict[str, Path] = {}

    def make(self) -> Layout:
        """Assemble the image, and return an OCI layout that contains only this image."""
        step = self._step
        with (
            self._open,
            Preloader(step.ahead, self._cache.layout) as preloader,
            process.beside(self._system) as system_packages,
        ):
            own_python = self._interpreter()
            self._python = self._chosen_python(system_packages, own_python)
            wheels = self._wheels(preloader)
            packages, root = system_packages.result()
            added = [
                *wheels,
                *packages,
                *own_python,
                self._scaffold_layer(root),
                self._payload(),
                *self._project(),
            ]
        return self._image(Path(step.layout), added, step.names)

    def _chosen_python(
        self,
        system_packages: Future[tuple[list[Added], rootfs.RootFs]],
        added: list[Added],
    ) -> Python:
        """Return the image's Python interpreter, and prepare it for compiling modules.

        `added` contains the layer of the locked interpreter. If `added` is empty, the interpreter
        comes from the base image or from the system packages. If the image gets no bytecode,
        nothing is prepared.
        """
        step = self._step
        base = self._base
        root = base.root
        if step.interpreter:
            path = f"{conventions.PYTHON}/{program(step.python)}"
            version = step.interpreter.version
            for item in added:
                root = rootfs.over(root, self._cache.layout.blob(item.layer.digest))
        else:
            if any("python" in deb.name for deb in step.debs):
                added, root = system_packages.result()
            path, version = root.python(step.python, base_variables(base.config)["PATH"])
        python = Python(path=path, version=version, platform=step.platform)
        if step.unpacked:
            blobs = map(base.layout.blob, (blob.digest for blob in base.layers))
            layers = dict(zip(base.config["rootfs"]["diff_ids"], blobs, strict=True))
            for item in added:
                layers[item.layer.diff_id] = self._cache.layout.blob(item.layer.digest)
            self._compiler = interpreter.compiler(python, root, layers, Path(step.unpacked))
        return python

    def _image(self, folder: Path, added: Sequence[Added], names: Sequence[str]) -> Layout:
        """Write an OCI layout that contains only the image, and return the layout.

        The image consists of the base's layers and the added layers.
        """
        step = self._step
        base = self._base
        layout = Layout.create(folder)
        for blob in base.layers:
            place(base.layout.blob(blob.digest), layout.blob(blob.digest))
        for item in added:
            place(self._cache.layout.blob(item.layer.digest), layout.blob(item.layer.digest))
        configuration = image_config(
            base.config,
            added,
            step.variables,
            step.labels,
            step.epoch,
            project=step.project or None,
        )
        layers = (*base.layers, *(a.layer.descriptor for a in added))
        write_image(layout, configuration, layers, step.platform, names)
        return layout

    # --- layers

    def _wheels(self, preloader: Preloader) -> list[Added]:
        """Return the layers of the wheels, building only those that are not cached."""
        sizes = {w.sha256: self._store.path(w.sha256).stat().st_size for w in self._step.wheels}
        room = MOST_LAYERS - len(self._base.manifest.layers) - _OTHER_LAYERS
        planned = parts(self._step.wheels, sizes, self._split, room)
        cached = {part: self._cache.find(self._part_inputs(part)) for part in planned}
        missing = [part for part in planned if cached[part] is None]
        for part in missing:
            if not part.files:
                self._to_install += part.wheels
        self._compile(wheel for part in missing for wheel in part.wheels)
        self._to_write = sum(file.size for file in self._members(missing))
        added: list[Added] = []
        for part in planned:
            hit = cached[part]
            result = hit or self._ensure(self._part_inputs(part), self._files(part))
            added.append(Added(layer=result, reason=part.reason))
            if hit is None:
                missing.remove(part)
                # The compressed size of the files within their wheels.
                remaining = sum(file.packed for file in self._members(missing))
                preloader.offer(added, remaining, self._lower)
        return added

    @property
    def _compiling(self) -> dict[str, str]:
        """The settings that determine the bytecode in a layer.

        The mapping is empty if the image gets no bytecode.
        """
        if self._compiler is None:
            return {}
        return {"bytecode": compiler_sha256(), "python": self._compiler.identity}

    def _compile(self, wheels: Iterable[File]) -> None:
        """Compile the modules of the wheels if the image gets bytecode."""
        if self._compiler:
            modules = {wheel.sha256: self._wheel(wheel).modules for wheel in wheels}
            compiled = compile_modules(modules, Path(self._step.unpacked), self._compiler)
            for bytecode in compiled.values():
                self._bytecode |= {
                    f.path: bytecode.folder / f.path for f in bytecode.contents.files
                }

    def _lower(self, added: Sequence[Added]) -> Layout:
        layout = self._image(self._work / f"lower{len(added)}", added, [self._step.ahead])
        (entry,) = layout.index().manifests
        ids = (layout.read_manifest(entry).config.digest, entry.digest)
        system.note(self._step, self._step.ahead, ids)
        return layout

    def _split(self, wheel: File) -> list[tuple[str, ...]]:
        return self._cache.remembered(
            {"kind": "cut", "wheel": wheel.sha256, "bytes": CUT, "spread": SPREAD},
            list[tuple[str, ...]],
            lambda: [*cut({n: p.size for n, p in self._wheel(wheel).files.items()})],
        )

    def _members(self, parts: Iterable[Part]) -> Iterator[Packed]:
        for part in parts:
            for wheel in part.wheels:
                opened = self._wheel(wheel)
                yield from map(opened.files.__getitem__, _names(part, opened))

    def _count(self, amount: int) -> None:
        """Report progress after `amount` bytes have been written.

        The total only covers the files of wheels, not tar headers or other layers.
        """
        self._written += amount
        if self._to_write:
            self._show(min(self._written, self._to_write), self._to_write)

    def _scaffold_layer(self, root: rootfs.RootFs) -> Added:
        """Return the layer of the venv scaffold.

        The layer depends on the image's Python and on the users that the base image defines.
        """
        inputs = {
            "kind": "frame",
            "base": self._base.config["rootfs"],  # its folders' modes, owners and times
            "uv": self._step.uv.version,
            "python": msgspec.to_builtins(self._python),
            "users": {n: digest_of(c) for n, c in root.contents.items() if "dpkg" not in n},
            "epoch": self._step.epoch,
        }
        return Added(
            layer=self._ensure(inputs, self._scaffold_files(root.contents), on_base=True),
            reason=f"environment for Python {self._python.version}",
        )

    def _scaffold_files(self, contents: Mapping[str, bytes]) -> Iterator[layer.Member]:
        self._staged()
        yield from self._scaffold
        yield from _users(contents)

    def _interpreter(self) -> list[Added]:
        """Return the layer of the locked interpreter, or an empty list if it is not needed."""
        file = self._step.interpreter
        if not file:
            return []
        inputs = {
            "kind": "python",
            "sha256": file.sha256,
            "base": self._base.config["rootfs"],
            "epoch": self._step.epoch,
        }
        result = self._ensure(inputs, self._interpreter_files(file), on_base=True)
        return [Added(layer=result, reason=f"Python {file.version}")]

    def _interpreter_files(self, file: File) -> Iterator[layer.Member]:
        folder = self._work / "interpreter"
        prefix = conventions.PYTHON.lstrip("/")
        self._run(UnpackPython(what="unpack the interpreter", file=file, folder=str(folder)))
        yield from layer.tree(folder, prefix)
        yield layer.Member(path=prefix, kind="folder", mode=0o755)

    def _system(self) -> tuple[list[Added], rootfs.RootFs]:
        """Return the layer of system packages, and the root filesystem that includes this layer.

        The layer is in a list, which is empty if there are no system packages.
        """
        step = self._step
        base = self._base
        if not step.debs:
            return [], base.root
        if step.system is not None:
            return system.built(step, step.system, base, self._cache, self._work, self._run)
        added = system.unpacked(
            step, base, self._store, self._cache, lambda f, m: self._make(f, m, on_base=True)
        )
        return added, base.root

    def _payload(self) -> Added:
        """Return the payload's layer.

        This layer is near the top because the payload changes with each version of envbuilder.
        """
        inputs = {"kind": "payload", "sha256": payload_sha256(), "epoch": self._step.epoch}
        member = layer.Member(path=conventions.PAYLOAD.lstrip("/"), content=payload_pyz())
        return Added(layer=self._ensure(inputs, [member]), reason="payload")

    def _project(self) -> list[Added]:
        """Return the layer of the project's own files, or an empty list if there are none.

        This layer is the topmost one, because it changes most often.
        """
        project = self._step.project
        if not project:
            return []
        inputs = {"kind": "project", "files": project.digest, "epoch": self._step.epoch}
        return [Added(layer=self._ensure(inputs, project_layer.members(project)), reason="project")]

    def _ensure(
        self, inputs: Mapping[str, Any], members: Iterable[layer.Member], *, on_base: bool = False
    ) -> layer.Layer:
        """Return the cached layer for `inputs`, or make the layer from `members`.

        `members` is iterated only if the layer is made.
        """
        return self._cache.ensure(inputs, lambda: self._make(inputs, members, on_base=on_base))

    def _make(
        self, inputs: Mapping[str, Any], members: Iterable[layer.Member], *, on_base: bool = False
    ) -> layer.Layer:
        """Write a layer to the cache, and return it.

        If `on_base` is true, parent folders keep the metadata that they have in the base image.
        """
        entries = list(members)
        paths = {m.path for m in entries}
        parents = [f for f in layer.folders_above(paths) if f.path not in paths]
        if on_base:
            new = paths - self._base.root.entries.keys()
            changed = _TOUCHED | {p.rpartition("/")[0] for p in new}
            parents = [self._as_in_base(f, changed=f.path in changed) for f in parents]
        entries += parents
        path = self._work / f"layer-{inputs['kind']}"
        result = layer.write(entries, path, self._step.epoch, self._count)
        return self._cache.keep(inputs, result, path)

    def _as_in_base(self, folder: layer.Member, *, changed: bool) -> layer.Member:
        existing = self._base.root.entries.get(folder.path)
        if existing is None or existing.kind != "folder":
            return folder
        time = None if changed else existing.time
        return replace(folder, mode=existing.mode, uid=existing.uid, gid=existing.gid, time=time)

    # --- wheels

    def _part_inputs(self, part: Part) -> dict[str, Any]:
        return {
            "kind": "wheels",
            "wheels": sorted(w.sha256 for w in part.wheels),
            "files": part.files,
            "without": part.without,
            "uv": self._step.uv.version,
            "site": self._python.site,
            "epoch": self._step.epoch,
            **self._compiling,
        }

    def _files(self, part: Part) -> Iterator[layer.Member]:
        """Yield the files of a layer that contains files of wheels.

        Each file is read from its wheel, or from the environment into which uv installed it.
        """
        site = self._python.site
        seen: set[str] = set()
        for wheel in part.wheels:
            opened = self._wheel(wheel)
            members: dict[str, layer.Member] = {}
            for name in _names(part, opened):
                members[f"{site}/{name}"] = _plain(f"{site}/{name}", opened.files[name])
                path = bytecode_path(name, self._step.python)
                if source := self._bytecode.get(path):
                    path = f"{site}/{path}"
                    members[path] = layer.Member(path=f"{_PREFIX}/{path}", source=source)
            if not part.files:
                members |= self._installed_files(wheel, opened)
            for path in members.keys() - seen:
                yield members[path]
            seen |= members.keys()

    def _installed_files(self, wheel: File, opened: Wheel) -> dict[str, layer.Member]:
        """Return the files that uv installed from a wheel, by path.

        The files include the wheel's RECORD, which lists all files of the wheel.
        """
        stage = self._installed()
        record = stage.record_of(wheel)
        text = completed((stage.env / record).read_text(encoding="utf-8"), opened.rows)
        paths = {*stage.files_of(wheel, record)}
        bytecode = {bytecode_path(path, self._step.python) for path in paths}
        paths |= {path for path in bytecode if (stage.env / path).is_file()}
        members = {path: layer.member(str(stage.env), path, _PREFIX) for path in paths}
        return {**members, record: replace(members[record], source=None, content=text)}

    def _wheel(self, wheel: File) -> Wheel:
        """Return an open wheel from the store, checking its hash when it is first opened."""
        if wheel.sha256 not in self._wheels_open:
            opened = Wheel(self._store.checked(wheel), wheel.basename)
            self._wheels_open[wheel.sha256] = self._open.enter_context(opened)
        return self._wheels_open[wheel.sha256]

    def _installed(self) -> Stage:
        """Return the stage after uv has installed the wheels that need an installer."""
        stage = self._staged()
        if self._to_install:
            folder = self._work / "wheels"
            folder.mkdir()
            for wheel in self._to_install:
                self._wheel(wheel).write_others(folder / wheel.basename)
            stage.install(self._to_install, folder)
            if self._compiler:
                self._compiler.run(str(stage.env / self._python.site))
            self._to_install = ()
        return stage

    def _staged(self) -> Stage:
        """Return the stage into which uv installs packages. It is created on first use."""
        if self._stage is None:
            uv = self._work / "uv"
            folder = self._step.unpacked or str(self._work / "unpacked")
            self._run(
                UnpackTool(
                    what="unpack uv", file=self._step.uv, name="uv", path=str(uv), unpacked=folder
                )
            )
            self._stage = Stage(self._work, uv, self._python, self._run)
            self._stage.make()
            # Listed before packages are installed, because their files are mixed in afterwards.
            self._scaffold = tuple(layer.tree(self._stage.env, _PREFIX))
        return self._stage


def _users(contents: Mapping[str, bytes]) -> Iterator[layer.Member]:
    """Yield the image user's home and work folders, and the files that define the user.

    These files are the base's passwd and group files, each with a line added for the user.
    """
    for name, line in (("etc/passwd", conventions.PASSWD), ("etc/group", conventions.GROUP)):
        text = contents.get(name, b"")
        if text and not text.endswith(b"\n"):
            text += b"\n"
        yield layer.Member(path=name, content=text + f"{line}\n".encode())
    for folder in (conventions.HOME, conventions.WORK):
        yield layer.Member(
            path=folder.lstrip("/"),
            kind="folder",
            mode=0o755,
            uid=conventions.ID,
            gid=conventions.ID,
        )


def _names(part: Part, wheel: Wheel) -> Iterable[str]:
    """Return the names of the wheel's unchanged files that belong to `part`."""
    return part.files or wheel.files.keys() - {*part.without}


def _plain(path: str, packed: Packed) -> layer.Member:
    mode = 0o755 if packed.executable else 0o644
    return layer.Member(path=f"{_PREFIX}/{path}", mode=mode, source=packed)


# --- the engine, meanwhile


class Preloader(Struct):
    """A background thread that loads finished layers into an engine while others are being made.

    A preload is an image without the upper layers. It is loaded under the name `ref`. If `ref` is
    empty, nothing is loaded.

    An engine unpacks layers one by one in a single thread, which takes about as long as making the
    layers. By the time the complete image is loaded, the engine has already unpacked the preloaded
    layers, so they are not sent again.

    On exit, the preloader waits for a load that is in progress. After an error, it also removes the
    tag `ref` from the engine. Otherwise, the caller removes the tag once the complete image is
    loaded.
    """

    _ref: str
    _recorded: Layout
    _offers: queue.SimpleQueue[tuple[tuple[Added, ...], _WriteImage] | None] = msgspec.field(
        default_factory=queue.SimpleQueue
    )
    _thread: threading.Thread | None = None
    _loaded: int = 0

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
            with suppress(EnvbuilderError), connection.connect() as engine:
                engine.forget(self._ref)

    def offer(self, added: Sequence[Added], remaining: Bytes, write: _WriteImage) -> None:
        """Offer the layers made so far for loading into the engine. The last layer is new.

        `remaining` is the compressed size in bytes of the files that are not yet in a layer.
        `write` makes an image of the layers. This image is loaded as soon as no other load is
        running, unless more layers have been offered by then. The image is not loaded if its new
        layers or the remaining files are too small to make loading worthwhile.
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
                with suppress(EnvbuilderError, OSError):
                    self._load(*offer)

    def _load(self, added: Sequence[Added], write: _WriteImage) -> None:
        if sum(item.layer.size for item in added[self._loaded :]) >= WORTH:
            self._loaded = len(added)
            with connection.connect() as engine:
                images.load(engine, write(added), self._recorded, preload=self._ref)
