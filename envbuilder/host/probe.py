"""Read this machine, or a recorded tree, into a `Host`.

Only `snapshot` touches the machine; the other modules parse text and decide from data, so a
recorded tree gives the same answer anywhere.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envbuilder.host.model import Host


def host(
    root: Path = Path("/"), environ: Mapping[str, str] | None = None, *, full: bool = False
) -> Host:
    """The host, from this machine or from a recorded tree (`proc/ sys/ dev/ nvml.json sysctl.txt`).

    Starts no process on Linux, unless `full` asks for what only commands can tell. Without
    `environ` this process's environment counts, and none for a recorded tree.
    """
    from envbuilder.host import fetch, system

    taken = fetch.fetch(root, full=full)
    if environ is None:
        environ = os.environ if taken.live else {}
    return system.decide(taken, environ)
