"""Locate the files that a lock names: local folders, URLs, and the indexes that uv uses."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from envbuilder.core import pip, uv_program
from envbuilder.core.errors import ToolError
from envbuilder.packages.python import indexes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import File, Lock

BY_PATH = frozenset({"deb", "conda"})
"""Kinds of files that are located by path, without querying an index."""


def find_links() -> tuple[Path, ...]:
    """Return the existing local folders of wheels that uv or pip is configured with."""
    places = pip.links(pip.sources(), os.environ)
    found = (pip.local_folder(place) for place in places)
    return tuple(folder for folder in found if folder is not None and folder.is_dir())


class Place(Struct, frozen=True, kw_only=True):
    """A location that lists packages: an index with a page per distribution, or one flat page."""

    url: str
    """May hold credentials. The path of the folder if it is on this machine."""
    flat: bool = False


def places() -> tuple[Place, ...]:
    """Return every location that uv searches for packages from the user's own index.

    uv itself is run, since only it knows all of its settings, including its default index. Raise
    `ToolError` if it fails.
    """
    configuration = pip.sources()
    variables = indexes.uv_environment(configuration, os.environ)
    with tempfile.TemporaryDirectory(prefix="envbuilder-places-") as name:
        folder = Path(name)
        (folder / "requirements.in").touch()
        result = folder / "places.txt"
        done = uv_program.run(
            [
                *(uv_program.path(), "pip", "compile", "--quiet", "--offline", "--no-header"),
                *("--emit-index-url", "--emit-find-links", "--no-python-downloads"),
                *("--python", sys.executable, "--no-cache"),
                *("--output-file", str(result), "requirements.in"),
            ],
            env=variables,
            folder=folder,
            timeout=60,
        )
        printed = result.read_text(encoding="utf-8") if done.returncode == 0 else ""
    if done.returncode != 0:
        raise ToolError(
            f"uv does not report which indexes it uses (exit {done.returncode})",
            "Check uv's settings: python -m uv pip compile --emit-index-url requirements.txt",
        )
    no_index = variables.get("UV_NO_INDEX") or os.environ.get("UV_NO_INDEX")
    options = [line.partition(" ") for line in printed.splitlines()]
    listed = [Place(url=url) for flag, _, url in options if flag.endswith("index-url")]
    flat = [url for flag, _, url in options if flag == "--find-links"]
    flat += pip.links(configuration, os.environ)
    return tuple(
        dict.fromkeys((*([] if no_index else listed), *(Place(url=u, flat=True) for u in flat)))
    )


def urls(file: File, settings: Settings) -> tuple[str, ...]:
    """Return the URLs of a .deb or conda package, whose path the lock states; best first."""
    if file.kind == "conda":
        return (f"{indexes.url(file.source, settings)}/{file.file}",)
    from envbuilder.packages.debian import mirrors

    return mirrors.urls(file, settings)


def uv_variables(source: str, settings: Settings) -> dict[str, str]:
    """Return variables that make uv search a source: the user's indexes, or the upstream index."""
    variables = indexes.uv_environment(pip.sources(), os.environ)
    if source != indexes.DEFAULT:
        # Only this index: the file is pinned by hash, and other indexes would only cost time.
        variables.pop("UV_INDEX", None)
        variables["UV_DEFAULT_INDEX"] = indexes.url(source, settings)
    return variables


def with_login(url: str, variables: Mapping[str, str]) -> str:
    """Return a file's URL with the login of the index on the same server, if there is one.

    uv takes the login of an index, but leaves it out of the URLs of files. `variables` are uv's.
    Logins in uv.toml are not known here; netrc works for both.
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


def rendered_urls(lock: Lock, settings: Settings) -> dict[str, str]:
    """Return the URLs that a lock's rendered files name, by symbolic source.

    The user's own index is never among them.
    """
    named = {f.source: f for f in lock.files if f.source != indexes.DEFAULT}
    urls: dict[str, str] = {}
    for source, file in sorted(named.items()):
        if file.kind == "deb":
            from envbuilder.packages.debian import mirrors

            urls[source] = mirrors.snapshot(file, settings)
        else:
            urls[source] = indexes.url(source, settings)
    return urls
