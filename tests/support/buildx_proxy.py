"""dockerd's own BuildKit as an endpoint for buildx's driver `remote`, on a Unix socket.

dockerd serves BuildKit's gRPC at POST /grpc after an upgrade to h2c, which that driver does not
ask for. What clients send is looked at on its way: the profiles that are built, and how much.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path

_UPGRADE = b"POST /grpc HTTP/1.1\r\nHost: d\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
_PROFILE = re.compile(rb"label:io\.envbuilder\.profile\x12.([a-z0-9-]+)", re.DOTALL)
_PIECE = 1 << 16
_OVERLAP = 256
A_BUILD = 1 << 20
"""Bytes that a client sends only for a build: what describes an instance is far less."""


class Proxy:
    """One endpoint; `on_build` is called in a connection that sends the files of a build."""

    def __init__(self, dockerd: Path, endpoint: Path, on_build: Callable[[], None]) -> None:
        self.endpoint, self.profiles = endpoint, set[str]()
        self._dockerd = dockerd
        self._on_build = on_build
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(endpoint))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # A thread that waits in accept() keeps the socket; to shut it down ends that.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            server.connect(str(self._dockerd))
            server.sendall(_UPGRADE)
            answer = b""
            while b"\r\n\r\n" not in answer:
                piece = server.recv(1)
                if not piece:
                    return
                answer += piece
            back = threading.Thread(target=_copy, args=(server, client, lambda data: None))
            back.start()
            _copy(client, server, self._watch())
            back.join()

    def _watch(self) -> Callable[[bytes], None]:
        """Return what looks at the pieces of one connection."""
        sent = 0
        end = b""

        def look(data: bytes) -> None:
            nonlocal sent, end
            self.profiles.update(n.decode() for n in _PROFILE.findall(end + data))
            end = data[-_OVERLAP:]
            before = sent
            sent += len(data)
            if before < A_BUILD <= sent:
                self._on_build()

        return look


def _copy(source: socket.socket, target: socket.socket, look: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_PIECE):
            look(data)
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


class Meeting:
    """A place where each of some builds waits, for a bounded time, until all of them run."""

    def __init__(self, builds: int, patience: float = 60.0) -> None:
        self._barrier = threading.Barrier(builds, timeout=patience)
        self.met = 0

    def __call__(self) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            self._barrier.wait()
            self.met += 1
