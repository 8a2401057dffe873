"""Prepare to run the payload in an environment, an interpreter, or an Apptainer image.

An environment is built if it is missing. Existing interpreters and images are verified unchanged.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from envbuilder.builds import conventions, isolation, pipeline, variables
from envbuilder.builds.backends import devices
from envbuilder.builds.payload import RECORD, TIMEOUT_SECONDS, payload_pyz
from envbuilder.containers import apptainer
from envbuilder.containers.engine.interface import LABEL
from envbuilder.core import process
from envbuilder.core.errors import Hint, InvalidError, VerifyError, counted, printable
from envbuilder.core.files import file_sha256
from envbuilder.core.text import stored
from envbuilder.packages.store import Store
from envbuilder.payload.start import AS_FOUND, Start, guarded
from envbuilder.profiles import choice
from envbuilder.profiles.backends import EXTERNAL, IMAGE
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.lock import lock_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envbuilder.builds.request import Built, Chosen, Planned, Request
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Expected, Profile

BACKEND = "apptainer"
"""Name that reports use for the backend of Apptainer images."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BUILD_SECONDS = 15.0
_SECONDS_OF_A_BYTE = 30e-9
_EPOCH_SECONDS = 160.0
"""Estimated CPU seconds for a build, for each byte of its files, and for one epoch on a CPU.

A build of `cpu` with 0.2 GB of wheels took 25 s in total on a Zen 4 CPU, and an epoch took 160 s on
a Zen 3 CPU. Other machines and profiles were not measured, so only the order of magnitude is
reliable.
"""


class Subject(NamedTuple):
    """An environment, interpreter or image to be verified or measured."""

    expects: Expected
    """The profile's expectations of the device and the framework."""
    facts: dict[str, Any]
    """Facts about the subject, for the report."""
    run: Callable[..., process.Completed]
    """A function that runs the payload in the subject."""
    planned: Planned | None = None
    """The planned build; None for an interpreter or an image, because those are not built."""

    def outlook(self, settings: Settings, *, quick: bool) -> str:
        """Return a message that announces the build and the training with their estimated duration.

        Return an empty string if nothing has to be built. A `quick` training run takes only
        seconds, so the estimate does not include it.
        """
        if self.planned is None or self.planned.product.existing():
            return ""
        files = self.planned.plan.files
        store = Store.of(settings)
        missing = sum(file.room for file in files if not store.has(file.sha256))
        cores = os.cpu_count() or 1
        work = _BUILD_SECONDS + _SECONDS_OF_A_BYTE * sum(file.room for file in files)
        if self.expects.device == "cpu" and not quick:
            work += _EPOCH_SECONDS
        fetched = f"fetch {stored(missing)}, " if missing else ""
        minutes = max(round(work / cores / 60), 1)
        return (
            f"first: {fetched}build the environment and train MNIST: about {minutes} min on"
            f" {counted(cores, 'core')}{' beside the download' if missing else ''}"
        )

    def built(self) -> tuple[Subject, Built | None]:
        """Build the environment if needed; return the subject and the finished build.

        The build is None for interpreters and images, and for an environment that was changed after
        it was built.
        """
        # If it changed, starting the payload fails, and the report states why.
        if self.planned is None or self.planned.environment.changed():
            return self, None
        finished = pipeline.finish(self.planned)
        artifact = msgspec.to_builtins(finished.result.artifact)
        return self._replace(facts={**self.facts, "artifact": artifact}), finished


def prepare(
    request: Request,
    executable: Path | None,
    settings: Settings,
    progress: Progress,
    *,
    inherit: bool = False,
    image: Path | None = None,
) -> Subject:
    """Prepare a verification of the requested environment, or of an existing artifact.

    The existing artifact is either an interpreter (`executable`) or an Apptainer image file
    (`image`). Raise `InvalidError` if options contradict each other.
    """
    if executable is not None and (request.backend or request.base_image or request.python):
        raise InvalidError(
            "--python checks an existing interpreter and cannot be combined with build options"
        )
    if inherit and executable is None:
        raise InvalidError(
            "--inherit-environment requires --python, the interpreter that gets your variables",
            "Add --python.",
        )
    if image is not None and (request.backend or executable is not None):
        raise InvalidError(
            "--sif runs an existing image and cannot be combined with --backend or --python"
        )
    if image is not None:
        return prepare_image(image, request, settings, progress)
    if executable is not None:
        return prepare_interpreter(executable, request, settings, progress, inherit=inherit)
    request = msgspec.structs.replace(request, restore=True)
    build = pipeline.prepare(request, settings, progress, running=True)
    facts = _facts(build, build.backend, build.plan.artifact, build.plan.fingerprint)
    expected = build.profile.expected(build.plan.python)
    return Subject(expected, facts, build.environment.run_payload, build)


