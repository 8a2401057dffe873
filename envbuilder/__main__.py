"""The entry point of both `envbuilder` and `python -m envbuilder`."""

import gc
import sys
from typing import NoReturn

_ALLOCATIONS = 100_000


def main() -> NoReturn:
    """Run the command line, with a higher threshold for the garbage collector.

    Imports create thousands of objects but no garbage. At Python's default threshold, the garbage
    collections during the imports would take a tenth of the time of `--help`.
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
