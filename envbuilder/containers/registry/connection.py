"""HTTP requests to one repository in a registry: logins, redirects, retries and clear errors.

This is a small client based on `requests`. The two existing libraries (oras 0.2, python-dxf 12)
cannot resume pulls or pushes, set no timeouts of their own, and either load whole responses into
memory or trust them.

`docker login` and `podman login` store credentials in files, or in helper programs that these files
specify. envbuilder reads the credentials but never writes them. It looks up a secret only when a
registry demands it, keeps the secret in memory, and never prints it.

The module is long because each request may need a login, and the request determines whether a login
may be sent.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import threading
from collections.abc import Callable, Collection, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urljoin, urlsplit
from urllib.request import parse_http_list

import msgspec
from msgspec import Struct

from envbuilder.containers.oci.layout import (
    INDEX,
    INDEXES,
    JSON_LIMIT,
    MANIFEST,
    MANIFESTS,
    Descriptor,
    decode,
    digest_of,
)
from envbuilder.containers.oci.reference import DEFAULT_HOST, Reference, is_loopback
from envbuilder.core import console, decoding, files, http, process
from envbuilder.core.errors import (
    BuildError,
    InvalidError,
    ToolError,
    TooLongError,
    WrongHashError,
    printable,
    public,
)

if TYPE_CHECKING:
    import requests


class BrokenOffError(Exception):
    """Error raised if a response was not received at all or only in part.

    The message gives the reason.
    """


OK = 200
CREATED = 201
ACCEPTED = 202
NOT_FOUND = 404
ACCEPT = {"Accept": ", ".join(sorted(INDEXES | MANIFESTS))}
_IS_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ANSWER_LIMIT = 1 << 16
"""Maximum number of bytes to read of a registry's error message, or of a response that is
discarded."""


class _Error(Struct, frozen=True):
    code: str = ""
    message: str = ""


class _Errors(Struct, frozen=True):
    errors: tuple[_Error, ...] = ()


class _Kind(Struct, frozen=True, rename="camel"):
    """The JSON keys that distinguish a manifest from an index."""

    media_type: str | None = None
    config: dict[str, object] | None = None
    layers: list[object] | None = None
    manifests: list[object] | None = None


class Answer(Struct, frozen=True, kw_only=True):
    """The status, headers and final URL of a response, without its body."""

    status: int
    headers: Mapping[str, str]
    url: str


class Connection:
    """A connection to one repository in a registry.

    `plain_http` allows http for a registry on another machine, which the user must configure
    explicitly. A failure raises a `BuildError` whose message identifies the repository, but
    contains no query, header or body.
    """

    def __init__(
        self,
        reference: Reference,
        *,
        plain_http: bool = False,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        self.name = reference.name
        self._local = is_loopback(reference.host)
        self.host = reference.host
        self.repository = reference.repository
        self._base = reference.root(plain_http=plain_http)
        self.session = http.open_session(direct=self._local)
        self.pause = pause or self.session.pause
        self._login = Login(
            self.host,
            self.session,
            self.pause,
            plain_http=plain_http,
            repository=self.repository,
        )
        self._authorization = ""
        self._lock = threading.Lock()

    def url(self, path: str) -> str:
        """Return the URL of a path in the repository, such as `manifests/latest`."""
        return f"{self._base}/v2/{self.repository}/{path}"

    def ask(
        self,
        method: str,
        url: str,
        what: str,
        **options: Any,
    ) -> Answer:
        """Send a request like `request`, and discard the body of the response."""
        with self.request(method, url, what, **options) as response:
            _small(response)  # an unread body would cost the connection its reuse
            return Answer(status=response.status_code, headers=response.headers, url=response.url)

    def request(
        self,
        method: str,
        url: str,
        what: str,
        *,
        accept: Collection[int],
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        retry: bool = True,
    ) -> requests.Response:
        """Send a request, and return the response, whose status is one of those in `accept`.

        The body has not been read yet, and the caller must close the response. `what` identifies
        the requested item in messages. If the registry is busy or the connection breaks, try again
        or, with `retry=False`, raise `BrokenOffError`. Raise `BuildError` for all other failures.
        """
        import requests

        attempts = http.Attempts(self.pause, None if retry else 1)
        problem = ""
        status = 0
        for _ in attempts:
            try:
                response = self._authorized(method, url, what, headers or {}, data)
            except requests.TooManyRedirects as error:
                raise self.failure(what, http.reason(error)) from None
            except requests.RequestException as error:
                problem = self._no_response(error)
                status = 0
                continue
            if response.status_code in accept:
                return response
            with response:
                problem = self._refusal(response)
                status = response.status_code
            if not attempts.may_repeat(response):
                raise self.failure(what, problem, status)
        if not retry:
            raise BrokenOffError(problem)
        raise self.failure(what, problem, status)

    def resolve(self, what: str, base: str, location: str) -> str:
        """Return the absolute URL of a `Location` header.

        Raise `BuildError` if the URL is not safe.

        An https URL is safe. An http URL is safe only if it is the registry's own, or if it and the
        registry are both on this machine. `what` identifies the requested item in messages. `base`
        is the URL whose response contains the header.
        """
        target = urljoin(base, location) if http.origin(location) is not None else ""
        parts = urlsplit(target)
        local = self._local and is_loopback(parts.netloc) and parts.scheme == "http"
        if parts.scheme == "https" or local or (target and self._is_registry(target)):
            return target
        raise BuildError(
            f"{self.name}: {what}: redirected to {parts.scheme or '?'}://{parts.hostname or '?'},"
            " which is not https",
            "The registry or a proxy in front of it is misconfigured. Nothing was sent there.",
        )

    def failure(self, what: str, problem: str, status: int = 0) -> BuildError:
        """Return the error for an item that could not be pulled or pushed.

        `status` is the HTTP status, which determines the hint, or 0 if there was no response.
        """
        login = f"docker login {self.host}"
        hints = {
            0: (
                "Check the host and the network. If you need a proxy, set HTTPS_PROXY. Blobs"
                " transferred so far are kept."
            ),
            401: f"Log in first ({login}), or check your permissions there.",
            403: f"Log in first ({login}), or check your permissions there.",
            404: f"Check the name or, if the image is private, log in: {login}",
            429: f"The registry limits requests. Wait, or log in: {login}",
        }
        default = (
            "The registry has a problem. Try again later. Blobs transferred so far are kept."
            if status >= 500 or status in http.BUSY
            else "Trying again will not help. Check the name and the registry's limits."
        )
        return BuildError(f"{self.name}: {what}: {problem}", hints.get(status, default))

    # --- manifests and indexes

    def read_manifest(self, reference: str) -> tuple[Descriptor, bytes]:
        """Fetch a manifest or an index by digest or tag, and return its descriptor and its bytes.

        The media type is determined only from the bytes, because the digest covers nothing else.
        Raise `WrongHashError` if the bytes do not match the digest, `BuildError` if the registry
        does not send them, and `InvalidError` if they are neither a manifest nor an index.
        """
        found = self._manifest(reference, (OK,))
        assert found is not None, "any other status was refused"
        return found

    def find_manifest(self, reference: str) -> tuple[Descriptor, bytes] | None:
        """Do the same as `read_manifest`, but return None if there is no such manifest or index."""
        return self._manifest(reference, (OK, NOT_FOUND))

    def _manifest(self, reference: str, accept: tuple[int, ...]) -> tuple[Descriptor, bytes] | None:
        url = self.url(f"manifests/{reference}")
        where = f"{self.name}: {reference}"
        problem = ""
        for _ in http.Attempts(self.pause):
            response = self.request("GET", url, reference, accept=accept, headers=ACCEPT)
            try:
                data = limited(response, JSON_LIMIT)
            except BrokenOffError as error:
                problem = str(error)
                continue
            if response.status_code != OK:
                return None
            if data is None:
                raise InvalidError(f"{where}: the manifest is larger than {JSON_LIMIT} bytes")
            if _IS_DIGEST.fullmatch(reference) and digest_of(data) != reference:
                raise WrongHashError(
                    f"{where}: the received content has the wrong digest {digest_of(data)}",
                    "The registry or a proxy may be altering the content, so nothing was kept.",
                )
            return _described(data, where), data
        raise self.failure(reference, problem)

    def put_manifest(self, reference: str, media_type: str, data: bytes) -> int:
        """Push a manifest or an index under a tag or its digest. Return the number of bytes sent.

        The registry must already have all blobs and manifests to which the pushed document refers.
        Raise `BuildError` if the push fails.
        """
        digest = digest_of(data)
        url = self.url(f"manifests/{reference}")
        existing = self.ask("HEAD", url, reference, accept=(OK, NOT_FOUND), headers=ACCEPT)
        if existing.status == OK and existing.headers.get("Docker-Content-Digest") == digest:
            return 0
        headers = {"Content-Type": media_type}
        answer = self.ask(
            "PUT", url, reference, accept=(CREATED, ACCEPTED), headers=headers, data=data
        )
        reported = answer.headers.get("Docker-Content-Digest", digest)
        if reported != digest:
            raise WrongHashError(
                f"{self.name}: {reference}: the registry reports digest {reported},"
                f" expected {digest}",
                "A proxy may be rewriting the upload.",
            )
        return len(data)

    def _no_response(self, error: requests.RequestException) -> str:
        """Return the message for a host that does not answer.

        The host is either the registry or a host to which the registry redirects.
        """
        url = error.request.url if error.request is not None else None
        console.detail(f"{public(url or self._base)}: {http.reason(error)}")
        requested = http.host_of(url) if url else ""
        host = requested if requested and requested != http.host_of(self._base) else self.host
        return f"{host} does not answer ({http.reason(error)})"

    def _authorized(
        self, method: str, url: str, what: str, headers: Mapping[str, str], data: bytes | None
    ) -> requests.Response:
        """Send a request, logging in if the registry demands it, and return the response."""
        previous = self._authorization
        response = self._send(method, url, what, headers, data, previous)
        if response.status_code != 401 or not self._is_registry(response.url):
            return response
        response.close()
        with self._lock:
            if self._authorization == previous:  # else another thread was faster
                try:
                    challenge = response.headers.get("WWW-Authenticate", "")
                    self._authorization = self._login.answer(challenge)
                except DeniedError as error:
                    raise self.failure(what, str(error), 401) from None
        return self._send(method, url, what, headers, data, self._authorization)

    def _send(
        self,
        method: str,
        url: str,
        what: str,
        headers: Mapping[str, str],
        data: bytes | None,
        authorization: str,
    ) -> requests.Response:
        """Send a request, follow all redirects, and return the last response.

        Credentials are sent only to the registry itself.
        """

        def log_in(prepared: requests.PreparedRequest) -> requests.PreparedRequest:
            if authorization and self._is_registry(prepared.url or ""):
                prepared.headers["Authorization"] = authorization
            return prepared  # as it is: requests would add a login from ~/.netrc

        return http.request(
            self.session,
            method,
            url,
            {"User-Agent": "envbuilder", **headers},
            data=data,
            auth=log_in,
            redirect=partial(self.resolve, what),
        )

    def _is_registry(self, url: str) -> bool:
        return http.origin(url) == http.origin(self._base)

    def _refusal(self, response: requests.Response) -> str:
        """Return the status of a response and the registry's own error message, on one line."""
        status = f"HTTP {response.status_code} {response.reason or ''}".strip()
        try:
            errors = decoding.from_json(_small(response), _Errors).errors
        except (ValueError, RecursionError):
            return status
        message = "; ".join(f"{e.code} {e.message}".strip() for e in errors[:3])
        if not message or any(secret in message for secret in self._login.secrets):
            return status
        return f"{status} ({printable(message, 200, instead=' ')})"