def _facts(build: Chosen, backend: str, artifact: Any, fingerprint: str | None) -> dict[str, Any]:
    """Return the facts that an environment's report needs, but the payload does not measure."""
    return {
        "profile": build.profile.name,
        "backend": backend,
        "artifact": msgspec.to_builtins(artifact),
        "fingerprint": fingerprint,
        "host": msgspec.to_builtins(build.host),
    }


def require_torch(what: str, profile: str, expected: Expected) -> None:
    """Raise `InvalidError` if the profile's framework is not PyTorch.

    `what` names the command or option that supports only PyTorch.
    """
    if expected.framework != "torch":
        raise InvalidError(
            f"{what} only supports PyTorch, but profile '{profile}' has"
            f" {FRAMEWORKS[expected.framework].title}",
            Hint("Name a profile with PyTorch", ("profiles",)),
        )


def prepare_interpreter(
    executable: Path,
    request: Request,
    settings: Settings,
    progress: Progress,
    *,
    inherit: bool,
) -> Subject:
    """Prepare a verification of the interpreter `executable`.

    The profile (requested, or chosen for this host) determines the framework and the device that
    must do the work. The framework's version is not checked, since envbuilder did not build the
    interpreter's environment. With `inherit`, the payload receives all of the caller's environment
    variables. This is meant for sites whose environment modules use variables to provide the
    framework.
    """
    build = pipeline.choose(request, settings, progress, running=True)
    library = build.library
    profile = build.profile
    host = build.host
    if not request.force:
        # The interpreter does not use the locked wheels, so their contents do not matter.
        choice.require_host(profile, host, library, backend=EXTERNAL, building=False, locked=False)
    program = str(executable.absolute())
    facts = _facts(build, "external", {"kind": "interpreter", "ref": program, "digest": None}, None)
    if not inherit:
        for note in isolation.notes(os.environ):
            progress.note(f"note: {note}")

    def start(
        arguments: Callable[[Mapping[str, str]], Sequence[str]],
        folders: Mapping[str, Path],
        on_line: Callable[[str], None],
    ) -> process.Completed:
        paths = {name: str(shared.absolute()) for name, shared in folders.items()}
        with TemporaryDirectory(prefix="envbuilder-") as folder:
            payload = Path(folder) / "payload.pyz"
            work = Path(folder) / "work"
            payload.write_bytes(payload_pyz())
            work.mkdir()
            if inherit:
                start = AS_FOUND
                command = [program]
                base = dict(os.environ)
            else:
                bytecode = str(Path(folder) / "bytecode")
                base = isolation.payload_environment(os.environ)
                command = [*isolation.python(program, bytecode)]
                start = Start(
                    as_found=False,
                    executable=program,
                    bytecode=bytecode,
                    variables=guarded(base),
                )
            return process.run(
                [*command, str(payload), "--promise", start.text(), *arguments(paths)],
                env=variables.machine_threads(base),
                base=base,
                cwd=work,
                timeout=TIMEOUT_SECONDS,
                on_stdout=on_line,
            )

    return Subject(profile.expected(None), facts, start)


