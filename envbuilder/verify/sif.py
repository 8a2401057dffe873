"""`verify --sif`: verify an image in a file of Apptainer's, as clusters without docker run it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from envbuilder.build import conventions, decide, isolation
from envbuilder.build.backends import devices
from envbuilder.build.payload import RECORD, TIMEOUT_SECONDS, payload_pyz
from envbuilder.containers import apptainer
from envbuilder.containers.apptainer import Execution
from envbuilder.containers.engine.interface import LABEL
from envbuilder.core import process
from envbuilder.core.errors import InvalidError, VerifyError
from envbuilder.core.files import file_sha256
from envbuilder.core.text import printable
from envbuilder.host import probe
from envbuilder.profiles import choice
from envbuilder.profiles.backends import IMAGE
from envbuilder.profiles.lock import lock_digest
from envbuilder.project import catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envbuilder.build.request import Request
    from envbuilder.core.console import Progress
    from envbuilder.core.process import Completed
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Expected, Profile

BACKEND = "apptainer"
"""In reports."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


def prepare(
    image: Path, request: Request, settings: Settings, progress: Progress
) -> tuple[Expected, dict[str, Any], Callable[..., Completed]]:
    """Return expectations, report facts, and a function that starts the payload in `image`.

    The image must be one that `envbuilder build` made of the profile (requested, or chosen for this
    host) and of the lock as it is here. Raises `InvalidError` if it is another, `ToolError` if
    Apptainer is missing.
    """
    library = catalog.library(settings)
    profile = library.profile(request.profile) if request.profile is not None else None
    host = probe.host()
    if profile is None:
        profile = decide.choose_profile(library, settings, host, progress, IMAGE).profile
    decide.require_offered(profile, replace(request, backend=IMAGE))
    hiding = dict[str, str]()
    if not request.force:
        fit = choice.require_host(profile, host, library, backend=IMAGE, building=False)
        hiding = fit.environment
        for reason in fit.reasons if fit.verdict == "warnings" else ():
            progress.note(f"warning: {reason}")
    lock = library.usable_lock(profile, IMAGE)
    for text in (*profile.warnings, *library.notes):
        progress.note(f"note: {text}")
    apptainer.require()
    image = image.absolute()
    fingerprint = require_built(image, apptainer.labels(image), profile.name, lock_digest(lock))
    with progress.task(f"read {image.name}"):
        digest = f"sha256:{file_sha256(image)}"
    facts = {
        "profile": profile.name,
        "backend": BACKEND,
        "artifact": {"kind": "image", "ref": str(image), "digest": digest},
        "fingerprint": fingerprint,
        "host": msgspec.to_builtins(host),
    }
    chosen, note = devices.visible(profile.accelerator, hiding, os.environ)
    if note:
        progress.note(note)

    def start(
        arguments: Callable[[Mapping[str, str]], Sequence[str]],
        folders: Mapping[str, Path],
        on_line: Callable[[str], None],
    ) -> Completed:
        place = os.environ.get(apptainer.TEMPORARY) or None
        with TemporaryDirectory(prefix="envbuilder-", dir=place) as scratch:
            run = execution(image, profile, chosen, arguments, folders, Path(scratch))
            done = process.run(
                run.command,
                base=run.environment(isolation.payload_environment(os.environ), os.environ),
                timeout=TIMEOUT_SECONDS,
                on_stdout=on_line,
            )
        if done.returncode == apptainer.FAILED:
            raise VerifyError(
                f"the container cannot be started: {apptainer.reason(done.stderr)}",
                f"Try: {process.quoted((apptainer.PROGRAM, 'exec', str(image), 'true'))}",
            )
        return done

    return profile.expected(request.python or profile.image_python), facts, start


def require_built(image: Path, labels: Mapping[str, str], profile: str, locked: str) -> str:
    """Return the fingerprint of an image that was built from a profile and its lock.

    Raises `InvalidError` if its labels say something else; `locked` is the digest of the lock.
    """
    stated = {key: labels.get(LABEL + key, "") for key in ("fingerprint", "profile", "lock")}
    again = f"Build it: envbuilder build --profile {profile} --backend docker --output oci:DIR"
    if not all(stated.values()) or not _SHA256.fullmatch(stated["fingerprint"]):
        raise InvalidError(
            f"{image}: not an image that envbuilder built: it has no label {LABEL}profile", again
        )
    if stated["profile"] != profile:
        raise InvalidError(
            f"{image}: an image of the profile {printable(stated['profile'], 60)}, not {profile}",
            f"Name its profile, or another image.\n{again}",
        )
    if stated["lock"] != locked:
        raise InvalidError(
            f"{image}: built from another lock of {profile} than the one here"
            f" ({printable(stated['lock'][:12])} instead of {locked[:12]})",
            again,
        )
    return stated["fingerprint"]


def execution(
    image: Path,
    profile: Profile,
    chosen: Mapping[str, str],
    arguments: Callable[[Mapping[str, str]], Sequence[str]],
    folders: Mapping[str, Path],
    scratch: Path,
) -> Execution:
    """Return how the payload is run; `chosen` are variables that choose among GPUs.

    The payload is this envbuilder's own, in the place of the image's.
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
    program = isolation.python(promise.executable, promise.bytecode)
    return Execution(
        image=image,
        argv=(
            *(*program, conventions.PAYLOAD, "exec", "--"),
            *(*program, conventions.PAYLOAD, "--promise", promise.text(), *arguments(paths)),
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
