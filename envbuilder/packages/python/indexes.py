"""The sources of packages: the shipped upstream indexes and the user's own pip configuration.

uv does not read pip's configuration files or environment variables. Therefore, the settings found
there (see `core/pip.py`) are passed to uv. uv's own variables take precedence. URLs from these
settings are never written to a lock.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import decoding, resources, types
from envbuilder.core.errors import InvalidError
from envbuilder.core.files import parse_shipped, read_text
from envbuilder.core.pip import Sources, local_folder, parsed_url

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from envbuilder.core.settings import Settings

DEFAULT = "default"
"""Symbolic name of the source of all packages that come from the user's own index."""


class Upstream(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An upstream index, as listed in `profiles/indexes.yaml`."""

    kind: Literal["simple", "folder", "archive", "channel"]
    url: Annotated[str, Meta(pattern=r"^https?://[^\s\x00-\x1f]+[^/\s]\Z")]
    what: types.Sentence


def upstreams(folder: Path | None = None) -> dict[str, Upstream]:
    """Return the shipped upstream indexes by symbolic name.

    Raise `InvalidError` if the file that lists them is invalid.
    """
    path = (folder or resources.profiles_dir()) / "indexes.yaml"
    entries = parse_shipped(read_text(path), path).items()
    return {name: decoding.decode(entry, Upstream, f"{path}: {name}") for name, entry in entries}


_shipped = cache(upstreams)


def variable(name: str) -> str:
    """Return the name of the environment variable that overrides the URL of a symbolic source."""
    return "ENVBUILDER_INDEX_" + name.upper().replace("-", "_")


def mirror_setting(name: str) -> str:
    """Return the name of the setting that changes a symbolic source's URL, for use in messages."""
    if name == DEFAULT:
        return "pip's index-url or UV_DEFAULT_INDEX"
    return f"{variable(name)}=URL, or indexes: in envbuilder.yaml"


def override(name: str, settings: Settings, environ: Mapping[str, str] = os.environ) -> str:
    """Return the URL that the environment or the configuration sets for a source.

    The result is empty if neither of them sets a URL. Raise `InvalidError` if the URL is unusable.
    """
    configured = environ.get(variable(name)) or settings.configuration.indexes.get(name, "")
    try:
        # The URL goes into rendered files. It may hold a token, so the message does not repeat it.
        return parsed_url(decoding.convert(configured, types.Url)).rstrip("/") if configured else ""
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidError(
            f"the URL of the source '{name}' ({variable(name)}, or indexes: in envbuilder.yaml)"
            " cannot be used",
            "Begin the URL with http://, https:// or file://, and percent-encode spaces, quotes,"
            " backslashes and dollar signs.",
        ) from error


def url(name: str, settings: Settings, environ: Mapping[str, str] = os.environ) -> str:
    """Return the URL of a source.

    The URL is taken from the first of these that has one: the environment, the configuration and
    the shipped table. Raise `InvalidError` if none of them has a URL, or if the URL is unusable.
    """
    custom = override(name, settings, environ)
    if custom:
        return custom
    shipped = _shipped()
    if name not in shipped:
        raise InvalidError(
            f"the source '{name}' has no URL",
            f"Set the URL in envbuilder.yaml (indexes: {name}: https://…) or in {variable(name)}.",
        )
    return shipped[name].url


def uv_environment(
    configuration: Sources, environ: Mapping[str, str], first: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return environment variables that make uv use pip's configuration.

    The indexes in `first` are searched before all others. URLs are not passed as arguments, because
    they may contain credentials and the arguments of a process are visible to other users.
    """
    own_index = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL")
    translated = {
        "UV_DEFAULT_INDEX": "" if own_index else configuration.index_url,
        "UV_NO_INDEX": "1" if configuration.no_index and not own_index else "",
        "UV_INSECURE_HOST": " ".join(configuration.trusted_hosts),
        "SSL_CERT_FILE": configuration.cert,
        "ALL_PROXY": "" if environ.get("all_proxy") else configuration.proxy,
        "UV_HTTP_TIMEOUT": configuration.timeout if configuration.timeout.isdigit() else "",
    }
    # uv's own variables win; whether an index is used is decided by the index.
    result = {
        name: value
        for name, value in translated.items()
        if value and (name == "UV_NO_INDEX" or not environ.get(name))
    }
    extra = environ.get("UV_INDEX", "").split()
    if not extra and not environ.get("UV_EXTRA_INDEX_URL"):
        # pip skips an extra index that does not exist; uv would stop.
        for url in configuration.extra_index_urls:
            folder = local_folder(url)
            if folder is None or folder.is_dir():
                extra.append(url)
        if extra and not environ.get("UV_INDEX_STRATEGY"):
            # pip takes the best version from all its indexes. uv by default stops at the first
            # index that has the package at all, and searches extra indexes first: one stale copy in
            # a local folder would hide the whole package index.
            result["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if first or extra:
        result["UV_INDEX"] = " ".join((*first, *extra))
    return result


def with_login(url: str, variables: Mapping[str, str]) -> str:
    """Return a file's URL, adding the credentials for an index on the same server, if any.

    This is needed because uv omits an index's credentials from the URLs of the index's files.
    `variables` are the environment variables for uv. Credentials in a uv.toml are not found by this
    function. Credentials in a netrc file need not be added, because both uv and envbuilder use that
    file.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or "@" in parts.netloc:
        return url
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"):
        for index in variables.get(name, "").split():
            scheme, _, rest = index.partition("://")
            login, at, host = rest.partition("/")[0].rpartition("@")
            # An index may have a name: NAME=URL.
            if at and (scheme.rpartition("=")[2], host) == (parts.scheme, parts.netloc):
                return parts._replace(netloc=f"{login}@{host}").geturl()
    return url


UV_PLATFORM = {
    "linux/amd64": "x86_64-manylinux_2_28",
    "linux/arm64": "aarch64-manylinux_2_28",
    "macos/arm64": "aarch64-apple-darwin",
}
"""The platforms as spelled by `uv pip compile --python-platform`."""
