"""Programs that run elsewhere: in JupyterLab's environment, and in the container of a kernel."""

from pathlib import Path

SERVE = Path(__file__).with_name("serve.py")
GUARD = Path(__file__).with_name("guard.py")
