"""The transport of HTTP sessions: what a server sends is counted, and no wait is endless.

requests limits the time between two reads and nothing else. Here, the head of a response (status,
headers, any number of `100 Continue`) and its body are limited in bytes and in time as a whole.
Sessions follow no redirects on their own, and can be stopped by another
thread.
"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
import weakref
from http.client import HTTPResponse
from typing import Any

import requests
from msgspec import Struct
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from envbuilder.core.errors import LimitError

_WRITE = 1 << 16
_UNREAD_BYTES = 1 << 16
"""How much may arrive of a body before a reader states its own limit."""


class Limits(Struct, frozen=True, kw_only=True):
    """What a server may take of one session."""

    timeout: tuple[float, float] = (10.0, 30.0)
    """Seconds to connect, and between two reads."""
    head_bytes: int = 1 << 18
    head_seconds: float = 60.0


class Meter(io.RawIOBase):
    """What arrives on a socket for one response, within limits."""

    def __init__(self, raw: Any, sock: Any, limits: Limits) -> None:
        self._raw = raw
        self._sock = sock
        self._timeout: float | None = sock.gettimeout()
        self._in_body = False
        self._allow(limits.head_bytes, limits.head_seconds)

    def allow(self, size: int, seconds: float) -> None:
        """Limit the body to `size` more bytes and `seconds` from now."""
        self._in_body = True
        self._allow(size, seconds)

    def _allow(self, size: int, seconds: float) -> None:
        self._left = size
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the bytes that have arrived; wait no longer than the limits allow."""
        wait = self._end - time.monotonic()
        if self._left <= 0:
            raise LimitError("the response is longer than it may be")
        if wait <= 0:
            raise self._late()
        # On each read: a connection that is used again has the time-outs of its next request.
        self._sock.settimeout(wait if self._timeout is None else min(wait, self._timeout))
        try:
            count: int = self._raw.readinto(buffer) or 0
        except TimeoutError:
            silent = LimitError(f"timed out after {self._timeout or self._seconds:g} s")
            raise (self._late() if time.monotonic() >= self._end else silent) from None
        self._left -= count
        return count

    def _late(self) -> LimitError:
        what = "the response" if self._in_body else "the head of the response"
        return LimitError(f"{what} was not complete after {self._seconds:g} s")

    def close(self) -> None:
        """Close the underlying stream, too."""
        self._raw.close()
        super().close()


def _pool_classes(session: Session) -> dict[str, type[HTTPConnectionPool]]:
    """Return urllib3's pools by scheme, with connections that belong to a session."""

    class Response(HTTPResponse):
        def __init__(self, sock: Any, *args: Any, **options: Any) -> None:
            super().__init__(sock, *args, **options)
            self.meter = Meter(self.fp.detach(), sock, session.limits)
            self.fp = io.BufferedReader(self.meter)

        def begin(self) -> None:
            super().begin()
            self.meter.allow(_UNREAD_BYTES, session.limits.head_seconds)

    class Plain(HTTPConnection):
        response_class = Response

        def _new_conn(self) -> socket.socket:
            # Before any handshake, with a proxy or with the server.
            sock = super()._new_conn()
            session.watch(sock)
            return sock

        def connect(self) -> None:
            super().connect()
            session.watch(self.sock)

        def send(self, data: Any) -> None:
            # The time-out is for one call: so it limits the time between two writes.
            view = memoryview(data) if isinstance(data, bytes) else None
            if view is None:
                super().send(data)
                return
            for start in range(0, len(view), _WRITE):
                super().send(view[start : start + _WRITE])

    class Secure(Plain, HTTPSConnection):
        pass

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


class _Adapter(HTTPAdapter):
    """requests' adapter, whose connections are metered and whose time-outs are never missing."""

    def __init__(self, session: Session) -> None:
        self._limits = session.limits
        self._pools = _pool_classes(session)
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, proxy: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **options)
        if not proxy.lower().startswith("socks"):
            manager.pool_classes_by_scheme = self._pools
        return manager

    def send(self, request: Any, stream: bool = False, timeout: Any = None, **options: Any) -> Any:  # type: ignore[override]
        pair = timeout if isinstance(timeout, tuple) else (timeout, timeout)
        usual = self._limits.timeout
        complete = (pair[0] or usual[0], pair[1] or usual[1])
        return super().send(request, stream=stream, timeout=complete, **options)


class Session(requests.Session):
    """A session whose responses are limited, and which follows no redirects on its own."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__()
        self.limits = limits or Limits()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        adapter = _Adapter(self)
        for prefix in ("http://", "https://"):
            self.mount(prefix, adapter)

    def watch(self, sock: socket.socket) -> None:
        """Register an open socket; raise `LimitError` if the session was stopped meanwhile."""
        with self._lock:
            self._sockets.add(sock)
        if self._stopped.is_set():
            sock.close()
            raise LimitError("stopped")

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return None: requests would read a redirect's whole body, and may keep the login."""
        del resp

    def stop(self) -> None:
        """End what other threads are requesting; later requests fail."""
        self._stopped.set()
        with self._lock:
            sockets = list(self._sockets)
        for sock in sockets:
            with contextlib.suppress(OSError):
                # An SSLSocket's own method would drop its state under the reading thread.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def pause(self, seconds: float) -> None:
        """Wait; raise `LimitError` as soon as the session is stopped."""
        if self._stopped.wait(seconds):
            raise LimitError("stopped")
