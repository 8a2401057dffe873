"""Debian's docker-registry on loopback, and a proxy before it that cuts connections."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

USER = "somebody"
PASSWORD = "very-secret-password"
# bcrypt, the only kind that it takes; cost 5, so that a request does not take long
_HTPASSWD = f"{USER}:$2y$05$abcdefghijklmnopqrstuu8XRbgOxbsNvAte7v7otLahkLnSfq/Jm\n"
_SECONDS = 20.0


class Registry:
    """One docker-registry, started and ended by its pid; its data outlive it."""

    def __init__(self, folder: Path, *, password: bool = False) -> None:
        self._folder = folder
        self._password = password
        self._child: subprocess.Popen[bytes] | None = None
        self.host = ""
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def data(self) -> Path:
        """What was pushed."""
        return self._folder / "data"

    def start(self) -> None:
        """Start it on a free port, or on the one that it had."""
        config = self._folder / "config.yml"
        log = self._folder / "log"
        auth = ""
        if self._password:
            (self._folder / "htpasswd").write_text(_HTPASSWD)
            auth = f"auth: {{htpasswd: {{realm: test, path: {self._folder}/htpasswd}}}}\n"
        config.write_text(
            "version: 0.1\n"
            "log: {level: info, accesslog: {disabled: true}}\n"
            f"storage: {{filesystem: {{rootdirectory: {self.data}}}}}\n"
            # Uploads are signed with it: one that is made up at each start could not be continued.
            f"http: {{addr: '{self.host or '127.0.0.1:0'}', secret: of-this-test}}\n{auth}"
        )
        with log.open("wb") as out:
            self._child = subprocess.Popen(
                ["docker-registry", "serve", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={"PATH": os.environ["PATH"]},
            )
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline and self._child.poll() is None:
            found = re.search(r"listening on (127\.0\.0\.1:\d+)", log.read_text())
            if found:
                self.host = found[1]
                return
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"docker-registry did not start: {log.read_text()[-800:]}")

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it, and no other."""
        if self._child is not None:
            self._child.send_signal(number)
            self._child.wait(_SECONDS)
            self._child = None

    @property
    def pid(self) -> int:
        return self._child.pid


class CuttingProxy:
    """Passes TCP on to a registry, and cuts one connection after so many bytes in a direction."""

    def __init__(self, target: str) -> None:
        self._target = target.rpartition(":")[::2]
        self._server = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.cut_after: int | None = None
        """Bytes to the registry."""
        self.cut_back_after: int | None = None
        """Bytes from it."""
        self.cuts = 0

    def serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            host, port = self._target
            upstream = socket.create_connection((host, int(port)))
            for a, b, limit in (
                (client, upstream, "cut_after"),
                (upstream, client, "cut_back_after"),
            ):
                threading.Thread(target=self._pass, args=(a, b, limit), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, limit: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                left = getattr(self, limit)
                if left is not None:
                    if left < len(data):
                        setattr(self, limit, None)
                        self.cuts += 1
                        break
                    setattr(self, limit, left - len(data))
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


@contextlib.contextmanager
def cutting(target: str) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(target)
    thread = threading.Thread(target=proxy.serve)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
