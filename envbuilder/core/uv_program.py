"""Start uv: in a private folder, and with no more of its caller's settings than are documented.

uv reads settings from its working folder and those above it: from a project that somebody cloned,
or from what another user put into /tmp. They name the interpreter that uv runs, files that it
overwrites and servers that get the caller's logins. So no other module starts uv.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envbuilder.core import process
from envbuilder.core.errors import ToolError

_FAMILIES = ("UV_", "PIP_", "PYTHON", "VIRTUAL_ENV", "CONDA_")
SETTINGS = frozenset(
    {
        "UV_DEFAULT_INDEX",
        "UV_INDEX",
        "UV_INDEX_URL",
        "UV_EXTRA_INDEX_URL",
        "UV_FIND_LINKS",
        "UV_NO_INDEX",
        "UV_INDEX_STRATEGY",
        "UV_OFFLINE",
        "UV_CONFIG_FILE",
        "UV_NO_CONFIG",
        "UV_HTTP_TIMEOUT",
        "UV_HTTP_RETRIES",
        "UV_CONCURRENT_DOWNLOADS",
        "UV_INSECURE_HOST",
        "UV_NATIVE_TLS",
        "UV_SYSTEM_CERTS",
        "UV_KEYRING_PROVIDER",
        "UV_CREDENTIALS_DIR",
        "PYTHON_KEYRING_BACKEND",
        "UV_PYTHON_INSTALL_DIR",
    }
)
"""Variables of these families that uv gets: indexes, the network, logins, its own Pythons."""
_LOGIN = re.compile(r"UV_INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)")
_NAMED = re.compile(r"[A-Za-z0-9_.-]+=")
_SEPARATORS = {
    **dict.fromkeys(("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"), " "),
    **dict.fromkeys(("UV_CONFIG_FILE", "UV_CREDENTIALS_DIR", "UV_PYTHON_INSTALL_DIR"), "\n"),
    **dict.fromkeys(("SSL_CERT_FILE", "SSL_CLIENT_CERT", "NETRC"), "\n"),
    "SSL_CERT_DIR": os.pathsep,
    "UV_FIND_LINKS": ",",
}
"""Variables that may name paths of the caller's working folder, and what is between two paths."""


def path() -> str:
    """Return the path of the uv installed beside envbuilder, used for look-ups.

    Raise `ToolError` if there is none. Wheels are installed by the uv that the lock names, never by
    this one.
    """
    try:
        import uv

        return str(uv.find_uv_bin())
    # A package that fails to be imported may be met half imported by another thread.
    except (ImportError, AttributeError, FileNotFoundError) as error:
        raise ToolError(f"uv: not found: {error}", "Run: pip install uv") from error


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's variables that uv gets: of its own, pip's and Python's only `SETTINGS`.

    Other programs' are left as they are: the proxy's, or what an interpreter needs to start.
    """
    return _absolute(
        {
            name: value
            for name, value in environ.items()
            if not name.startswith(_FAMILIES) or name in SETTINGS or _LOGIN.fullmatch(name)
            if name != "COLUMNS"  # what it says is read: not wrapped
        }
    )


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    runner: Callable[..., process.Completed] | None = None,
    **options: Any,
) -> process.Completed:
    """Run uv to completion, as `process.run` does; `env` is added to the caller's settings.

    `folder` is private and becomes the working folder, by default a temporary one. It gets a
    uv.toml unless it has one, so that uv looks for none in the folders above it; what a uv that is
    killed leaves of temporary files is there, and goes with it.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            import tempfile

            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="envbuilder-uv-")))
        (folder / "uv.toml").touch()
        variables = {"TMPDIR": str(folder), **_absolute(env or {})}
        start = runner or process.run
        return start(argv, base=environment(os.environ), env=variables, cwd=folder, **options)


def _absolute(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables whose relative paths are made absolute, since uv runs in another folder."""
    return {
        name: separator.join(map(_located, value.split(separator)))
        if (separator := _SEPARATORS.get(name))
        else value
        for name, value in variables.items()
    }


def _located(location: str) -> str:
    """Return a URL as it is, and a path, which may be named as in NAME=PATH, as an absolute one."""
    if not location or "://" in location:
        return location
    named = _NAMED.match(location)
    name = named[0] if named else ""
    return f"{name}{Path(location.removeprefix(name)).absolute()}"
