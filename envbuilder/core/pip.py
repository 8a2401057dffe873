"""Read pip's configuration from the files and environment variables that pip documents.

This module only uses the standard library, because `bootstrap.py` imports it before anything is
installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from envbuilder.core.errors import InvalidError

SECTIONS = ("global", "install")
"""The sections of a configuration file that apply to `pip install`.

Options in the second section take precedence, whichever file they are in.
"""


def files(
    environ: Mapping[str, str], *, home: Path | None = None, prefix: Path | None = None
) -> tuple[Path, ...]:
    """Return the configuration files that pip in `prefix` reads. Later files take precedence."""
    setting = environ.get("PIP_CONFIG_FILE", "")
    if setting == os.devnull:
        return ()
    home = home or Path.home()
    if sys.platform == "darwin":
        shared = [Path("/Library/Application Support/pip/pip.conf")]
        mac = home / "Library/Application Support/pip"
        user = (mac if mac.is_dir() else home / ".config/pip") / "pip.conf"
    else:
        folders = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
        shared = [Path(f) / "pip/pip.conf" for f in folders if f] + [Path("/etc/pip.conf")]
        user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"
    result = list(shared)
    if not (setting and Path(setting).exists()):
        result += [home / ".pip/pip.conf", user]
    result.append((prefix or Path(sys.prefix)) / "pip.conf")
    return (*result, Path(setting)) if setting else tuple(result)


def parse(text: str) -> dict[str, dict[str, str]]:
    """Parse a configuration file, and return its options by section.

    Return an empty dictionary if the file cannot be parsed. Such a file can be ignored, because pip
    itself refuses to work with it, so the user already knows.
    """
    import configparser

    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    result: dict[str, dict[str, str]] = {}
    for section in SECTIONS:
        if parser.has_section(section):
            items = parser.items(section)
            result[section] = {key.replace("_", "-"): value or "" for key, value in items}
    return result


def merged(environ: Mapping[str, str], texts: Iterable[str]) -> dict[str, str]:
    """Return the effective value of each pip option, keyed by the option's long name.

    Later `texts` override earlier ones, and environment variables override all `texts`.
    """
    parsed = list(map(parse, texts))
    options: dict[str, str] = {}
    for section in SECTIONS:
        for sections in parsed:
            options.update(sections.get(section, {}))
    for key, value in environ.items():
        # pip ignores empty variables, and PIP_CONFIG_FILE is not an option.
        if key.startswith("PIP_") and value and key != "PIP_CONFIG_FILE":
            options[key[len("PIP_") :].lower().replace("_", "-")] = value
    return options


def texts(environ: Mapping[str, str], *, prefix: Path | None = None) -> tuple[str, ...]:
    """Return the contents of pip's configuration files on this machine. Skip unreadable files.

    `prefix` is the environment in which pip is installed. The default is the current environment.
    """
    contents = []
    for path in files(environ, prefix=prefix):
        try:
            contents.append(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    return tuple(contents)


_YES = {"1", "y", "yes", "t", "true", "on"}


class Sources(NamedTuple):
    """Package sources and connection options from pip's configuration, named as in pip."""

    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    cert: str = ""
    proxy: str = ""
    timeout: str = ""
    trusted_hosts: tuple[str, ...] = ()


def parsed_url(location: str) -> str:
    """Return a URL unchanged. Raise `ValueError` if its host or port cannot be parsed."""
    parts = urlsplit(location)
    _ = parts.port
    if parts.scheme in {"http", "https"} and not parts.hostname:
        raise ValueError("the URL has no host")
    return location


def require_parsed(locations: Mapping[str, str]) -> None:
    """Raise `InvalidError` if one of the URLs cannot be parsed.

    The keys of `locations` are the names of the settings that contain the URLs. The message does
    not show the URL, which may contain a token.
    """
    for setting, location in locations.items():
        try:
            parsed_url(location)
        except ValueError:
            raise InvalidError(
                f"the URL in {setting} cannot be parsed",
                "Write scheme://host or scheme://host:port, with an IPv6 address in brackets.",
            ) from None  # the cause may repeat a part of the URL


def pip_sources(environ: Mapping[str, str], texts: Iterable[str]) -> Sources:
    """Return pip's package sources from its environment variables and configuration files.

    `texts` are the contents of the files. Later files override earlier ones, and variables override
    all files.
    """
    options = merged(environ, texts)
    return Sources(
        index_url=options.get("index-url", "").strip(),
        extra_index_urls=tuple(options.get("extra-index-url", "").split()),
        find_links=tuple(options.get("find-links", "").split()),
        no_index=options.get("no-index", "").strip().lower() in _YES,
        cert=options.get("cert", "").strip(),
        proxy=options.get("proxy", "").strip(),
        timeout=options.get("default-timeout", options.get("timeout", "")).strip(),
        trusted_hosts=tuple(options.get("trusted-host", "").split()),
    )


def sources(environ: Mapping[str, str] = os.environ) -> Sources:
    """Return pip's package sources on this machine. Skip unreadable files.

    Raise `InvalidError` if one of the URLs cannot be parsed.
    """
    configuration = pip_sources(environ, texts(environ))
    locations = {"pip's index-url": configuration.index_url, "pip's proxy": configuration.proxy}
    for number, url in enumerate(configuration.extra_index_urls, 1):
        locations[f"pip's extra-index-url ({number})"] = url
    for number, url in enumerate(links(configuration, environ), 1):
        locations[f"find-links ({number})"] = url
    require_parsed({setting: u for setting, u in locations.items() if "://" in u})
    return configuration


def local_folder(location: str) -> Path | None:
    """Return the folder for a path or a `file:` URL, or None if the location is remote."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in location else Path(location).expanduser()


def links(configuration: Sources, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the user's find-links locations: uv's if any are set, otherwise pip's."""
    uv_links = tuple(filter(None, environ.get("UV_FIND_LINKS", "").split(",")))
    return uv_links or configuration.find_links
