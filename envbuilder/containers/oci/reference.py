"""Parse the names of images in registries, and of images on disk (`oci:DIR` or `FILE.tar`).

The names of images in registries follow Docker's rules: `python:3.11` means
`docker.io/library/python:3.11`. The first component of a reference is a host only if it contains a
dot, a colon or uppercase letters, or is `localhost`. Only sha256 digests are supported.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from envbuilder.core import types
from envbuilder.core.errors import InvalidError

DEFAULT_HOST = "docker.io"
DEFAULT_TAG = "latest"
NAME_LIMIT = 255
"""Maximum number of characters that registries accept for the host and the repository together."""

# Texts: `re` compiles them at the first use and keeps them, no start waits for them.
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{{1,5}})?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REPOSITORY = rf"{_PART}(?:/{_PART})*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"sha256:[0-9a-f]{64}"
_IDENTIFIER = r"[0-9a-f]{64}"


class Reference(Struct, frozen=True, kw_only=True):
    """The location of an image: a registry's host and port, a repository, and a tag or digest."""

    host: str
    repository: str
    tag: str | None
    digest: types.Digest | None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.name}{tag}{digest}"

    @property
    def name(self) -> str:
        """The host and the repository, separated by a slash."""
        return f"{self.host}/{self.repository}"

    @property
    def tag_or_digest(self) -> str:
        """The digest or the tag that identifies the image in its repository.

        If the reference has both, this is the digest. If it has neither, this is `latest`.
        """
        return self.digest or self.tag or DEFAULT_TAG

    @property
    def endpoint(self) -> str:
        """The host and port to connect to, which differ from `host` for Docker Hub."""
        if self.host == DEFAULT_HOST:
            return "registry-1.docker.io"
        return self.host

    def root(self, *, plain_http: bool) -> str:
        """Return the registry's root URL.

        The URL uses http if `plain_http` is true or the registry is on this machine, otherwise
        https.
        """
        return f"{'http' if plain_http or is_loopback(self.host) else 'https'}://{self.endpoint}"


def parse(text: str) -> Reference:
    """Parse a reference to an image in a registry. Raise `InvalidError` if it is malformed."""
    rest, at, digest = text.partition("@")
    if at and not re.fullmatch(_DIGEST, digest):
        raise _invalid(text, "'@' must be followed by sha256: and 64 hexadecimal digits")
    first, slash, below = rest.partition("/")
    host = DEFAULT_HOST
    # Docker's rule, which also takes a first component with capitals as a host.
    if slash and (first == "localhost" or first != first.lower() or {".", ":"} & set(first)):
        host = first
        rest = below
    repository, colon, tag = rest.partition(":")
    if colon and not re.fullmatch(_TAG, tag):
        raise _invalid(text, "a tag consists of at most 128 letters, digits, '_', '.' and '-'")
    if not _host_ok(host):
        raise _invalid(text, f"{host!r} is not a host with an optional port")
    if not re.fullmatch(_REPOSITORY, repository):
        raise _invalid(
            text, "a repository consists of lower-case letters and digits, separated by . _ - /"
        )
    if host == "index.docker.io":
        host = DEFAULT_HOST
    if host == DEFAULT_HOST and "/" not in repository:
        if re.fullmatch(_IDENTIFIER, repository):
            raise _invalid(text, "64 hexadecimal digits are the id of an image, not a repository")
        repository = f"library/{repository}"
    if len(f"{host}/{repository}") > NAME_LIMIT:
        raise _invalid(text, f"host and repository are longer than {NAME_LIMIT} characters")
    return Reference(host=host, repository=repository, tag=tag or None, digest=digest or None)


def mirrored(reference: Reference, mirrors: Mapping[str, str]) -> tuple[Reference, ...]:
    """Return the locations to try for an image: its registry's mirror, then the registry itself.

    `mirrors` maps registries to locations such as `mirror.example:5000/hub`. Raise `InvalidError`
    if a location does not begin with the host of a registry.
    """
    mirror = mirrors.get(reference.host)
    if mirror is None:
        return (reference,)
    rest = str(reference).removeprefix(f"{reference.host}/")
    other = parse(f"{mirror}/{rest}")
    if other.host != mirror.partition("/")[0]:
        raise InvalidError(
            f"mirrors: {reference.host}: {mirror!r} does not begin with a registry's host",
            "For example: mirrors: {docker.io: 'mirror.example:5000/hub'}",
        )
    return (other, reference)


def is_loopback(host: str) -> bool:
    """Return whether `host`, which may include a port, is this machine."""
    name = _split(host)[0]
    if name.lower() == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return False


def _host_ok(host: str) -> bool:
    if not re.fullmatch(_HOST, host):
        return False
    name, port = _split(host)
    if ":" in name:
        try:
            ipaddress.IPv6Address(name)
        except ValueError:
            return False
    return not port or 0 < int(port) < 1 << 16


def _split(host: str) -> tuple[str, str]:
    """Split a host into its name, without the brackets of an IPv6 address, and its port."""
    if host.startswith("["):
        name, _, port = host[1:].partition("]")
        return name, port.removeprefix(":")
    name, _, port = host.partition(":")
    return name, port


def _invalid(text: str, reason: str) -> InvalidError:
    return InvalidError(
        f"{text!r} is not an image reference: {reason}",
        "For example: python:3.11-slim, ghcr.io/me/image:tag, 127.0.0.1:5000/image@sha256:…",
    )


def qualified(ref: str) -> str:
    """Return a reference that includes its registry, which is Docker Hub if none is specified."""
    registry, slash, _ = ref.partition("/")
    if slash and ("." in registry or ":" in registry or registry == "localhost"):
        return ref
    return f"docker.io/{ref}" if slash else f"docker.io/library/{ref}"


def familiar(ref: str) -> str:
    """Return a reference with its tag, but without any registry that engines add by default.

    If the reference has no tag, the tag `latest` is added.
    """
    for registry in ("docker.io/library/", "docker.io/", "localhost/"):
        if ref.startswith(registry):
            ref = ref.removeprefix(registry)
            break
    if ":" in ref.rpartition("/")[2]:
        return ref
    return f"{ref}:{DEFAULT_TAG}"


_LAYOUT = "oci:"
_ARCHIVE = ".tar"


def is_archive(text: str) -> bool:
    """Return whether `text` refers to an image archive on disk."""
    return text.endswith(_ARCHIVE) and not text.startswith(_LAYOUT)


def is_on_disk(text: str) -> bool:
    """Return whether `text` refers to an image on disk, not in an engine or a registry."""
    return text.startswith(_LAYOUT) or is_archive(text)


def path_on_disk(text: str) -> Path:
    """Return the absolute path of the folder or archive to which the name of an image refers."""
    return Path(text.removeprefix(_LAYOUT)).absolute()


def absolute_on_disk(text: str) -> str:
    """Return the name of an image on disk with its path made absolute."""
    prefix = _LAYOUT if text.startswith(_LAYOUT) else ""
    return f"{prefix}{path_on_disk(text)}"
