"""``python -m envbuilder.payload``; the zipapp's own ``__main__`` calls the same function."""

from __future__ import annotations

from .cli import main

if __name__ == "__main__":
    raise SystemExit(main())
