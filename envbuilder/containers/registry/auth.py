"""Registry authentication: basic auth and bearer tokens."""

from __future__ import annotations

import base64
import functools
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode, urlsplit

from envbuilder.containers.oci.reference import is_loopback
from envbuilder.containers.registry import challenges, credentials
from envbuilder.containers.registry.responses import ATTEMPTS, BrokenOffError, limited
from envbuilder.core.http_reasons import reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import requests

    from envbuilder.containers.registry.challenges import Challenge
    from envbuilder.containers.registry.credentials import Credential

_ANSWER_LIMIT = 1 << 18
_FORM = "application/x-www-form-urlencoded"


class DeniedError(Exception):
    """Access denied; `str` says why, without any secret."""


class Send(Protocol):
    """A function that sends one request, without redirects, retries or credentials of its own."""

    def __call__(
        self, method: str, url: str, headers: Mapping[str, str], data: bytes | None
    ) -> requests.Response:
        """Send the request and return the response, its body unread."""


class Login:
    """Credentials for one repository, looked up when they are first needed."""

    def __init__(
        self,
        host: str,
        send: Send,
        pause: Callable[[float], None],
        *,
        plain_http: bool,
        repository: str = "",
    ) -> None:
        self._host, self._send, self._pause, self._plain = host, send, pause, plain_http
        self._repository = repository
        self.secrets: set[str] = set()
        """Strings that must not appear in any message."""

    def answer(self, header: str) -> str:
        """Return the `Authorization` for a `WWW-Authenticate`; raise `DeniedError` without one."""
        offered = challenges.parse(header)
        credential = self._credential
        bearer = next((c for c in offered if c.scheme == "bearer"), None)
        if bearer is not None:
            token = self._token(bearer, credential)
            self.secrets.add(token)
            return f"Bearer {token}"
        if not any(c.scheme == "basic" for c in offered):
            raise DeniedError("it requires an unsupported kind of login")
        if credential is None or credential.is_token:
            raise DeniedError("not logged in")
        return _basic(credential)

    @functools.cached_property
    def _credential(self) -> Credential | None:
        credential = credentials.find(self._host, repository=self._repository)
        if credential is not None:
            self.secrets |= {credential.secret, _basic(credential).removeprefix("Basic ")}
        return credential

    def _token(self, challenge: Challenge, credential: Credential | None) -> str:
        """Return a token for the stored credential, or an anonymous one without a credential."""
        import requests

        realm = challenge.parameters.get("realm", "")
        server = self._checked(realm)
        request = _request(realm, challenge.parameters, credential)
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._pause(2.0 ** (attempt - 1))
            try:
                response = self._send(*request)
                data = limited(response, _ANSWER_LIMIT) or b""
            except (requests.RequestException, BrokenOffError) as error:
                problem = reason(error)
                continue
            status = response.status_code
            token = challenges.token(data) if status == requests.codes.ok else ""
            if token:
                return token
            who = "anybody" if credential is None else "this login"
            problem = f"no token for {who} (HTTP {status})"
            if status < 500 and status != requests.codes.too_many_requests:
                break
        raise DeniedError(f"its token server {server}: {problem}")

    def _checked(self, realm: str) -> str:
        """Return the host of a token server; raise `DeniedError` if it must not receive a password.

        It may receive one over https, if it and the registry are both on this machine, or if plain
        http is allowed and it is on the registry's own host.
        """
        try:
            parts = urlsplit(realm)
            server = parts.hostname or ""
        except ValueError:
            raise DeniedError("the address of its token server is invalid") from None
        here = is_loopback(parts.netloc) and is_loopback(self._host)
        same = self._plain and parts.hostname == urlsplit(f"//{self._host}").hostname
        safe = parts.scheme == "https" or (parts.scheme == "http" and (here or same))
        if "@" in parts.netloc or not server or not safe:
            raise DeniedError(
                f"its token server {server or '?'} does not use https; nothing was sent"
            )
        return server


def _request(
    realm: str, parameters: Mapping[str, str], credential: Credential | None
) -> tuple[str, str, dict[str, str], bytes | None]:
    """Return method, URL, headers and body of a request for a token."""
    service, scope = parameters.get("service", ""), parameters.get("scope", "")
    if credential is not None and credential.is_token:
        form = {
            "grant_type": "refresh_token",
            "client_id": "envbuilder",
            "refresh_token": credential.secret,
            "service": service,
            "scope": scope,
        }
        return "POST", realm, {"Content-Type": _FORM}, urlencode(form).encode()
    query = [("service", service)] if service else []
    query += [("scope", s) for s in scope.split()]
    url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
    return "GET", url, {"Authorization": _basic(credential)} if credential else {}, None


def _basic(known: Credential) -> str:
    pair = base64.b64encode(f"{known.user}:{known.secret}".encode()).decode()
    return f"Basic {pair}"
