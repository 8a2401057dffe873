"""Who we are for a registry, where requests go, and what messages say."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import requests

from envbuilder.containers.oci.layout import Layout
from envbuilder.containers.registry import connection
from envbuilder.containers.registry.connection import (
    Challenge,
    Credential,
    DeniedError,
    Login,
    parse_challenges,
    parse_token,
    stored_credential,
)
from envbuilder.core import process
from envbuilder.core.errors import BuildError, InvalidError, ToolError
from envbuilder.core.settings import Settings
from tests.support import image_layouts as images
from tests.support.programs import completed
from tests.support.registry_fixture import FakeRegistry
from tests.support.registry_requests import (
    BIG,
    log_in,
    pull,
    push,
)
from tests.support.scripted_session import Scripted, answer


@pytest.mark.parametrize("demands", ["basic", "bearer"])
def test_logging_in(
    server: FakeRegistry, source: Layout, found: Settings, tmp_path: Path, demands: str
) -> None:
    server.demands = demands
    log_in(tmp_path, server.host)
    push(server, source, images.image(source, BIG), found)
    pull(server, "t", tmp_path / "b")


@pytest.mark.parametrize("demands", ["basic", "bearer"])
@pytest.mark.parametrize("password", [None, "very-wrong-password"])
def test_a_login_that_is_missing_or_wrong(
    server: FakeRegistry, tmp_path: Path, demands: str, password: str | None
) -> None:
    server.demands = demands
    if password:
        log_in(tmp_path, server.host, password=password)
    with pytest.raises(BuildError) as caught:
        pull(server, "t", tmp_path / "b")
    said = caught.value.message + caught.value.hint
    assert f"docker login {server.host}" in said
    assert "very-" not in said


LOCAL = "127.0.0.1:5000"
FAR = "far.example"
LAB = "lab.example:5000"


@pytest.mark.parametrize(
    ("host", "realm", "problem"),
    [
        (FAR, "https://auth.example/token", "broke off"),
        (FAR, "http://127.0.0.1/token", "does not use https"),
        (LAB, "http://lab.example:8080/token", "broke off"),
        (LAB, "http://other.example/token", "does not use https"),
        (LOCAL, "http://far.example/token", "does not use https"),
        (LOCAL, "http://localhost:5001/token", "broke off"),
        (LOCAL, "http://user:pw@127.0.0.1:1/token", "does not use https"),
        (LOCAL, "https://user:pw@auth.example/token", "does not use https"),
        (LOCAL, "https:///token", "does not use https"),
        (LOCAL, "https://[bad/token", "the address of its token server is invalid"),
        (LOCAL, "nonsense", "does not use https"),
    ],
)
def test_token_servers_that_may_see_a_password(
    monkeypatch: pytest.MonkeyPatch, host: str, realm: str, problem: str
) -> None:
    logged_in(monkeypatch, SOMEBODY)
    asked = Asked()
    with pytest.raises(DeniedError, match=problem):
        asked.login(host, plain=host == LAB).answer(
            f'Bearer realm="{realm}",service="s",scope="repository:a:pull"'
        )
    urls = {url for _, url in asked.requests}
    may = problem == "broke off"
    assert urls == ({f"{realm}?service=s&scope=repository%3Aa%3Apull"} if may else set())


class Asked(Scripted):
    """Requests to a token server, all answered alike, and the pauses between them."""

    def __init__(self, status: int = 0, body: bytes = b"") -> None:
        broken = requests.ConnectionError("broke off")
        super().__init__(answer(status, body) if status else broken)
        self.pauses: list[float] = []

    def login(self, host: str = "far.example", *, plain: bool = False) -> Login:
        session: Any = self
        return Login(host, session, self.pauses.append, plain_http=plain)


def logged_in(monkeypatch: pytest.MonkeyPatch, credential: Credential | None) -> None:
    monkeypatch.setattr(connection, "stored_credential", lambda host, **_: credential)


REALM = "https://auth.example/token"
BEARER = f'Bearer realm="{REALM}"'
PLAIN = {"Accept-Encoding": "identity"}
SOMEBODY = Credential(user="me", secret="pw")


@pytest.mark.parametrize(
    ("answered", "pauses", "problem"),
    [
        ((), [1.0, 2.0, 4.0], "broke off"),
        ((500, b""), [1.0, 2.0, 4.0], "no token for anonymous users (HTTP 500)"),
        ((499, b""), [], "no token for anonymous users (HTTP 499)"),
        ((200, b"{}"), [], "no token for anonymous users (HTTP 200)"),
        (
            (200, b'{"token": "' + b"a" * (1 << 18) + b'"}'),
            [],
            "no token for anonymous users (HTTP 200)",
        ),
    ],
)
def test_a_token_server_is_asked_again_only_where_that_may_help(
    monkeypatch: pytest.MonkeyPatch,
    answered: tuple[Any, ...],
    pauses: list[float],
    problem: str,
) -> None:
    logged_in(monkeypatch, None)
    asked = Asked(*answered)
    with pytest.raises(DeniedError) as caught:
        asked.login().answer(BEARER)
    assert str(caught.value) == f"its token server auth.example: {problem}"
    assert asked.pauses == pauses
    assert len(asked.requests) == len(pauses) + 1


@pytest.mark.parametrize(
    ("challenge", "url"),
    [
        (
            f'{BEARER},service="s",scope="repository:a:pull"',
            "?service=s&scope=repository%3Aa%3Apull",
        ),
        (f'{BEARER},scope="a b"', "?scope=a&scope=b"),
        (f'{BEARER},service="s"', "?service=s"),
        (f'Bearer realm="{REALM}?x=1",service="s"', "?x=1&service=s"),
        (f'Basic realm="r", {BEARER},service="s"', "?service=s"),
    ],
)
def test_what_a_token_server_is_asked(
    monkeypatch: pytest.MonkeyPatch, challenge: str, url: str
) -> None:
    logged_in(monkeypatch, SOMEBODY)
    asked = Asked(200, b'{"token": "abc"}')
    login = asked.login()
    assert login.answer(challenge) == "Bearer abc"
    assert asked.requests == [("GET", REALM + url)]
    assert asked.options[0]["headers"] == {**PLAIN, "Authorization": "Basic bWU6cHc="}
    assert (asked.options[0]["data"], asked.options[0]["allow_redirects"]) == (None, False)
    assert login.secrets == {"pw", "bWU6cHc=", "abc"}


@pytest.mark.parametrize(
    ("parameters", "service", "scope"),
    [(',service="s",scope="a b"', "s", "a b"), ("", "", "")],
)
def test_an_identity_token_goes_into_a_form_and_not_into_a_url(
    monkeypatch: pytest.MonkeyPatch, parameters: str, service: str, scope: str
) -> None:
    logged_in(monkeypatch, Credential(user="", secret="identity", is_token=True))
    asked = Asked(200, b'{"token": "abc"}')
    asked.login().answer(f"{BEARER}{parameters}")
    assert asked.requests == [("POST", REALM)]
    (options,) = asked.options
    assert options["headers"] == {**PLAIN, "Content-Type": "application/x-www-form-urlencoded"}
    form = options["data"].decode()
    assert parse_qs(form, keep_blank_values=True, strict_parsing=True) == {
        "grant_type": ["refresh_token"], "client_id": ["envbuilder"],
        "refresh_token": ["identity"], "service": [service], "scope": [scope],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("credential", "challenge", "why"),
    [
        (None, 'Basic realm="r"', "not logged in"),
        (Credential(user="", secret="t", is_token=True), 'Basic realm="r"', "not logged in"),
        (SOMEBODY, "Negotiate", "the registry requires an unsupported authentication method"),
        (SOMEBODY, "", "the registry requires an unsupported authentication method"),
    ],
)
def test_a_challenge_that_cannot_be_answered(
    monkeypatch: pytest.MonkeyPatch, credential: Credential | None, challenge: str, why: str
) -> None:
    logged_in(monkeypatch, credential)
    asked = Asked()
    with pytest.raises(DeniedError, match=f"^{why}$"):
        asked.login().answer(challenge)
    assert asked.requests == []


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (
            f'{BEARER},service="s",scope="repository:a/b:pull,push"',
            [("bearer", {"realm": REALM, "service": "s", "scope": "repository:a/b:pull,push"})],
        ),
        ('Basic realm="a b, c"', [("basic", {"realm": "a b, c"})]),
        (
            'Bearer realm="x", Basic realm="y"',
            [("bearer", {"realm": "x"}), ("basic", {"realm": "y"})],
        ),
        (r'Basic realm="say \"so\""', [("basic", {"realm": 'say "so"'})]),
        ('Bearer realm="first",realm="second"', [("bearer", {"realm": "first"})]),
        (
            'Basic realm="y", "stray", Bearer realm="x"',
            [("basic", {"realm": "y"}), ("bearer", {"realm": "x"})],
        ),
        ('realm="of nothing"', []),
        ('Basic realm="unfinished', [("basic", {"realm": '"unfinished'})]),
    ],
)
def test_challenges(header: str, expected: list[tuple[str, dict[str, str]]]) -> None:
    assert parse_challenges(header) == tuple(Challenge(s, p) for s, p in expected)


@pytest.mark.parametrize(
    ("body", "token"),
    [
        (b'{"token": "abc"}', "abc"),
        (b'{"access_token": "abc"}', "abc"),
        (b'{"token": 5}', ""),
        (b'{"token": "with\\r\\nHeader: injected"}', ""),
        (json.dumps({"token": "a" * 65537}).encode(), ""),
        (b"\xff", ""),
        (b"[" * 100_000, ""),
    ],
)
def test_tokens(body: bytes, token: str) -> None:
    assert parse_token(body) == token


SECRET = "a:secret:with:colons"
AUTH = base64.b64encode(f"me:{SECRET}".encode()).decode()
ME = Credential(user="me", secret=SECRET)


def docker(folder: Path, content: Any) -> dict[str, str]:
    """An environment with this as docker's configuration."""
    folder.mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "config.json").write_text(text)
    return {"DOCKER_CONFIG": str(folder), "HOME": str(folder)}