def prepare_image(image: Path, request: Request, settings: Settings, progress: Progress) -> Subject:
    """Prepare a verification of the Apptainer image `image`.

    The image must have been built by `envbuilder build` from the profile (requested, or chosen for
    this host) and from the current lock. Raise `InvalidError` if it was not, and `ToolError` if
    Apptainer is missing.
    """
    request = replace(request, backend=IMAGE)
    build = pipeline.choose(request, settings, progress, running=True)
    profile = build.profile
    hiding: dict[str, str] = {}
    if not request.force:
        fit = choice.require_host(profile, build.host, build.library, backend=IMAGE, building=False)
        hiding = fit.environment
        for reason in fit.reasons if fit.verdict == "warnings" else ():
            progress.note(f"warning: {reason}")
    lock = build.library.usable_lock(profile)
    for text in (*profile.notes(build.host.cpu.flags), *build.library.notes):
        progress.note(f"note: {text}")
    apptainer.require()
    image = image.absolute()
    fingerprint = require_built(image, apptainer.labels(image), profile.name, lock_digest(lock))
    with progress.task(f"read {image.name}"):
        digest = f"sha256:{file_sha256(image)}"
    artifact = {"kind": "image", "ref": str(image), "digest": digest}
    facts = _facts(build, BACKEND, artifact, fingerprint)
    chosen, note = devices.visible(profile.accelerator, hiding, os.environ)
    if note:
        progress.note(note)

    def start(
        arguments: Callable[[Mapping[str, str]], Sequence[str]],
        folders: Mapping[str, Path],
        on_line: Callable[[str], None],
    ) -> process.Completed:
        place = os.environ.get(apptainer.TEMPORARY) or None
        with TemporaryDirectory(prefix="envbuilder-", dir=place) as scratch:
            run = sif_execution(image, profile, chosen, arguments, folders, Path(scratch))
            done = process.run(
                run.command,
                base=run.environment(isolation.payload_environment(os.environ), os.environ),
                timeout=TIMEOUT_SECONDS,
                on_stdout=on_line,
            )
        if done.returncode == apptainer.FAILED:
            raise VerifyError(
                f"the container cannot be started: {apptainer.reason(done.stderr)}",
                "To see why, run:"
                f" {process.quoted((apptainer.PROGRAM, 'exec', str(image), 'true'))}",
            )
        return done

    return Subject(profile.expected(request.python or profile.image_python), facts, start)


def require_built(image: Path, labels: Mapping[str, str], profile: str, locked: str) -> str:
    """Check that an image was built from the profile and its lock, and return its fingerprint.

    `locked` is the digest of the lock. Raise `InvalidError` if the image lacks valid envbuilder
    labels, or if the labels specify another profile or lock.
    """
    stated = {key: labels.get(LABEL + key, "") for key in ("fingerprint", "profile", "lock")}
    again = Hint(
        "Build an image",
        ("build", "--profile", profile, "--backend", "docker", "--output", "oci:FOLDER"),
    )
    if not all(stated.values()) or not _SHA256.fullmatch(stated["fingerprint"]):
        raise InvalidError(
            f"{image}: envbuilder did not build this image: it has no label {LABEL}profile", again
        )
    if stated["profile"] != profile:
        raise InvalidError(
            f"{image}: the image is for profile {printable(stated['profile'], 60)}, not {profile}",
            f"Name the image's profile, or use another image.\n{again}",
        )
    if stated["lock"] != locked:
        raise InvalidError(
            f"{image}: not built from the current lock of {profile}"
            f" ({printable(stated['lock'][:12])} instead of {locked[:12]})",
            again,
        )
    return stated["fingerprint"]


def sif_execution(
    image: Path,
    profile: Profile,
    chosen: Mapping[str, str],
    arguments: Callable[[Mapping[str, str]], Sequence[str]],
    folders: Mapping[str, Path],
    scratch: Path,
) -> apptainer.Execution:
    """Return the Apptainer execution that runs the payload in an image.

    `chosen` contains the variables that select GPUs. The payload of this version of envbuilder
    replaces the one in the image.
    """
    payload = scratch / "payload.pyz"
    payload.write_bytes(payload_pyz())
    (scratch / "work").mkdir()
    paths = {name: f"/{name}" for name in folders}
    # The image's own variables are not known: what it sets beyond the profile's, the payload sees.
    variables = {
        **isolation.container_variables((), conventions.variables(profile)),
        "LD_LIBRARY_PATH": apptainer.DRIVERS,
    }
    promise = isolation.container_start(variables)
    program = isolation.python(promise.executable)
    return apptainer.Execution(
        image=image,
        argv=(
            *program,
            conventions.PAYLOAD,
            "exec",
            "--",
            *program,
            conventions.PAYLOAD,
            "--promise",
            promise.text(),
            *arguments(paths),
        ),
        variables={**variables, **chosen},
        mounts={
            str(payload): conventions.PAYLOAD,
            **{str(folders[n].absolute()): path for n, path in paths.items() if n != RECORD},
        },
        writable={str(folders[n].absolute()): p for n, p in paths.items() if n == RECORD},
        devices=devices.devices(profile, devices.host_nodes(profile)),
        scratch=scratch,
    )
