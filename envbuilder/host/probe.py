"""Read this machine, or a recorded tree, into a `Host`.

`fetch` reads everything into a snapshot; `system` decides from that data alone, so a recorded
tree gives the same answer anywhere.
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
    """Return this machine's host, or a recorded tree's (`proc/ sys/ dev/ nvml.json sysctl.txt`).

    Start no process on Linux, unless `full` requests what only commands can report. `environ`
    defaults to this process's environment, or to an empty one for a recorded tree.
    """
    from envbuilder.host import fetch, system

    taken = fetch.fetch(root, full=full)
    if environ is None:
        environ = os.environ if taken.live else {}
    return system.decide(taken, environ)
