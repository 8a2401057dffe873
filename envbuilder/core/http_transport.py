"""The transport of HTTP sessions, which limits every wait and lets another thread end all waits.

The requests library limits only the time between two reads. In this module, the head of a response
(the status, the headers and any number of `100 Continue`) has one deadline as a whole, and `http`
sets a deadline for each body. Sessions do not follow redirects on their own.
"""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPResponse
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from envbuilder.core.errors import LimitError

_WRITE = 1 << 16


def _shut_down(sock: socket.socket) -> None:
    """Shut down a socket. This wakes up the threads that are waiting for the socket."""
    with suppress(OSError):
        # An SSLSocket's own method would drop its state under the reading thread.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


@contextmanager
def deadline(sock: socket.socket | None, seconds: float, what: str) -> Iterator[None]:
    """Shut down a socket and raise `LimitError` if the caller takes longer than `seconds`.

    `what` is the name of the awaited data in the error message.
    """
    late = threading.Event()

    def end() -> None:
        late.set()
        if sock is not None:
            _shut_down(sock)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception:
        if not late.is_set():
            raise
    finally:
        timer.cancel()
    if late.is_set():
        raise LimitError(f"{what} was not complete after {seconds:g} s") from None


def _pool_classes(session: Session) -> dict[str, type[HTTPConnectionPool]]:
    """Return the urllib3 pool class for each scheme.

    The connections of these pools have deadlines, and the session can shut them down.
    """

    class Response(HTTPResponse):
        def __init__(self, sock: Any, *args: Any, **options: Any) -> None:
            super().__init__(sock, *args, **options)
            self.sock = sock  # for the deadline of its body

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

        def _tunnel(self) -> None:
            with deadline(self.sock, session.head_seconds, "the proxy's answer"):
                super()._tunnel()

        def getresponse(self) -> Any:
            with deadline(self.sock, session.head_seconds, "the head of the response"):
                return super().getresponse()

        def send(self, data: Any) -> None:
            # The time-out is for one call: so it limits the time between two writes.
            if not isinstance(data, bytes):
                super().send(data)
                return
            view = memoryview(data)
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
    """An HTTP adapter with deadlines for its connections and time-outs for every request."""

    def __init__(self, session: Session) -> None:
        self._timeout = session.timeout
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
        complete = (pair[0] or self._timeout[0], pair[1] or self._timeout[1])
        return super().send(request, stream=stream, timeout=complete, **options)


class Session(requests.Session):
    """A requests session that limits how long a response may take.

    It does not follow redirects on its own.
    """

    timeout = (10.0, 30.0)
    """Time-outs in seconds, first for connecting, then for the time between two reads."""
    head_seconds = 60.0

    def __init__(self) -> None:
        super().__init__()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        adapter = _Adapter(self)
        for prefix in ("http://", "https://"):
            self.mount(prefix, adapter)

    def watch(self, sock: socket.socket) -> None:
        """Register an open socket, so that `stop` shuts it down.

        Raise `LimitError` if the session has already been stopped.
        """
        with self._lock:
            self._sockets.add(sock)
        if self._stopped.is_set():
            sock.close()
            raise LimitError("stopped")

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return None, so that requests does not follow redirects.

        requests would read the whole body of a redirect, and might send credentials to another
        server.
        """
        del resp

    def stop(self) -> None:
        """End the requests of all other threads. Later requests fail."""
        self._stopped.set()
        with self._lock:
            sockets = list(self._sockets)
        for sock in sockets:
            _shut_down(sock)

    def pause(self, seconds: float) -> None:
        """Wait for `seconds`. Raise `LimitError` as soon as the session is stopped."""
        if self._stopped.wait(seconds):
            raise LimitError("stopped")
