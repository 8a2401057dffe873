"""Programs that run in JupyterLab's environment."""

from pathlib import Path

SERVE = Path(__file__).with_name("serve.py")
