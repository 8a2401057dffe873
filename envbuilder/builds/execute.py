"""Execute a build plan: run its steps in order, without leaving a partial result behind."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, assert_never

from envbuilder.builds import project_layer, records
from envbuilder.builds.backends import in_use, integrity
from envbuilder.builds.payload import payload_pyz
from envbuilder.builds.plan import (
    Assemble,
    CopyProject,
    FileStep,
    ImageStep,
    LinkFiles,
    Load,
    LoadBase,
    MakeBase,
    Move,
    Plan,
    Push,
    RecordImage,
    Run,
    RunUv,
    Save,
    Seal,
    ShareWheels,
    Step,
    UnpackLibraries,
    UnpackPython,
    UnpackTool,
    UnpackWheels,
    Write,
    WritePayload,
    WritePrograms,
)
from envbuilder.containers.oci.layout import Layout
from envbuilder.core import archives, files, process
from envbuilder.core.errors import BuildError, EnvbuilderError, log_text, with_context
from envbuilder.core.settings import Settings, require_writable
from envbuilder.packages import interpreters
from envbuilder.packages.conda import lock
from envbuilder.packages.store import Store

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Callable, Collection, Iterator, Mapping

    from envbuilder.core.console import Progress, Task

_REMOVE_TRIES = 50
_REMOVE_PAUSE_SECONDS = 0.2


def execute(
    plan: Plan,
    settings: Settings,
    progress: Progress,
    is_done: Callable[[], bool] = lambda: False,
) -> bool:
    """Run the steps of a plan, and return whether this process ran them.

    Return False if another process has built the artifact in the meantime. Only one process at a
    time builds a given artifact. `is_done` is called as soon as it is this process's turn. If
    `is_done` returns True, no step is run, because the artifact may already be in use. The working
    folder is always removed. The artifact appears only at the end, by a single move of a folder or
    by loading the image. Raise `BuildError` if a step fails.
    """
    workdir = Path(plan.workdir)
    require_writable(workdir.parent, marked=False)
    log = require_writable(settings.logs_dir) / f"{plan.profile}-{plan.fingerprint[:12]}.log"
    waiting = f"waiting: another envbuilder process is building {plan.artifact.ref}"
    with process.lock(Path(f"{workdir}.lock"), waiting):
        if is_done():
            return False
        _remove(workdir)  # left by a killed build
        try:
            files.ensure_folder(workdir)
            files.write(log, b"", files.PRIVATE)
            for step in plan.steps:
                with progress.task(step.what) as task:
                    _perform(step, _Context(Store.of(settings), log, progress, task))
        except (OSError, shutil.Error) as error:
            cause = error if isinstance(error, OSError) else OSError(str(error))
            raise files.full_or_broken(cause, Path(cause.filename or workdir)) from error
        except EnvbuilderError:
            raise
        except BaseException:  # Ctrl-C, SIGTERM
            # py-rattler's threads run on for a moment and recreate folders.
            _remove(workdir)
            time.sleep(_REMOVE_PAUSE_SECONDS)
            raise
        finally:
            _remove(workdir)
    return True


class _Context(NamedTuple):
    """The store, log and progress display, which steps need in addition to their own data."""

    store: Store
    log: Path
    progress: Progress
    task: Task

    @contextmanager
    def logging(self) -> Iterator[Callable[[str], None]]:
        """Open the log and yield a function that appends a line to it."""
        with self.log.open("a") as out:

            def append(line: str) -> None:
                out.write(log_text(f"{line}\n"))

            yield append


def _perform(step: Step, context: _Context) -> None:
    match step:
        case Run():
            _run(step, context)
        case ShareWheels():
            from envbuilder.builds.backends import linked_venv

            linked_venv.make(step, context.store, lambda inner: _perform(inner, context))
        case Seal():
            base = integrity.base_of(step.base_python) if step.base_python else ()
            integrity.close(Path(step.folder), step.facts, base, context.store)
        case lock.InstallConda() | lock.WriteActivation() | lock.Rehome():
            _perform_on_conda(step, context.progress)
        case Move():
            _move(Path(step.source), Path(step.target))
        case _:
            _lay_files(step, context)


def _perform_on_conda(
    step: lock.InstallConda | lock.WriteActivation | lock.Rehome, progress: Progress
) -> None:
    from envbuilder.packages.conda import prefixes  # which takes asyncio

    if isinstance(step, lock.InstallConda):
        integrity.bind(Path(step.env), prefixes.install(step, progress.note))
    elif isinstance(step, lock.WriteActivation):
        integrity.bind(Path(step.env), prefixes.write_activation(step))
    else:
        prefixes.rehome(step)


def _lay_files(step: FileStep | ImageStep, context: _Context) -> None:
    store = context.store
    match step:
        case Write():
            _write(Path(step.path), step.text.encode())
        case WritePayload():
            _write(Path(step.path), payload_pyz())
        case WritePrograms():
            for name in step.names:
                program = Path(step.folder, name)
                _write(program, step.text.encode())
                program.chmod(0o755)
        case LinkFiles():
            folder = Path(step.folder)
            folder.mkdir(parents=True, exist_ok=True)
            for file in step.files:
                store.link(file, folder)
        case CopyProject():
            project_layer.copy(step.project, Path(step.folder))
        case UnpackWheels():
            from envbuilder.builds.image import unpacked

            unpacked.unpack_missing(step.files, Path(step.unpacked), store, context.task.advance)
        case UnpackTool():
            _unpack_tool(step, store)
        case UnpackLibraries():
            _unpack_libraries(step, store)
        case UnpackPython():
            interpreters.unpack(step.file, store.checked(step.file), Path(step.folder))
        case _:
            _perform_on_image(step, context)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _move(source: Path, target: Path) -> None:
    """Move a finished folder to `target`, after moving an existing environment out of the way.

    The existing environment is moved to the working folder. If it were removed in place, a process
    that is killed during the removal could leave half of the environment, perhaps with its marker.
    Raise `BuildError` if something exists at `target` that envbuilder did not make.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    exists = target.exists() or target.is_symlink()
    if exists and not (files.is_folder(target) and integrity.is_sealed(target)):
        raise BuildError(
            f"{target}: already exists, and envbuilder did not make it",
            "Move it away, then run the same command again.",
        )
    if exists:
        with in_use.replacing(target):
            target.rename(source.with_name(f"{source.name}.replaced"))
    source.rename(target)


