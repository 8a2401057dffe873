"""JupyterLab in an environment of its own, and kernels in the user's environments.

May import `build` and the rooms below it, but neither `bundle` nor `verify`.
"""