def _described(data: bytes, where: str) -> Descriptor:
    """Return the descriptor of a manifest or an index. Raise `InvalidError` for anything else."""
    kind = decode(data, _Kind, where)
    if kind.manifests is not None and kind.config is None and kind.layers is None:
        media_type = kind.media_type or INDEX
        allowed = INDEXES
    elif kind.manifests is None and kind.config is not None and kind.layers is not None:
        media_type = kind.media_type or MANIFEST
        allowed = MANIFESTS
    else:
        media_type = ""
        allowed = frozenset()
    if media_type not in allowed:
        raise InvalidError(f"{where}: neither a supported image nor a supported image index")
    return Descriptor(media_type=media_type, digest=digest_of(data), size=len(data))


def limited(response: requests.Response, limit: int) -> bytes | None:
    """Read and return the whole body of a response.

    Return None if the body is longer than `limit` bytes. Raise `BrokenOffError` if the body is
    incomplete.
    """
    import requests

    try:
        return http.read(response, limit)
    except TooLongError:
        return None
    except requests.RequestException as error:
        raise BrokenOffError(http.reason(error)) from None


def _small(response: requests.Response) -> bytes:
    """Return the body of a response, or empty bytes if it is too large or incomplete."""
    try:
        head = response.request.method == "HEAD"
        return b"" if head else limited(response, _ANSWER_LIMIT) or b""
    except BrokenOffError:
        return b""


