"""`verify --python`: check an interpreter that somebody else set up, as it is."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from envbuilder import process, profiles
from envbuilder.pack import payload_pyz
from envbuilder.payload import threads
from envbuilder.verify import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envbuilder.console import Progress
    from envbuilder.options import Request
    from envbuilder.process import Completed
    from envbuilder.profiles import Expects
    from envbuilder.settings import Settings


def prepare(
    executable: Path, request: Request, settings: Settings, progress: Progress
) -> tuple[Expects, dict[str, Any], Callable[..., Completed]]:
    """Expectations, report facts, and how to start the payload in this interpreter.

    The profile (asked for, or the one this host decides for) says which device must do the work;
    its torch version is not demanded, since the interpreter is not ours.
    """
    from envbuilder import host, workflow

    folders = profiles.search_path(settings.project, settings.config_dir)
    profile = workflow.asked(request, folders)
    here = host.probe()
    profile = profile or workflow.decided(settings, folders, here, progress)
    if not request.force:
        # Its wheels are not the lock's: what those carry says nothing.
        workflow.require_host(profile, here, folders, backend="venv", building=False, locked=False)
    known = {
        "profile": profile.name,
        "backend": "external",
        "artifact": {"kind": "interpreter", "ref": str(executable.absolute()), "digest": None},
        "fingerprint": None,
        "host": msgspec.to_builtins(here),
    }

    def start(
        arguments: Callable[[Mapping[str, str]], Sequence[str]],
        folders: Mapping[str, Path],
        on_line: Callable[[str], None],
    ) -> Completed:
        seen = {name: str(shared) for name, shared in folders.items()}
        with TemporaryDirectory(prefix="envbuilder-") as folder:
            payload = Path(folder) / "payload.pyz"
            payload.write_bytes(payload_pyz())
            return process.run(
                [str(executable.absolute()), str(payload), *arguments(seen)],
                env={"OMP_NUM_THREADS": str(threads.decide(threads.fetch()))},
                timeout=TIMEOUT_SECONDS,
                on_stdout=on_line,
            )

    return msgspec.structs.replace(profile.expects, torch=""), known, start
