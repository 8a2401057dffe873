"""A download server on raw sockets that misbehaves in the ways that networks and proxies do.

`FAULTS` maps a name to what a connection gets; a test may set a function of its own instead. A
fault that never ends by itself ends with the server, or as soon as the client hangs up.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

_DRIP_SECONDS = 0.02
_RANGE = re.compile(rb"^range: *bytes=([0-9]+)-", re.IGNORECASE | re.MULTILINE)


class Exchange:
    """One connection: the request, and what to answer with."""

    def __init__(self, sock: socket.socket, head: bytes, content: bytes, server: FaultyServer):
        self.sock, self.head, self.content, self._server = sock, head, content, server
        asked = _RANGE.search(head)
        self.start = int(asked[1]) if asked else 0

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self, status: str = "200 OK", body: bytes = b"", **headers: str) -> None:
        lines = "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in headers.items())
        self.send(f"HTTP/1.1 {status}\r\n{lines}Connection: close\r\n\r\n".encode() + body)

    def right(self) -> None:
        """Answer as a good server does, with ranges."""
        left = self.content[self.start :]
        self._answer_with(left, left)

    def cut(self) -> None:
        """Announce everything that is left, and send half of it."""
        left = self.content[self.start :]
        self._answer_with(left[: len(left) // 2], left)

    def _answer_with(self, body: bytes, announced: bytes) -> None:
        if not self.start:
            self.answer(body=body, Content_Length=str(len(announced)))
            return
        size = len(self.content)
        self.answer(
            "206 Partial Content",
            body,
            Content_Length=str(len(announced)),
            Content_Range=f"bytes {self.start}-{size - 1}/{size}",
        )

    def stall(self) -> None:
        """Send nothing more."""
        self.sock.settimeout(0.01)
        while not self._server.closing.is_set():
            with contextlib.suppress(TimeoutError):
                if not self.sock.recv(1):  # the client has hung up
                    return

    def repeat(self, data: bytes, pause: float = 0.0) -> None:
        """Send the same without an end."""
        block = data if pause else data * max(1, 65536 // len(data))
        while not self._server.closing.is_set():
            self.send(block)
            if pause:
                time.sleep(pause)


def _in_head(exchange: Exchange) -> None:
    exchange.send(b"HTTP/1.1 200 OK\r\nContent-Le")
    exchange.stall()


def _in_body(exchange: Exchange) -> None:
    exchange.cut()
    exchange.stall()


def _drip_head(exchange: Exchange) -> None:
    exchange.send(b"HTTP/1.1 200 OK\r\nX-Long: ")
    exchange.repeat(b"x", _DRIP_SECONDS)


def _drip_body(exchange: Exchange) -> None:
    exchange.answer(Content_Length=str(len(exchange.content)))
    for byte in exchange.content:
        exchange.send(bytes([byte]))
        time.sleep(_DRIP_SECONDS)


def _endless(before: bytes, repeated: bytes) -> Callable[[Exchange], None]:
    def send(exchange: Exchange) -> None:
        exchange.send(before)
        exchange.repeat(repeated)

    return send


def _drip_chunks(exchange: Exchange) -> None:
    exchange.answer(Transfer_Encoding="chunked")
    exchange.repeat(b"1\r\nx\r\n", _DRIP_SECONDS)


_BOMB = gzip.compress(bytes(1 << 21))


def _bomb(exchange: Exchange) -> None:
    exchange.answer(body=_BOMB, Content_Encoding="gzip", Content_Length=str(len(_BOMB)))


def _wrong_range(exchange: Exchange) -> None:
    if not exchange.start:
        exchange.cut()
        return
    body = exchange.content[: -exchange.start]
    stated = f"bytes 0-{len(body) - 1}/{len(exchange.content)}"
    exchange.answer(
        "206 Partial Content", body, Content_Length=str(len(body)), Content_Range=stated
    )


def _other_after_resume(exchange: Exchange) -> None:
    if not exchange.start:
        exchange.cut()
        return
    exchange.content = bytes(b ^ 255 for b in exchange.content)
    exchange.right()


def _no_ranges(exchange: Exchange) -> None:
    exchange.start = 0
    exchange.cut()


def _changed(exchange: Exchange) -> None:
    exchange.content = exchange.content[::-1]
    exchange.start = 0
    exchange.right()


def _garbled(exchange: Exchange) -> None:
    number = next(exchange._server.numbers) % 250 + 1
    exchange.content = bytes(b ^ number for b in exchange.content)
    exchange.start = 0
    exchange.right()


_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
FAULTS: dict[str, Callable[[Exchange], None]] = {
    "silent": Exchange.stall,
    "silent in the head": _in_head,
    "silent in the body": _in_body,
    "drips in the head": _drip_head,
    "drips in the body": _drip_body,
    "drips chunks": _drip_chunks,
    "endless body": _endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
    "endless headers": _endless(b"HTTP/1.1 200 OK\r\n", b"X-More: x\r\n"),
    "endless header": _endless(b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
    "endless 100 Continue": _endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "endless chunk size": _endless(_CHUNKED, b"0"),
    "endless trailers": _endless(_CHUNKED + b"0\r\n", b"X-More: x\r\n"),
    "a gzip bomb": _bomb,
    "damaged gzip": lambda e: e.answer(body=_BOMB[:20] + b"?" * 99, Content_Encoding="gzip"),
    "unknown compression": lambda e: e.answer(body=b"?", Content_Encoding="br"),
    "announces less": lambda e: e.answer(body=e.content, Content_Length="100"),
    "announces more": lambda e: e.answer(body=e.content, Content_Length=str(10**12)),
    "announces nonsense": lambda e: e.answer(body=e.content[:9], Content_Length="²"),
    "closes at once": lambda e: None,
    "closes early": Exchange.cut,
    "another range": _wrong_range,
    "a range not requested": lambda e: e.answer(
        "206 Partial Content", e.content[9:], Content_Range=f"bytes 9-{len(e.content) - 1}/*"
    ),
    "no ranges, closes early": _no_ranges,
    "other bytes after a resume": _other_after_resume,
    "a redirect to itself": lambda e: e.answer("302 Found", Location="/again"),
    "a redirect with an endless body": _endless(
        b"HTTP/1.1 302 Found\r\nLocation: /again\r\n\r\n", b"x"
    ),
    "a redirect to a file": lambda e: e.answer("302 Found", Location="file:///etc/passwd"),
    "a redirect to no address": lambda e: e.answer("302 Found", Location="http://[::1/d"),
    "a login page": lambda e: e.answer(
        body=b"<html>", Content_Type="text/html; charset=utf-8", Content_Length="6"
    ),
    "other bytes": _changed,
    "other bytes each time": _garbled,
    "an empty file": lambda e: e.answer(Content_Length="0"),
    "unavailable": lambda e: e.answer("503 Service Unavailable", Content_Length="0"),
    "busy until tomorrow": lambda e: e.answer(
        "429 Too Many Requests", Retry_After="86400", Content_Length="0"
    ),
    "broken chunks": lambda e: e.send(_CHUNKED + b"zz\r\nx\r\n"),
    "no status": lambda e: e.send(b"\x1b[2Jhello\r\n\r\n"),
    "TLS": lambda e: e.send(b"\x15\x03\x03\x00\x02\x02\x28"),
}


class FaultyServer:
    """Serves `content` with the fault that is set; the right way without one."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.fault: str | Callable[[Exchange], None] = ""
        self.script: list[str | Callable[[Exchange], None]] = []
        """Faults of the next answers, one each; after them it is `fault` again."""
        self.requests: list[bytes] = []
        self.closing = threading.Event()
        self.numbers: Iterator[int] = itertools.count()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=50)
        self.port: int = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ranges(self) -> list[str]:
        """The range of each request, empty where the whole file was requested."""
        asked = (re.search(rb"\r\nRange: (.*)\r\n", head) for head in self.requests)
        return [found[1].decode() if found else "" for found in asked]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        # A connection wakes the thread that accepts.
        socket.create_connection(("127.0.0.1", self.port)).close()
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def _accept(self) -> None:
        while not self.closing.is_set():
            sock = self._listening.accept()[0]
            thread = threading.Thread(target=self._serve, args=(sock,))
            thread.start()
            self._threads.append(thread)

    def _serve(self, sock: socket.socket) -> None:
        sock.settimeout(5)
        with sock, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                data = sock.recv(65536)
                if not data:
                    return
                head += data
            self.requests.append(head)
            exchange = Exchange(sock, head, self.content, self)
            fault = self.script.pop(0) if self.script else self.fault
            answer = FAULTS[fault] if isinstance(fault, str) and fault else fault
            (answer or Exchange.right)(exchange)
            # Otherwise unread data of the client would reset the connection.
            sock.shutdown(socket.SHUT_WR)
