"""No wait of a session is endless, and another thread can end them all."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter

from envbuilder.core.errors import LimitError
from envbuilder.core.http import reason
from envbuilder.core.http_transport import Session
from tests.support.faulty_server import FaultyServer


@pytest.mark.parametrize(
    ("proxy", "limited"),
    [("http://p:1", True), ("HTTPS://p:1", True), ("socks5://p:1", False), ("SOCKS5H://p", False)],
)
def test_pools_of_socks_proxies_stay_what_they_are(
    proxy: str, limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have no SOCKS in them: they would connect to the server itself."""
    manager = SimpleNamespace(pool_classes_by_scheme="its own")
    monkeypatch.setattr(HTTPAdapter, "proxy_manager_for", lambda self, proxy: manager)
    with Session() as session:
        adapter = session.get_adapter("https://h/")
        adapter.proxy_manager_for(proxy)
    assert (manager.pool_classes_by_scheme != "its own") == limited


@pytest.mark.parametrize(
    ("given", "used"),
    [
        (None, (3.0, 4.0)),
        ((1.0, None), (1.0, 4.0)),
        ((None, 2.0), (3.0, 2.0)),
        (1.0, (1.0, 1.0)),
    ],
)
def test_there_is_always_a_time_out(
    given: Any, used: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def send(self: HTTPAdapter, request: Any, **options: Any) -> requests.Response:
        seen.append(options["timeout"])
        made = requests.Response()
        made.status_code = 200
        return made

    monkeypatch.setattr(HTTPAdapter, "send", send)
    monkeypatch.setattr(Session, "timeout", (3.0, 4.0))
    with Session() as session:
        session.get("http://h/", timeout=given, stream=True)
    assert seen == [used]


def test_a_stopped_session_wakes_who_waits_and_starts_nothing_new() -> None:
    problems: list[str] = []

    def wait(session: Session, url: str) -> None:
        try:
            session.get(url, timeout=(60, 60))
        except requests.RequestException as error:
            problems.append(reason(error))

    with FaultyServer(b"") as server, Session() as session:
        session.trust_env = False
        server.fault = "silent"
        threads = [threading.Thread(target=wait, args=(session, server.url)) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(server.requests) < 3:
            time.sleep(0.01)
        started = time.monotonic()
        session.stop()
        for thread in threads:
            thread.join(30)
        assert time.monotonic() - started < 20
        assert len(problems) == 3
        with pytest.raises(requests.ConnectionError) as caught:
            session.get(server.url)
        assert reason(caught.value) == "stopped"
        with pytest.raises(LimitError, match="stopped"):
            session.pause(60)


def test_what_a_proxy_sends_is_limited_too() -> None:
    with FaultyServer(b"") as proxy, Session() as session:
        session.head_seconds = 0.2
        session.trust_env = False
        session.proxies = {"http": proxy.url}
        proxy.fault = "drips in the head"
        with pytest.raises(requests.ConnectionError) as caught:
            session.get("http://elsewhere.example/")
        assert proxy.requests[0].startswith(b"GET http://elsewhere.example/ ")
    assert "the head of the response was not complete after 0.2 s" in str(caught.value)


def test_a_slow_upload_is_not_cut_off_while_it_moves() -> None:
    """The time-out is between two writes; for a whole piece of 8 MiB it would be a least rate."""
    size = 1 << 22
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                received = 0
                end = time.monotonic() + 0.5
                while received < size:
                    data = sock.recv(1 << 17)
                    if not data:
                        return
                    received += len(data)
                    if time.monotonic() < end:
                        time.sleep(0.03)
                sock.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")

        serving = threading.Thread(target=serve)
        serving.start()
        with Session() as session:
            session.trust_env = False
            url = f"http://127.0.0.1:{server.getsockname()[1]}/"
            answer = session.put(url, data=bytes(size), timeout=(0.3, 5))
        serving.join()
    assert answer.status_code == 201


def test_tls_is_limited_and_stopped_in_the_same_way(repository: Path) -> None:
    """The key of tests/data/tls is for this test only."""
    certificate, key = (repository / "tests/data/tls" / n for n in ("cert.pem", "key.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"", b""):
                with context.wrap_socket(server.accept()[0], server_side=True) as sock:
                    received.append(sock.recv(65536))
                    sock.sendall(answer)
                    if not answer:
                        sock.recv(1)  # until the client hangs up

        serving = threading.Thread(target=serve)
        serving.start()
        with Session() as session:
            session.trust_env, session.verify = False, str(certificate)
            url = f"https://127.0.0.1:{server.getsockname()[1]}/"
            assert session.get(url, headers={"Connection": "close"}).content == b"ok"
            with pytest.raises(requests.RequestException) as caught:
                session.get(url, timeout=(5, 0.1))
            assert reason(caught.value) == "timed out after 0.1 s"
            threading.Timer(0.1, session.stop).start()
            with pytest.raises(requests.ConnectionError):
                session.get(url, timeout=(60, 60))
        serving.join(30)
    assert len(received) == 3