_CHALLENGE = re.compile(
    r"(?:(?P<scheme>[A-Za-z0-9!#$%&'*+.^_`|~-]+)(?:\s+|\Z))?"
    r"(?:(?P<name>[A-Za-z0-9!#$%&'*+.^_`|~-]+)\s*=\s*(?P<value>.*))?",
    re.DOTALL,
)
_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")
_CONFIG_LIMIT = 1 << 20
"""Maximum size in bytes of a login file, which Docker, podman or the user has written."""
_HELPER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HELPER_SECONDS = 60.0
_DOCKER_HUB = "https://index.docker.io/v1/"
_TOKEN_USER = "<token>"  # noqa: S105 (the user name that helpers give an identity token)
_TOKEN_LIMIT = 1 << 18
"""Maximum size in bytes of a response from a token server."""
_FORM = "application/x-www-form-urlencoded"


class DeniedError(Exception):
    """Error raised if access is denied. The message gives the reason and contains no secrets."""


class Login:
    """The login to one repository, whose credential is looked up only when it is needed."""

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
        """Return the `Authorization` header with which to answer a `WWW-Authenticate` header.

        Raise `DeniedError` if no suitable login is available.
        """
        offered = parse_challenges(header)
        credential = self._credential
        bearer = next((c for c in offered if c.scheme == "bearer"), None)
        if bearer is not None:
            token = self._token(bearer, credential)
            self.secrets.add(token)
            return f"Bearer {token}"
        if not any(c.scheme == "basic" for c in offered):
            raise DeniedError("the registry requires an unsupported authentication method")
        if credential is None or credential.is_token:
            raise DeniedError("not logged in")
        return _basic(credential)

    @cached_property
    def _credential(self) -> Credential | None:
        credential = stored_credential(self._host, repository=self._repository)
        if credential is not None:
            self.secrets |= {credential.secret, _basic(credential).removeprefix("Basic ")}
        return credential

    def _token(self, challenge: Challenge, credential: Credential | None) -> str:
        """Request a token with the credential or, if there is no credential, anonymously.

        Raise `DeniedError` if the token server does not issue a token.
        """
        import requests

        realm = challenge.parameters.get("realm", "")
        server = self._checked(realm)
        method, url, headers, data = _token_request(realm, challenge.parameters, credential)
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
                body = http.read(response, _TOKEN_LIMIT)
            except TooLongError:
                body = b""
            except requests.RequestException as error:
                problem = http.reason(error)
                continue
            token = parse_token(body) if response.status_code == requests.codes.ok else ""
            if token:
                return token
            who = "anonymous users" if credential is None else "these credentials"
            problem = f"no token for {who} (HTTP {response.status_code})"
            if not attempts.may_repeat(response):
                break
        raise DeniedError(f"its token server {server}: {problem}")

    def _checked(self, realm: str) -> str:
        """Check that a token server may receive a password, and return the server's host.

        A password may be sent over https. It may be sent over http only if the token server and the
        registry are both on this machine, or if plain http is allowed and the token server has the
        registry's own host. In all other cases, raise `DeniedError`.
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
                f"its token server {server or '?'} does not use https, so nothing was sent to it"
            )
        return server


def _token_request(
    realm: str, parameters: Mapping[str, str], credential: Credential | None
) -> tuple[str, str, dict[str, str], bytes | None]:
    """Return the method, URL, headers and body of the HTTP request for a token."""
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
    """An authentication scheme (in lowercase) that a registry offers, and its parameters."""

    scheme: str
    parameters: dict[str, str]


def parse_challenges(header: str) -> tuple[Challenge, ...]:
    """Parse the challenges in a `WWW-Authenticate` header, skipping malformed parts."""
    challenges: list[Challenge] = []
    for piece in parse_http_list(header):
        match = _CHALLENGE.fullmatch(piece.strip())
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
    """Return the token in a token server's response, or "" if there is no valid token.

    A token is valid only if all of its characters are allowed in a header.
    """
    try:
        answer = decoding.from_json(body, _TokenAnswer)
    except (ValueError, RecursionError):
        return ""
    given = answer.token or answer.access_token or ""
    return given if _TOKEN.fullmatch(given) else ""


class Credential(Struct, frozen=True, kw_only=True):
    """A user name with a password, or an identity token in place of the password."""

    user: str
    secret: str
    is_token: bool = False

    def __repr__(self) -> str:
        return "Credential(…)"


class _Login(Struct, frozen=True):
    auth: str | None = None
    identitytoken: str | None = None
    username: str | None = None
    password: str | None = None


class _LoginFile(Struct, frozen=True, rename="camel"):
    auths: dict[str, _Login] | None = None
    cred_helpers: dict[str, str] | None = None
    creds_store: str | None = None


class _HelperAnswer(Struct, frozen=True, rename="pascal"):
    username: str
    secret: str


def stored_credential(
    host: str, environ: Mapping[str, str] = os.environ, repository: str = ""
) -> Credential | None:
    """Return the stored credential for a repository in a registry, or None if there is none.

    If a file contains several logins, use the one with the longest namespace that contains the
    repository, as podman does. Raise `InvalidError` if a file is damaged, and `ToolError` if a
    configured credential helper does not work.
    """
    paths = _login_files(environ)
    return next(filter(None, (_in_file(path, host, repository) for path in paths)), None)


def _login_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files in which to look up logins.

    If REGISTRY_AUTH_FILE is set, return only the file that it specifies. Otherwise, return the
    existing login files of Docker and podman.
    """
    path = environ.get("REGISTRY_AUTH_FILE")
    if path:
        return (Path(path),)
    home = Path(environ.get("HOME") or Path.home())
    runtime = environ.get("XDG_RUNTIME_DIR")
    places = (
        Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json",
        *([Path(runtime) / "containers" / "auth.json"] if runtime else []),
        Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json",
    )
    return tuple(p for p in places if p.is_file())


