"""Lock the environments of envbuilder's own tools: `profiles/tools/NAME.yaml`.

    make tool-locks                           keep the versions that still fit
    make tool-locks UPGRADE=--upgrade         the newest versions

They are made as a profile's lock is, and with the user's own package index. Prints what changed.
Exit code 4: a tool could not be locked; its lock is left as it was.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from envbuilder.builds import jupyter
from envbuilder.core.errors import EnvbuilderError
from envbuilder.core.settings import load as load_settings
from envbuilder.locks import compare, entries, resolve
from envbuilder.profiles import lock as locks

if TYPE_CHECKING:
    from collections.abc import Sequence

TOOLS = (jupyter.NAME, jupyter.KERNEL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the locks that changed; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upgrade", action="store_true", help="the newest versions")
    upgrade = parser.parse_args(arguments).upgrade
    settings = load_settings()
    library = jupyter.library()
    for name in TOOLS:
        path = library.folders[0] / "locks" / f"{name}.json"
        previous = locks.load(path) if path.exists() else None
        try:
            lock = resolve.resolve(library.profile(name), settings, previous, upgrade)
        except EnvbuilderError as error:
            sys.stderr.write(f"error: {name}: {error.message}\n{error.hint}\n")
            return 4
        if lock.state != "locked":
            sys.stderr.write(f"error: {name}: {lock.why}\n")
            return 4
        for line in compare.changes(previous, lock):
            sys.stdout.write(f"{line}\n")
        if not path.exists() or path.read_bytes() != entries.content(lock):
            entries.save({path: lock}, "")
            sys.stdout.write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
