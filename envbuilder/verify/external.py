"""`verify --python`: verify an existing interpreter without changing it."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from envbuilder.build import decide, isolation
from envbuilder.build.payload import TIMEOUT_SECONDS, payload_pyz
from envbuilder.core import process
from envbuilder.host import probe
from envbuilder.payload.machine import threads
from envbuilder.payload.start import AS_FOUND, Start
from envbuilder.profiles import choice
from envbuilder.profiles.backends import EXTERNAL
from envbuilder.project import catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envbuilder.build.request import Request
    from envbuilder.core.console import Progress
    from envbuilder.core.process import Completed
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Expected


def prepare(
    executable: Path,
    request: Request,
    settings: Settings,
    progress: Progress,
    *,
    inherit: bool,
) -> tuple[Expected, dict[str, Any], Callable[..., Completed]]:
    """Return expectations, report facts, and a function that starts the payload in `executable`.

    The profile (requested, or chosen for this host) determines the framework, and which device must
    do the work. Its version is not required, since envbuilder did not build the interpreter. With
    `inherit` the payload gets all of the caller's variables, for sites whose environment modules
    provide the framework through them.
    """
    library = catalog.library(settings)
    profile = library.profile(request.profile) if request.profile is not None else None
    host = probe.host()
    if profile is None:
        profile = decide.choose_profile(library, settings, host, progress).profile
    if not request.force:
        # The interpreter does not use the locked wheels, so their contents do not matter.
        choice.require_host(profile, host, library, backend=EXTERNAL, building=False, locked=False)
    facts = {
        "profile": profile.name,
        "backend": "external",
        "artifact": {"kind": "interpreter", "ref": str(executable.absolute()), "digest": None},
        "fingerprint": None,
        "host": msgspec.to_builtins(host),
    }

    if not inherit:
        for note in isolation.notes(os.environ):
            progress.note(f"note: {note}")

    def start(
        arguments: Callable[[Mapping[str, str]], Sequence[str]],
        folders: Mapping[str, Path],
        on_line: Callable[[str], None],
    ) -> Completed:
        paths = {name: str(shared.absolute()) for name, shared in folders.items()}
        program = str(executable.absolute())
        with TemporaryDirectory(prefix="envbuilder-") as folder:
            payload, work = Path(folder) / "payload.pyz", Path(folder) / "work"
            payload.write_bytes(payload_pyz())
            work.mkdir()
            if inherit:
                start, command, base = AS_FOUND, [program], dict(os.environ)
            else:
                bytecode = str(Path(folder) / "bytecode")
                base = isolation.payload_environment(os.environ)
                command = [*isolation.python(program, bytecode)]
                start = Start(
                    as_found=False,
                    executable=program,
                    bytecode=bytecode,
                    variables=isolation.promised(base),
                )
            return process.run(
                [*command, str(payload), "--promise", start.text(), *arguments(paths)],
                env={"OMP_NUM_THREADS": str(threads.decide(threads.fetch()))},
                base=base,
                cwd=work,
                timeout=TIMEOUT_SECONDS,
                on_stdout=on_line,
            )

    return profile.expected(None), facts, start
