"""HTTP requests to one repository of a registry: redirects, retries, limits, and clear errors.

A small client on top of requests, because the two existing libraries (oras 0.2, python-dxf 12)
resume no pulls, set no timeouts of their own, and load or trust whole responses.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

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
from envbuilder.containers.oci.reference import Reference, is_loopback
from envbuilder.containers.registry.auth import DeniedError, Login
from envbuilder.core import console, decoding, http
from envbuilder.core.errors import (
    BuildError,
    InvalidError,
    TooLongError,
    WrongHashError,
    printable,
    public,
)

if TYPE_CHECKING:
    import requests


class BrokenOffError(Exception):
    """A missing or incomplete response to a request; `str` says why in a few words."""


OK = 200
CREATED = 201
ACCEPTED = 202
NOT_FOUND = 404
ACCEPT = {"Accept": ", ".join(sorted(INDEXES | MANIFESTS))}
_IS_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ANSWER_LIMIT = 1 << 16


class _Error(Struct, frozen=True):
    code: str = ""
    message: str = ""


class _Errors(Struct, frozen=True):
    errors: tuple[_Error, ...] = ()


class _Kind(Struct, frozen=True, rename="camel"):
    """The keys that distinguish a manifest from an index."""

    media_type: str | None = None
    config: dict[str, object] | None = None
    layers: list[object] | None = None
    manifests: list[object] | None = None


class Answer(Struct, frozen=True, kw_only=True):
    """A response of which only status and headers matter."""

    status: int
    headers: Mapping[str, str]
    url: str


class Connection:
    """A repository of a registry.

    `plain_http` allows http to a registry that is not this machine: configured explicitly, never
    assumed. Failures are `BuildError`s that name the repository, but no query, header or body.
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
        """Return the URL of a path below the repository: `manifests/latest`, `blobs/sha256:…`."""
        return f"{self._base}/v2/{self.repository}/{path}"

    def ask(
        self,
        method: str,
        url: str,
        what: str,
        **options: Any,
    ) -> Answer:
        """Send a `request` whose response body does not matter."""
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
        """Return a response whose status is in `accept`, its body unread; the caller closes it.

        `what` names the item in messages. Busy registries and broken connections are retried; with
        `retry=False` they raise `BrokenOffError`.
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
        """Return the absolute URL of a `Location` header; raise `BuildError` if it leaves https.

        `what` is requested, for messages; `base` is the URL that answered.
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
        """Return the error for something that could not be pulled or pushed."""
        login = f"docker login {self.host}"
        hints = {
            0: "Check the host and the network; HTTPS_PROXY sets a proxy. What was transferred"
            " is kept.",
            401: f"Log in first ({login}), or check your permissions there.",
            403: f"Log in first ({login}), or check your permissions there.",
            404: f"Check the name, or log in to read what is private: {login}",
            429: f"The registry limits requests. Wait, or log in: {login}",
        }
        default = (
            "The registry has a problem. Try again later. What was transferred is kept."
            if status >= 500 or status in http.BUSY
            else "Trying again will not help. Check the name, and the registry's limits."
        )
        return BuildError(f"{self.name}: {what}: {problem}", hints.get(status, default))

    # --- manifests and indexes

    def read_manifest(self, reference: str) -> tuple[Descriptor, bytes]:
        """Return a manifest or an index by digest or tag, and its bytes.

        Its type is taken from the bytes alone, since they are what a digest covers. Raise
        `WrongHashError` if the registry sends other bytes than the digest names, `BuildError` if it
        sends none, `InvalidError` if they are something else.
        """
        found = self._manifest(reference, (OK,))
        assert found is not None, "any other status was refused"
        return found

    def find_manifest(self, reference: str) -> tuple[Descriptor, bytes] | None:
        """Return what `read_manifest` returns, or None if the repository has nothing so named."""
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
                raise InvalidError(f"{where}: a manifest of more than {JSON_LIMIT} bytes")
            if _IS_DIGEST.fullmatch(reference) and digest_of(data) != reference:
                raise WrongHashError(
                    f"{where}: the received content has the digest {digest_of(data)}",
                    "The registry or a proxy changes the content. Nothing was kept.",
                )
            return _described(data, where), data
        raise self.failure(reference, problem)

    def put_manifest(self, reference: str, media_type: str, data: bytes) -> int:
        """Push a manifest or an index under a tag or its digest; return the bytes transferred.

        Everything it references must be in the registry already. Raise `BuildError` if the push
        fails.
        """
        digest = digest_of(data)
        url = self.url(f"manifests/{reference}")
        existing = self.ask("HEAD", url, reference, accept=(OK, NOT_FOUND), headers=ACCEPT)
        if existing.status == OK and existing.headers.get("Docker-Content-Digest") == digest:
            return 0
        headers = {"Content-Type": media_type}
        accept = (CREATED, ACCEPTED)
        answer = self.ask("PUT", url, reference, accept=accept, headers=headers, data=data)
        reported = answer.headers.get("Docker-Content-Digest", digest)
        if reported != digest:
            raise WrongHashError(
                f"{self.name}: {reference}: the registry reports digest {reported},"
                f" expected {digest}",
                "A proxy may be rewriting the upload.",
            )
        return len(data)

    def _no_response(self, error: requests.RequestException) -> str:
        """Return which host does not answer, which may be one that the registry redirects to."""
        url = error.request.url if error.request is not None else None
        console.detail(f"{public(url or self._base)}: {http.reason(error)}")
        requested = http.host_of(url) if url else ""
        host = requested if requested and requested != http.host_of(self._base) else self.host
        return f"{host} does not answer ({http.reason(error)})"

    def _authorized(
        self, method: str, url: str, what: str, headers: Mapping[str, str], data: bytes | None
    ) -> requests.Response:
        """Send a request and return the response; authenticate if the registry demands it."""
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
        """Return the response at the end of redirects; other hosts never receive credentials."""

        def log_in(prepared: requests.PreparedRequest) -> requests.PreparedRequest:
            if authorization and self._is_registry(prepared.url or ""):
                prepared.headers["Authorization"] = authorization
            return prepared  # as it is: requests would add a login from ~/.netrc

        complete = {"User-Agent": "envbuilder", **headers}
        return http.request(
            self.session,
            method,
            url,
            complete,
            data=data,
            auth=log_in,
            redirect=partial(self.resolve, what),
        )

    def _is_registry(self, url: str) -> bool:
        return http.origin(url) == http.origin(self._base)

    def _refusal(self, response: requests.Response) -> str:
        """Return the status and the registry's own message, cut to one line."""
        status = f"HTTP {response.status_code} {response.reason or ''}".strip()
        try:
            errors = decoding.from_json(_small(response), _Errors).errors
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return status
        message = "; ".join(f"{e.code} {e.message}".strip() for e in errors[:3])
        if not message or any(secret in message for secret in self._login.secrets):
            return status
        return f"{status} ({printable(message, 200, instead=' ')})"


def _described(data: bytes, where: str) -> Descriptor:
    """Return the descriptor of a manifest or an index; raise `InvalidError` if it is neither."""
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
    """Return a whole body of at most `limit` bytes; None if it is longer.

    Raise `BrokenOffError` if it was cut short.
    """
    import requests

    try:
        return http.read(response, limit)
    except TooLongError:
        return None
    except requests.RequestException as error:
        raise BrokenOffError(http.reason(error)) from None


def _small(response: requests.Response) -> bytes:
    """Return the body if it is small and complete, else nothing."""
    try:
        head = response.request.method == "HEAD"
        return b"" if head else limited(response, _ANSWER_LIMIT) or b""
    except BrokenOffError:
        return b""
