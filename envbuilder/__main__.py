"""Entry point of `python -m envbuilder`."""

from envbuilder.cli import main

if __name__ == "__main__":
    main()
