"""pip's configuration on this machine: indexes, folders, proxy and certificate."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from envbuilder.core import pip_config
from envbuilder.core.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Sources(Struct, frozen=True, kw_only=True):
    """pip's configuration, in pip's terms."""

    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    cert: str = ""
    proxy: str = ""
    timeout: str = ""
    trusted_hosts: tuple[str, ...] = ()


def parsed_url(location: str) -> str:
    """Return the URL unchanged. Raises `ValueError` if its host or port cannot be parsed."""
    parts = urlsplit(location)
    _ = parts.port
    if parts.scheme in {"http", "https"} and not parts.hostname:
        raise ValueError("no host")
    return location


def require_parsed(locations: Mapping[str, str]) -> None:
    """Raise `InvalidError` for a URL that cannot be parsed.

    The error names where it is set, not the URL, which may contain a token.
    """
    for where, location in locations.items():
        try:
            parsed_url(location)
        except ValueError:
            raise InvalidError(
                f"the URL in {where} cannot be parsed",
                "It is scheme://host or scheme://host:port, an IPv6 address in brackets.",
            ) from None  # the cause may repeat a part of the URL


def pip_sources(environ: Mapping[str, str], texts: Iterable[str]) -> Sources:
    """Return pip's configuration from its files' contents (later ones win) and its variables."""
    options = pip_config.merged(environ, texts)
    return Sources(
        index_url=options.get("index-url", "").strip(),
        extra_index_urls=tuple(options.get("extra-index-url", "").split()),
        find_links=tuple(options.get("find-links", "").split()),
        no_index=options.get("no-index", "").strip().lower()
        in {"1", "y", "yes", "t", "true", "on"},
        cert=options.get("cert", "").strip(),
        proxy=options.get("proxy", "").strip(),
        timeout=options.get("default-timeout", options.get("timeout", "")).strip(),
        trusted_hosts=tuple(options.get("trusted-host", "").split()),
    )


def sources(environ: Mapping[str, str] | None = None) -> Sources:
    """Return pip's configuration on this machine; unreadable files are skipped."""
    environ = os.environ if environ is None else environ
    configuration = pip_sources(environ, pip_config.texts(environ))
    named = {"pip's index-url": configuration.index_url, "pip's proxy": configuration.proxy}
    named |= {
        f"pip's extra-index-url ({n})": u for n, u in enumerate(configuration.extra_index_urls, 1)
    }
    named |= {f"find-links ({n})": u for n, u in enumerate(links(configuration, environ), 1)}
    require_parsed({where: u for where, u in named.items() if "://" in u})
    return configuration


def local_folder(location: str) -> Path | None:
    """Return the folder that a `file:` URL or a plain path names; None for anything remote."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in location else Path(location).expanduser()


def links(configuration: Sources, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the user's find-links locations: uv's own if they are set, else pip's."""
    uv_links = tuple(filter(None, environ.get("UV_FIND_LINKS", "").split(",")))
    return uv_links or configuration.find_links
