"""What runs in the interpreters that `run` and `shell` start."""

from pathlib import Path

HOOK = Path(__file__).with_name("sitecustomize.py")
