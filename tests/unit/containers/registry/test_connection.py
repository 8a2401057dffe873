"""Requests to a registry: which are repeated, where they lead, and what a failure says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import requests

from envbuilder.containers.oci import reference
from envbuilder.containers.registry import connection
from envbuilder.containers.registry.connection import BrokenOffError, Connection, Credential
from envbuilder.core.errors import BuildError
from tests.support.scripted_session import Far, answer

Make = Callable[..., "Bench"]

ROOT = "https://far.example/v2/a/"
BLOB = f"{ROOT}blobs/x"


class Bench(Far):
    def ask(self, method: str = "GET", **options: Any) -> connection.Answer:
        return self.connection.ask(method, BLOB, "a thing", **{"accept": (200,), **options})


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Make:
    """`bench(*answers)`: a connection whose requests get these answers."""
    return lambda *answers: Bench(monkeypatch, *answers)


# --- what is repeated


@pytest.mark.parametrize(
    ("status", "pauses"),
    [
        *((busy, [1.0, 2.0, 4.0]) for busy in (408, 425, 429, 500, 503, 599)),
        *((final, []) for final in (201, 400, 403, 404, 416, 418, 499)),
    ],
)
def test_a_busy_registry_is_asked_four_times_and_a_refusal_is_final(
    bench: Make, status: int, pauses: list[float]
) -> None:
    made = bench(answer(status))
    with pytest.raises(BuildError, match=f"^far.example/a: a thing: HTTP {status}$"):
        made.ask()
    assert made.session.requests == [("GET", BLOB)] * (1 + len(pauses))
    assert made.pauses == pauses


def test_what_is_not_repeated_says_why_it_broke_off(bench: Make) -> None:
    for fault, why in (
        (answer(503), "HTTP 503"),
        (requests.ConnectionError("gone"), r"far.example does not answer \(gone\)"),
    ):
        made = bench(fault)
        with pytest.raises(BrokenOffError, match=f"^{why}$"):
            made.ask(retry=False)
        assert len(made.session.requests) == 1
    with pytest.raises(BuildError, match="HTTP 403"):
        bench(answer(403)).ask(retry=False)


# --- what a failure says


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (0, "Check the host and the network"),
        (401, "Log in first (docker login far.example)"),
        (403, "Log in first (docker login far.example)"),
        (404, "Check the name or, if the image is private, log in: docker login far.example"),
        (408, "The registry has a problem. Try again later"),
        (429, "The registry limits requests. Wait, or log in: docker login far.example"),
        (499, "Trying again will not help"),
        (500, "The registry has a problem. Try again later"),
    ],
)
def test_every_failure_says_what_to_do_next(bench: Make, status: int, hint: str) -> None:
    given = (status,) if status else ()
    failed = bench(answer(200)).connection.failure("a thing", "why", *given)
    assert failed.message == "far.example/a: a thing: why"
    assert failed.hint.startswith(hint)


def errors(*pairs: tuple[str, str]) -> bytes:
    return json.dumps({"errors": [{"code": c, "message": m} for c, m in pairs]}).encode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", ""),
        (b"\xff", ""),
        (b"[" * 9000, ""),
        (b'{"errors": []}', ""),
        (errors(("DENIED", "no")), " (DENIED no)"),
        (errors(("", "no")), " (no)"),
        (errors(("A", "1"), ("B", "2"), ("C", "3"), ("D", "4")), " (A 1; B 2; C 3)"),
        (errors(("A", "two\nlines\x1b[31m")), " (A two lines [31m)"),
        (errors(("A", "x" * 9000)), f" (A {'x' * 197}…)"),
        (errors(("A", "x" * 70_000)), ""),
        (errors(("A", "the password is very-secret")), ""),
    ],
)
def test_the_registrys_own_words_are_passed_on(bench: Make, body: bytes, words: str) -> None:
    made = bench(answer(401, WWW_Authenticate="Basic"), answer(418, body, "Teapot"))
    with pytest.raises(BuildError) as caught:
        made.ask()
    assert caught.value.message == f"far.example/a: a thing: HTTP 418 Teapot{words}"


@pytest.mark.parametrize(
    ("location", "host"),
    [("https://cdn.example:444/x?secret=y", "cdn.example"), ("/elsewhere", "far.example")],
)
def test_the_host_that_does_not_answer_is_named(bench: Make, location: str, host: str) -> None:
    made = bench(*[answer(302, Location=location), requests.ConnectionError("gone")] * 4)
    with pytest.raises(BuildError) as caught:
        made.ask()
    assert caught.value.message == f"far.example/a: a thing: {host} does not answer (gone)"
    assert caught.value.hint.startswith("Check the host and the network")


# --- where requests lead


def test_only_the_registry_itself_learns_who_we_are(bench: Make) -> None:
    made = bench(
        answer(401, WWW_Authenticate="Basic"),
        answer(307, Location="https://far.example:443/moved"),
        answer(307, Location="https://far.example:444/x"),
        answer(307, Location="https://cdn.example/x"),
        answer(200),
    )
    made.ask()
    login = "Basic bWU6dmVyeS1zZWNyZXQ="
    assert made.session.authorizations() == ["", login, login, "", ""]
    made.ask()
    assert made.session.authorizations()[-1] == login, "it is not asked twice"


def test_another_hosts_demand_for_a_login_is_a_refusal(bench: Make) -> None:
    made = bench(
        answer(307, Location="https://cdn.example/x"), answer(401, WWW_Authenticate="Basic")
    )
    with pytest.raises(BuildError, match="HTTP 401") as caught:
        made.ask()
    assert "docker login far.example" in caught.value.hint
    assert made.session.authorizations() == ["", ""]


def test_a_login_that_is_refused_is_not_repeated(bench: Make) -> None:
    made = bench(answer(401, WWW_Authenticate="Basic"))
    with pytest.raises(BuildError, match="HTTP 401"):
        made.ask()
    assert len(made.session.requests) == 2
    made = bench(answer(401))
    with pytest.raises(
        BuildError, match="a thing: the registry requires an unsupported authentication method"
    ):
        made.ask()
    assert len(made.session.requests) == 1


def test_every_request_is_bounded_plain_and_without_logins_of_others(bench: Make) -> None:
    made = bench(answer(200))
    made.ask("PUT", data=b"content", headers={"Content-Type": "x/y"})
    (options,) = made.session.options
    prepared = requests.PreparedRequest()
    assert options.pop("auth")(prepared) is prepared
    assert options == {
        "headers": {
            "Accept-Encoding": "identity", "User-Agent": "envbuilder", "Content-Type": "x/y",
        },
        "data": b"content", "stream": True, "allow_redirects": False, "timeout": None,
    }  # fmt: skip


LOCAL = "127.0.0.1:5000/a"
FAR = "far.example/a"
LAB = "lab.example:5000/a"


@pytest.mark.parametrize(
    ("name", "location", "target"),
    [
        (FAR, "/x?y=z", "https://far.example/x?y=z"),
        (FAR, "x", "https://far.example/v2/a/blobs/x"),
        (FAR, "//cdn.example/x", "https://cdn.example/x"),
        (FAR, "http://far.example/x", ""),
        (FAR, "http://127.0.0.1:5000/x", ""),
        (FAR, "https://[bad/x", ""),
        (FAR, "https://far.example:port/x", ""),
        (LOCAL, "/x", "http://127.0.0.1:5000/x"),
        (LOCAL, "http://localhost:5001/x", "http://localhost:5001/x"),
        (LOCAL, "https://cdn.example/x", "https://cdn.example/x"),
        (LOCAL, "http://far.example/x", ""),
        (LAB, "http://lab.example:5000/x", "http://lab.example:5000/x"),
        (LAB, "http://lab.example/x", ""),
        (LAB, "http://127.0.0.1:5000/x", ""),
    ],
)
def test_where_a_location_may_lead(name: str, location: str, target: str) -> None:
    made = Connection(reference.parse(name), plain_http=name == LAB)
    base = made.url("blobs/y")
    if target:
        assert made.resolve("a thing", base, location) == target
    else:
        with pytest.raises(BuildError, match=f"^{name}: a thing: redirected to .*not https$"):
            made.resolve("a thing", base, location)


@pytest.mark.parametrize(("name", "direct"), [(LOCAL, True), (FAR, False)])
def test_no_proxy_is_used_for_this_machine(
    monkeypatch: pytest.MonkeyPatch, name: str, direct: bool
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:8080")
    assert Connection(reference.parse(name)).session.trust_env is not direct


def test_the_body_of_an_answer_is_read_so_that_the_connection_is_used_again(bench: Make) -> None:
    response = answer(200, b"x" * 1000)
    bench(response).ask()
    assert response.raw.tell() == 1000
    headers = answer(200, b"", Content_Length="99")
    assert bench(headers).ask("HEAD").headers["Content-Length"] == "99"


def test_the_login_is_that_of_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(host: str, repository: str) -> Credential:
        return Credential(user=host, secret=repository)

    monkeypatch.setattr(connection, "stored_credential", find)
    login = Connection(reference.parse("quay.io/org/image:1"))._login
    assert login._credential == Credential(user="quay.io", secret="org/image")
