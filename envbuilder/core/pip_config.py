"""Read pip's configuration from its files and variables, as pip documents them.

Standard library only: `bootstrap.py` uses it before anything is installed.
"""

from __future__ import annotations

import configparser
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SECTIONS = ("global", "install")
"""The sections that apply to `pip install`; the later one wins, regardless of the file."""


def files(
    environ: Mapping[str, str], *, home: Path | None = None, prefix: Path | None = None
) -> tuple[Path, ...]:
    """Return the paths where pip, installed in `prefix`, looks for its files; later ones win."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
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
    if not (named and Path(named).exists()):
        result += [home / ".pip/pip.conf", user]
    result.append((prefix or Path(sys.prefix)) / "pip.conf")
    return (*result, Path(named)) if named else tuple(result)


def parse(text: str) -> dict[str, dict[str, str]]:
    """Return a file's options by section; empty if it cannot be parsed.

    Such a file can be ignored: pip itself refuses to work with it, so the user knows of it.
    """
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    return {
        section: {key.replace("_", "-"): value or "" for key, value in parser.items(section)}
        for section in SECTIONS
        if parser.has_section(section)
    }


def merged(environ: Mapping[str, str], texts: Iterable[str]) -> dict[str, str]:
    """Return the effective options by long name: contents of files (later ones win), variables."""
    parsed = [parse(text) for text in texts]
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
    """Return the contents of pip's files on this machine; unreadable ones are skipped.

    `prefix` is the environment that pip is installed in, by default the running one.
    """
    contents = []
    for path in files(environ, prefix=prefix):
        try:
            contents.append(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    return tuple(contents)
