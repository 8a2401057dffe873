"""Code that runs in the interpreters that `run` and `shell` start, and in JupyterLab's."""
