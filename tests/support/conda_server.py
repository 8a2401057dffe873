"""A conda channel over http on loopback: counted, slow, closed to strangers, or gone halfway."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.http_server import Files, serving

USER = "somebody"
PASSWORD = "very-secret-password"
_ARCHIVES = (".conda", ".tar.bz2")
_CHUNK = 4096


class Served:
    """A channel that is being served, and the switches of its server."""

    def __init__(self, token: str, *, password: bool) -> None:
        self.requests: list[str] = []
        """Paths asked for below the channel, in order; also those that were refused."""
        self.vanish_after: int | None = None
        """Bytes of packages left before the server cuts the connection and accepts no other; a
        block of 4096 that would pass it is not sent."""
        self.host = ""
        self._token = token
        self._password = password

    @property
    def url(self) -> str:
        """The channel without any secret."""
        return f"http://{self.host}/channel"

    @property
    def secret_url(self) -> str:
        """The channel with the token or the password that it wants."""
        login = f"{USER}:{PASSWORD}@" if self._password else ""
        return f"http://{login}{self.host}{self._root}channel"

    @property
    def packages(self) -> list[str]:
        """The requests for archives."""
        return [r for r in self.requests if r.endswith(_ARCHIVES)]

    @property
    def gone(self) -> bool:
        """Whether it vanished."""
        return self.vanish_after is not None and self.vanish_after <= 0

    @property
    def _root(self) -> str:
        return f"/t/{self._token}/" if self._token else "/"

    def below(self, path: str) -> str | None:
        """A request's path in the channel; None where it lacks the token."""
        start = f"{self._root}channel/"
        return path.removeprefix(start) if path.startswith(start) else None

    def trusts(self, authorization: str) -> bool:
        """Whether a request says the password, where one is wanted."""
        told = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        return not self._password or authorization == f"Basic {told}"

    def may_send(self, size: int) -> bool:
        """Whether the server does not vanish before these bytes."""
        if self.vanish_after is not None:
            self.vanish_after -= size
        return not self.gone


class _Handler(Files):
    server: _Server

    def __init__(self, request: Any, address: Any, server: _Server) -> None:
        super().__init__(request, address, server, directory=str(server.channel))

    def send_head(self) -> Any:
        served = self.server.served
        inside = served.below(self.path)
        served.requests.append(self.path if inside is None else inside)
        if not served.trusts(self.headers.get("Authorization", "")):
            self.send_response(HTTPStatus.UNAUTHORIZED)
            self.send_header("WWW-Authenticate", 'Basic realm="a channel"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        if inside is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        self.path = f"/{inside}"
        return super().send_head()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        package = self.path.endswith(_ARCHIVES)
        with contextlib.suppress(ConnectionError):
            while data := source.read(_CHUNK):
                if package and not self.server.served.may_send(len(data)):
                    return
                outputfile.write(data)


class _Server(ThreadingHTTPServer):
    def __init__(self, served: Served, channel: Path) -> None:
        self.served = served
        self.channel = channel
        super().__init__(("127.0.0.1", 0), _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return not self.served.gone


@contextlib.contextmanager
def serve(channel: Path, *, token: str = "", password: bool = False) -> Iterator[Served]:
    """Serve a channel; with `token` below /t/TOKEN/ alone, with `password` to USER alone."""
    served = Served(token, password=password)
    http = _Server(served, channel)
    served.host = f"127.0.0.1:{http.server_port}"
    with serving(http):
        yield served