def _perform_on_image(step: ImageStep, context: _Context) -> None:
    match step:
        case MakeBase():
            _make_base(step, context)
        case LoadBase():
            _load_base(step)
        case Assemble():
            from envbuilder.builds.image.assemble import Assembly

            Assembly(
                step,
                context.store,
                lambda inner: _perform(inner, context),
                context.progress.note,
                context.task.update,
            ).make()
        case Load():
            _load(step)
        case Save():
            from envbuilder.containers.oci import archive

            archive.save(Layout(Path(step.layout)), Path(step.target), context.task.update)
        case Push():
            from envbuilder.builds import outputs

            outputs.push(step, context.progress)
        case RecordImage():
            ids = records.digests(Path(step.metadata).read_text())
            versions = records.versions(Path(step.versions).read_text())
            records.keep_built(step, step.names[0], ids, step.names, versions)
        case _:
            assert_never(step)


def _run(step: Run, context: _Context) -> None:
    with context.logging() as log:
        log(f"$ {process.quoted(step.argv)}")
        run = process.run_uv if isinstance(step, RunUv) else process.run
        done = run(step.argv, env=step.env, on_stdout=log, on_stderr=log)
    if step.output:
        Path(step.output).write_text(done.stdout)
    if done.returncode != 0:
        printed = done.stdout + done.stderr
        advice = [hint for text, hint in step.hints.items() if text in printed]
        raise BuildError(
            f"{step.what}: failed ({done.status}):\n{_failing_step(printed) or done.last_words}",
            "\n".join([*advice, f"The full output is in {context.log}"]),
        )