def credential_of(environ: dict[str, str]) -> Credential | None:
    """What is stored for x.example."""
    return stored_credential("x.example", environ)


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A credential helper: [answer, exit code]; what it was asked is appended."""
    state: list[Any] = ["", 0]

    def run(argv: list[str], **options: Any) -> process.Completed:
        state.append((argv, options["stdin"]))
        return completed(state[1], state[0])

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(process, "which", lambda name: f"/bin/{name}")
    return state


def login(name: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{name}:{SECRET}".encode()).decode()}


NAMESPACES = {k: login(k) for k in ("quay.io", "quay.io/org", "quay.io/org/image")}
STORE = {"credsStore": "all"}


@pytest.mark.parametrize(
    ("content", "image", "user"),
    [
        ({"auths": {"ghcr.io": login("me")}}, "ghcr.io", "me"),
        ({"auths": {"https://ghcr.io/v1/": login("me")}}, "ghcr.io", "me"),
        ({"auths": {"127.0.0.1:5000": login("me")}}, "127.0.0.1:5000", "me"),
        ({"auths": {"https://index.docker.io/v1/": login("me")}}, "docker.io", "me"),
        # One host's password is not another's.
        ({"auths": {"ghcr.io": login("me"), "x.example": {}}}, "x.example", None),
        ({"auths": {"ghcr.io": login("me")}}, "ghcr.io.evil.example", None),
        ({"auths": {"ghcr.io": login("me")}}, "ghcr.io:444", None),
        # The login of the longest namespace comes first, before a helper's.
        ({"auths": NAMESPACES, **STORE}, "quay.io/org/image/part", "quay.io/org/image"),
        ({"auths": NAMESPACES, **STORE}, "quay.io/org/other", "quay.io/org"),
        ({"auths": NAMESPACES, **STORE}, "quay.io/organisation/image", "quay.io"),
        ({"auths": NAMESPACES, **STORE}, "quay.io", "quay.io"),
        ({"auths": {"x.example": login("me")}, **STORE}, "x.example", "me"),
        # Docker's own nulls are no fault.
        ({"auths": {"x.example": {"auth": None}}, "credHelpers": None}, "x.example", None),
        ({"auths": None, "credsStore": None, "x": [1]}, "x.example", None),
        ("", "x.example", None),
    ],
)
def test_stored_logins(
    content: Any, image: str, user: str | None, tmp_path: Path, helper: list[Any]
) -> None:
    helper[:2] = ["credentials not found in native keychain\n", 1]
    host, _, repository = image.partition("/")
    found = stored_credential(host, docker(tmp_path, content), repository)
    assert found == (None if user is None else Credential(user=user, secret=SECRET))


def test_an_identity_token_goes_first(tmp_path: Path, helper: list[Any]) -> None:
    auths = {"x.example": {"auth": AUTH, "identitytoken": "tok"}}
    found = credential_of(docker(tmp_path, {"auths": auths}))
    assert found == Credential(user="me", secret="tok", is_token=True)
    helper[0] = json.dumps({"Username": "<token>", "Secret": "tok"})
    found = credential_of(docker(tmp_path, STORE))
    assert found.is_token


def test_podman_s_file_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "containers").mkdir()
    path = tmp_path / "containers/auth.json"
    path.write_text(json.dumps({"auths": {"x.example": {"auth": AUTH}}}))
    home = {"HOME": str(tmp_path / "empty")}
    assert credential_of({**home, "XDG_RUNTIME_DIR": str(tmp_path)}) == ME
    assert credential_of({**home, "XDG_CONFIG_HOME": str(tmp_path)}) == ME
    assert credential_of({**home, "REGISTRY_AUTH_FILE": str(path)}) == ME
    assert credential_of(home) is None


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"auths": []}',
        '{"auths": {"x.example": {"auth": "!!!"}}}',
        '{"auths": {"x.example": {"auth": "c2VjcmV0"}}}',
        '{"auths": {"x.example": {"auth": "/w=="}}}',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_named_without_its_content(tmp_path: Path, content: str) -> None:
    with pytest.raises(InvalidError) as caught:
        credential_of(docker(tmp_path, content))
    assert "config.json" in caught.value.message
    assert "c2VjcmV0" not in caught.value.message
    assert "secret" not in caught.value.message


def test_a_helper_is_asked_for_its_registry(tmp_path: Path, helper: list[Any]) -> None:
    helper[0] = json.dumps({"ServerURL": "x", "Username": "me", "Secret": SECRET})
    environ = docker(
        tmp_path,
        {"credHelpers": {"x.example": "one"}, "credsStore": "all", "auths": {"x.example": {}}},
    )
    assert credential_of(environ) == ME
    assert stored_credential("docker.io", environ) == ME
    assert helper[2:] == [
        (["docker-credential-one", "get"], "x.example\n"),
        (["docker-credential-all", "get"], "https://index.docker.io/v1/\n"),
    ]


@pytest.mark.parametrize(
    ("answer", "code"), [("locked: very-secret", 1), ("very-secret", 0), ('{"Secret": 1}', 0)]
)
def test_a_helper_that_fails_is_named_and_not_quoted(
    tmp_path: Path, helper: list[Any], answer: str, code: int
) -> None:
    helper[:2] = [answer, code]
    with pytest.raises(ToolError, match=r"docker-credential-all returned no credentials") as caught:
        credential_of(docker(tmp_path, {"credsStore": "all"}))
    assert "very-secret" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("name", ["../evil", "a b", "-x", "x;y", "x/y"])
def test_a_helper_s_name_is_a_name(tmp_path: Path, helper: list[Any], name: str) -> None:
    with pytest.raises(InvalidError, match="is not the name of a credential helper"):
        credential_of(docker(tmp_path, {"credsStore": name}))
    assert helper[2:] == []


def test_a_credential_prints_nothing() -> None:
    assert SECRET not in repr(ME)
    assert SECRET not in str([ME])
    assert SECRET not in f"{ME}"
