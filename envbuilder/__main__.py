"""Entry point of `envbuilder` and of `python -m envbuilder`."""

import gc
import sys
from typing import NoReturn

_ALLOCATIONS = 100_000


def main() -> NoReturn:
    """Run the command line.

    Importing makes thousands of objects and no garbage: at Python's own threshold, looking for some
    would take a tenth of the time of `--help`.
    """
    gc.set_threshold(_ALLOCATIONS)
    try:
        from envbuilder.cli import main

        main()
    except KeyboardInterrupt:  # while modules are imported
        from envbuilder.core.errors import INTERRUPTED

        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
