"""Entry point of ``python -m envbuilder.payload``.

The zipapp has its own entry point, which also calls ``main``.
"""

from __future__ import annotations

from .cli import main

if __name__ == "__main__":
    raise SystemExit(main())
