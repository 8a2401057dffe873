"""Registry authentication: stored logins, basic auth and bearer tokens.

`docker login` and `podman login` store credentials in files, or in programs that those name; they
are read, never written. A secret is looked up when a registry demands it, kept in memory, and never
part of any output.
"""

from __future__ import annotations

import base64
import binascii
import functools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit
from urllib.request import parse_http_list

import msgspec
from msgspec import Struct

from envbuilder.containers.oci.reference import DEFAULT_HOST, is_loopback
from envbuilder.core import decoding, files, http, process
from envbuilder.core.errors import InvalidError, ToolError, TooLongError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import requests

_PIECE = re.compile(
    r"(?:(?P<scheme>[A-Za-z0-9!#$%&'*+.^_`|~-]+)(?:\s+|\Z))?"
    r"(?:(?P<name>[A-Za-z0-9!#$%&'*+.^_`|~-]+)\s*=\s*(?P<value>.*))?",
    re.DOTALL,
)
_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")
_CONFIG_LIMIT = 1 << 20
_HELPER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HELPER_SECONDS = 60.0
_DOCKER_HUB = "https://index.docker.io/v1/"
_TOKEN_USER = "<token>"  # noqa: S105 (the user name that helpers give an identity token)
_ANSWER_LIMIT = 1 << 18
_FORM = "application/x-www-form-urlencoded"


class DeniedError(Exception):
    """Access denied; `str` says why, without any secret."""


class Login:
    """Credentials for one repository, looked up when they are first needed."""

    def __init__(
        self,
        host: str,
        session: requests.Session,
        pause: Callable[[float], None],
        *,
        plain_http: bool,
        repository: str = "",
    ) -> None:
        self._host = host
        self._session = session
        self._pause = pause
        self._plain = plain_http
        self._repository = repository
        self.secrets: set[str] = set()
        """Strings that must not appear in any message."""

    def answer(self, header: str) -> str:
        """Return the `Authorization` for a `WWW-Authenticate`; raise `DeniedError` without one."""
        offered = parse_challenges(header)
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
        credential = stored_credential(self._host, repository=self._repository)
        if credential is not None:
            self.secrets |= {credential.secret, _basic(credential).removeprefix("Basic ")}
        return credential

    def _token(self, challenge: Challenge, credential: Credential | None) -> str:
        """Return a token for the stored credential, or an anonymous one without a credential."""
        import requests

        realm = challenge.parameters.get("realm", "")
        server = self._checked(realm)
        method, url, headers, data = _request(realm, challenge.parameters, credential)
        attempts = http.Attempts(self._pause)
        problem = ""
        for _ in attempts:
            try:
                response = http.request(
                    self._session,
                    method,
                    url,
                    headers,
                    data=data,
                    auth=http.without_netrc,
                    redirect=None,
                )
                body = http.read(response, _ANSWER_LIMIT)
            except TooLongError:
                body = b""
            except requests.RequestException as error:
                problem = http.reason(error)
                continue
            status = response.status_code
            token = parse_token(body) if status == requests.codes.ok else ""
            if token:
                return token
            who = "anybody" if credential is None else "this login"
            problem = f"no token for {who} (HTTP {status})"
            if not attempts.may_repeat(response):
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
    service = parameters.get("service", "")
    scope = parameters.get("scope", "")
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


class Challenge(Struct, frozen=True):
    """An authentication method that a registry offers: lower-case scheme, and parameters."""

    scheme: str
    parameters: dict[str, str]


def parse_challenges(header: str) -> tuple[Challenge, ...]:
    """Return the challenges of a `WWW-Authenticate` header; malformed parts are skipped."""
    challenges: list[Challenge] = []
    for piece in parse_http_list(header):
        match = _PIECE.fullmatch(piece.strip())
        if match is None:
            continue
        if match["scheme"]:
            challenges.append(Challenge(match["scheme"].lower(), {}))
        if match["name"] and challenges:
            value = match["value"].strip()
            if len(value) >= 2 and value[0] == value[-1] == '"':
                value = value[1:-1]
            challenges[-1].parameters.setdefault(match["name"].lower(), value)
    return tuple(challenges)


class _TokenAnswer(Struct, frozen=True):
    token: str | None = None
    access_token: str | None = None