def _in_file(path: Path, host: str, repository: str) -> Credential | None:
    content = files.read_named(path, _CONFIG_LIMIT)
    try:
        read = decoding.from_json(content or b"{}", _LoginFile)
    except (ValueError, RecursionError) as error:
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
    keys = _login_keys(host)
    helper = next((helpers[k] for k in keys if k in helpers), read.creds_store)
    if helper and (credential := _ask_helper(helper, keys[0], path)):
        return credential
    for key in keys:
        if key in entries:
            return _read_entry(entries[key], path, host)
    return None


def _login_keys(host: str) -> tuple[str, ...]:
    """Return the keys under which login files may list a registry, the most common key first."""
    if host == DEFAULT_HOST:
        return (_DOCKER_HUB, DEFAULT_HOST, "index.docker.io")
    secure = f"https://{host}"
    plain = f"http://{host}"
    return (host, secure, f"{secure}/", plain, f"{plain}/", f"{secure}/v1/", f"{secure}/v2/")


def _read_entry(entry: _Login, path: Path, host: str) -> Credential | None:
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
                f"{path}: the entry for {host} does not contain a user name and a password",
                f"Log in again: docker login {host}",
            )
    if entry.identitytoken:
        return Credential(user=user, secret=entry.identitytoken, is_token=True)
    return Credential(user=user, secret=secret) if user else None


def _ask_helper(helper: str, server: str, path: Path) -> Credential | None:
    """Ask a credential helper for a credential. Return None if the helper has none.

    Error messages do not quote the helper's output, because the output may contain a secret.
    """
    if not _HELPER_NAME.fullmatch(helper):
        raise InvalidError(f"{path}: {helper!r} is not the name of a credential helper")
    program = f"docker-credential-{helper}"
    if process.which(program) is None:
        raise ToolError(
            f"{program} not found: {path} configures it for {server}",
            "Install this credential helper, or set DOCKER_CONFIG to a folder with another"
            " config.json.",
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
            f"{program} returned no credentials for {server} (exit {done.returncode})",
            f"To test it: echo {server} | {program} get",
        )
    if not answer.secret:
        return None
    is_token = answer.username == _TOKEN_USER
    return Credential(user=answer.username, secret=answer.secret, is_token=is_token)
