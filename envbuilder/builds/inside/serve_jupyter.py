"""Serve JupyterLab with one kernel; runs in JupyterLab's own environment, with its Python.

The first argument is a JSON object (`builds.jupyter.Server`), the others are JupyterLab's own. A
signal ends the server and its kernels at once, without asking; no file is left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

import jupyterlab
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from jupyterlab.labapp import LabApp
from traitlets import Dict
from traitlets.config import Config

_NAME = "python3"
"""The kernel's name, which notebooks store: Jupyter's default, so that they open elsewhere."""
_HANDSHAKE_MILLISECONDS = 2000
"""How long a kernel may take to answer a connection before another is made."""
_SECONDS = 1.6
"""How long kernels may take to end; they also notice when this process ends."""


class OneKernel(KernelSpecManager):  # type: ignore[misc]  # its library has no types here
    """The only kernel on offer: that of the user's environment, none of this machine's."""

    kernel = Dict(config=True)

    def find_kernel_specs(self) -> dict[str, str]:
        """Return the kernel's name, and the folder with its icons."""
        return {_NAME: str(Path(sys.prefix, "share", "jupyter", "kernels", "python3"))}

    def get_kernel_spec(self, kernel_name: str) -> Any:
        """Return the command that starts the kernel."""
        if kernel_name != _NAME:
            raise NoSuchKernel(kernel_name)
        return self.kernel_spec_class(resource_dir=self.find_kernel_specs()[_NAME], **self.kernel)


def main(arguments: list[str]) -> None:
    """Serve until a signal arrives."""
    # Only this user can enter it: the server writes its token there, into a readable file, too.
    folder = tempfile.mkdtemp(prefix="envbuilder-jupyter-")
    os.environ["JUPYTER_RUNTIME_DIR"] = folder
    try:
        server = LabApp.initialize_server(
            argv=arguments[1:], config=Config(_settings(json.loads(arguments[0])))
        )
        _end_on_signals(server, folder)
        # podman accepts connections before a container has its ports; no answer comes on those.
        server.kernel_manager.context.handshake_ivl = _HANDSHAKE_MILLISECONDS
        server.io_loop.add_callback(print, _link(server), flush=True)
        server.start()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    # To unload a thousand modules takes 0.8 s, and nothing else is left to do.
    os._exit(0)


def _settings(given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings that differ from Jupyter's defaults; its arguments take precedence."""
    return {
        "OneKernel": {"kernel": given["kernel"]},
        "ServerApp": {
            "ip": "127.0.0.1",
            "root_dir": given["folder"],
            "open_browser": given["browser"],
            "kernel_spec_manager_class": OneKernel,
            "terminado_settings": {"shell_command": given["shell"]},
            "allow_root": True,
            "log_level": "WARN",
        },
        "LabApp": {
            "log_level": "WARN",
            # The lock decides what is installed, and only the user's own work uses the network.
            "extension_manager": "readonly",
            "news_url": None,
            "check_for_updates_class": jupyterlab.NeverCheckForUpdate,
        },
        "KernelManager": {"shutdown_wait_time": 1.0},
        # The kernel of a container listens on the container's network.
        "MappingKernelManager": {"transport_encryption": "auto"},
    }


def _link(server: Any) -> str:
    """Return the link to JupyterLab's page, with the token."""
    identity = server.identity_provider
    token = identity.token
    page = server.default_url
    # Or the server would print its links itself, and the paths of its files.
    identity.token_generated = False
    if server.file_to_run:
        path = Path(server.file_to_run).absolute().relative_to(server.root_dir)
        page = f"{server.base_url}{server.file_url_prefix.strip('/')}/{quote(path.as_posix())}"
    link = urljoin(server.connection_url, page)
    return f"{link}?token={token}" if token else link


def _end_on_signals(server: Any, folder: str) -> None:
    """End the server on signals, except those that the caller ignores, as with nohup."""
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]

    def end(number: int, frame: object) -> None:
        for received in numbers:
            signal.signal(received, lambda *_: None)
        threading.Thread(target=insist, args=(number,), daemon=True).start()
        server.stop(from_signal=True)

    def insist(number: int) -> None:
        time.sleep(_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(128 + number)

    for number in numbers:
        signal.signal(number, end)


if __name__ == "__main__":
    main(sys.argv[1:])