def parse_token(body: bytes) -> str:
    """Return the token in a token server's response; empty if there is none that fits a header."""
    try:
        answer = decoding.from_json(body, _TokenAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    given = answer.token or answer.access_token or ""
    return given if _TOKEN.fullmatch(given) else ""


class Credential(Struct, frozen=True, kw_only=True):
    """A user's name and password, or an identity token instead of both."""

    user: str
    secret: str
    is_token: bool = False

    def __repr__(self) -> str:
        return "Credential(…)"


class _Entry(Struct, frozen=True):
    auth: str | None = None
    identitytoken: str | None = None
    username: str | None = None
    password: str | None = None


class _File(Struct, frozen=True, rename="camel"):
    auths: dict[str, _Entry] | None = None
    cred_helpers: dict[str, str] | None = None
    creds_store: str | None = None


class _HelperAnswer(Struct, frozen=True, rename="pascal"):
    username: str
    secret: str


def stored_credential(
    host: str, environ: Mapping[str, str] | None = None, repository: str = ""
) -> Credential | None:
    """Return the credential for a repository of a registry; None if there is no login for it.

    Of a file's logins, the one of the longest namespace that holds the repository is taken, as
    podman does. Raise `InvalidError` for a damaged file, `ToolError` for a credential helper that
    is configured but does not work.
    """
    paths = _files(os.environ if environ is None else environ)
    return next(filter(None, (_in_file(path, host, repository) for path in paths)), None)


def _files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the file in `REGISTRY_AUTH_FILE`, or else Docker's and podman's files that exist."""
    named = environ.get("REGISTRY_AUTH_FILE")
    if named:
        return (Path(named),)
    home = Path(environ.get("HOME") or Path.home())
    runtime = environ.get("XDG_RUNTIME_DIR")
    docker = Path(environ.get("DOCKER_CONFIG") or home / ".docker")
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    places = (
        docker / "config.json",
        *([Path(runtime) / "containers" / "auth.json"] if runtime else []),
        config / "containers" / "auth.json",
    )
    return tuple(p for p in places if p.is_file())


def _in_file(path: Path, host: str, repository: str) -> Credential | None:
    content = files.read_named(path, _CONFIG_LIMIT)
    try:
        read = decoding.from_json(content or b"{}", _File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The file holds secrets: messages name the problem, never the content.
        raise InvalidError(
            f"{path}: not a Docker configuration: {error}", "Log in again: docker login"
        ) from None
    helpers = read.cred_helpers or {}
    entries = read.auths or {}
    namespace = f"{host}/{repository}"
    while "/" in namespace:
        if namespace in entries:
            return _read_entry(entries[namespace], path, host)
        namespace = namespace.rpartition("/")[0]
    keys = _keys(host)
    helper = next((helpers[k] for k in keys if k in helpers), read.creds_store)
    if helper and (credential := _ask_helper(helper, keys[0], path)):
        return credential
    for key in keys:
        if key in entries:
            return _read_entry(entries[key], path, host)
    return None


def _keys(host: str) -> tuple[str, ...]:
    """Return the keys of a registry in the files, the usual one first."""
    if host == DEFAULT_HOST:
        return (_DOCKER_HUB, DEFAULT_HOST, "index.docker.io")
    secure = f"https://{host}"
    plain = f"http://{host}"
    return (host, secure, f"{secure}/", plain, f"{plain}/", f"{secure}/v1/", f"{secure}/v2/")


def _read_entry(entry: _Entry, path: Path, host: str) -> Credential | None:
    user = entry.username or ""
    secret = entry.password or ""
    if entry.auth:
        try:
            text = base64.b64decode(entry.auth, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            text = ""
        user, colon, secret = text.rstrip("\0").partition(":")
        if not colon:
            raise InvalidError(
                f"{path}: the entry for {host} is not a user name and a password",
                f"Log in again: docker login {host}",
            )
    if entry.identitytoken:
        return Credential(user=user, secret=entry.identitytoken, is_token=True)
    return Credential(user=user, secret=secret) if user else None


def _ask_helper(helper: str, server: str, path: Path) -> Credential | None:
    """Return the credential from a helper; its output is not quoted, as it may hold a secret."""
    if not _HELPER_NAME.fullmatch(helper):
        raise InvalidError(f"{path}: {helper!r} is not the name of a credential helper")
    program = f"docker-credential-{helper}"
    if process.which(program) is None:
        raise ToolError(
            f"{program}: not found; {path} names it for {server}",
            "Install it, or set DOCKER_CONFIG to a folder with another config.json.",
        )
    done = process.run([program, "get"], stdin=f"{server}\n", timeout=_HELPER_SECONDS)
    if done.returncode != 0 and "not found" in done.stdout + done.stderr:
        return None
    try:
        answer = None if done.returncode else decoding.from_json(done.stdout, _HelperAnswer)
    except msgspec.DecodeError:
        answer = None
    if answer is None:
        raise ToolError(
            f"{program}: no answer for {server} (exit {done.returncode})",
            f"Try it: echo {server} | {program} get",
        )
    if not answer.secret:
        return None
    is_token = answer.username == _TOKEN_USER
    return Credential(user=answer.username, secret=answer.secret, is_token=is_token)