def _load(step: Load) -> None:
    from envbuilder.containers.engine import connection, images

    layout = Layout(Path(step.layout))
    cache = Layout(Path(step.cache))
    with connection.connect() as engine:
        ids = images.load(engine, layout, cache, step.names, step.ahead)
        if step.ahead:
            engine.forget(step.ahead)
            records.forget(Path(step.folder), step.ahead)
    records.keep_built(step, step.names[0], ids, step.names)


def _make_base(step: MakeBase, context: _Context) -> None:
    from envbuilder.builds.image import debian_base

    with context.logging() as log:
        files.ensure_folder(Path(step.layout).parent)
        try:
            debian_base.make(step, context.store, log)
        except BuildError as error:
            with_context(error, hint=f"The full output is in {context.log}")
            raise


def _load_base(step: LoadBase) -> None:
    from envbuilder.containers.engine import connection, images

    layout = Layout(Path(step.layout))
    (descriptor,) = layout.index().manifests
    ids = (layout.read_manifest(descriptor).config.digest, descriptor.digest)
    with connection.connect() as engine:
        image = engine.image(step.ref)
        loaded = records.LoadedImage(profile=None, fingerprint=step.identity, ref=step.ref, ids=ids)
        records.note(Path(step.folder), loaded)
        if image is None or image.id not in ids:
            images.load(engine, layout, Layout(Path(step.cache)), (step.ref,))


def _failing_step(printed: str) -> str:
    """Return the last excerpt of BuildKit's output that shows a failing step.

    Return an empty string if there is no such excerpt. The excerpt is needed because the last lines
    of BuildKit's output only quote the Dockerfile.
    """
    excerpts = re.findall(r"^-{6}\n > \[.*\n((?:.*\n)*?)-{6}$", printed, re.MULTILINE)
    return excerpts[-1].rstrip() if excerpts else ""


def _unpack_tool(step: UnpackTool, store: Store) -> None:
    """Extract an executable from a wheel."""
    from envbuilder.builds.image import unpacked

    target = Path(step.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    program = unpacked.tool(step.file, step.name, Path(step.unpacked), store)
    unpacked.link_or_copy(program, target)


def _unpack_libraries(step: UnpackLibraries, store: Store) -> None:
    """Write each library to a file named after its soname.

    Symbolic links within a package are followed. Raise `BuildError` if a library is in none of the
    packages.
    """
    from envbuilder.packages.debian import deb

    folder = Path(step.folder)
    folder.mkdir(parents=True, exist_ok=True)
    missing = set(step.libraries)
    for file in step.files:
        failure = partial(deb.refused, file)
        with deb.opened(file, store.checked(file)) as package:
            targets = _targets(dict(archives.members(package.data(), failure)), missing)
            data = package.data()
            for name, member in archives.members(data, failure):
                for library, path in targets.items():
                    if path == name:
                        with (folder / library).open("wb") as out:
                            out.writelines(data.pieces(member))
            missing -= targets.keys()
    if missing:
        raise BuildError(
            f"{', '.join(sorted(missing))}: not in any of"
            f" {', '.join(f.basename for f in step.files)}",
            "The profile's preload: names a library that its system_packages do not contain.",
        )


def _targets(members: Mapping[str, tarfile.TarInfo], names: Collection[str]) -> dict[str, str]:
    """Return the path of each requested library within a package, by library name.

    Links are followed, so each path is that of a regular file. Libraries that the package does not
    contain are omitted.
    """
    targets: dict[str, str] = {}
    for path, member in sorted(members.items()):
        target = path
        if member.issym():
            # An absolute link starts at the package's root.
            target = os.path.normpath(Path("/", path).parent / member.linkname).lstrip("/")
        base = path.rpartition("/")[2]
        if base in names and target in members and members[target].isreg():
            targets.setdefault(base, target)
    return targets


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    # An installer whose parent was killed keeps writing until its folder is gone.
    for tries_left in reversed(range(_REMOVE_TRIES)):
        if not path.exists():
            return
        try:
            shutil.rmtree(path)
        except OSError as error:
            if not tries_left:
                raise BuildError(
                    f"{path}: cannot be removed: {error.strerror or error}",
                    "Another process may still be writing to it. End that process, or remove the"
                    " folder.",
                ) from error
            time.sleep(_REMOVE_PAUSE_SECONDS)
