"""Write a package index as a folder of files, for uv to resolve with.

uv resolves only what an index offers. This one offers wheels whose names and hashes are known
although their own index may be unreachable: a page per distribution (PEP 503), and their
requirements as `dependency-metadata` in a uv.toml, which uv reads in its working folder.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from msgspec import Struct

from envbuilder.packages.python.indexes import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Offer(Struct, frozen=True, kw_only=True):
    """One wheel that the index offers."""

    distribution: str
    version: str
    file: str
    sha256: str
    source: str
    provenance: str
    by: str
    size: int | None = None
    size_about: int | None = None
    requires_python: str = ""
    requires_dist: tuple[str, ...] | None = None
    """The requirements, if they are claimed."""
    core_metadata: bool = False
    """Whether the METADATA file is beside the wheel (PEP 658)."""
    location: str = ""
    """URL or path of the wheel itself; empty if only claims are known."""


class StaticIndex(Struct, frozen=True, kw_only=True):
    """An index on this machine, for as long as its folder exists."""

    url: str
    offers: dict[str, Offer]
    """By the URL that uv reports for a wheel, unquoted."""

    def find(self, url: str) -> Offer | None:
        """Return the offer of a wheel by the URL that uv reports for it."""
        return self.offers.get(unquote(url))


def write(offers: Iterable[Offer], folder: Path) -> StaticIndex:
    """Write the offers into a folder, with the uv.toml that states their claimed requirements."""
    pages: dict[str, list[str]] = {}
    claims: dict[tuple[str, str], str] = {}
    by_url = {}
    for offer in offers:
        url = _url(offer, folder)
        by_url[unquote(url)] = offer
        name = canonical(offer.distribution)
        pages.setdefault(name, []).append(_link(offer, url))
        if offer.requires_dist is not None:
            # uv knows requirements by release, not by file: they hold for all wheels of this one.
            claims[name, offer.version] = _requirements(offer, offer.requires_dist)
    root = folder / "simple"
    root.mkdir()
    for name, links in pages.items():
        (root / name).mkdir()
        text = f"<!DOCTYPE html><html><body>\n{''.join(links)}</body></html>\n"
        (root / name / "index.html").write_text(text, encoding="utf-8")
    (folder / "uv.toml").write_text("".join(claims.values()), encoding="utf-8")
    return StaticIndex(url=root.as_uri(), offers=by_url)


def variables(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables for uv to read the folder's uv.toml although the user names another file.

    Empty if uv finds it in any case. What the user's file states is added to it.
    """
    named = environ.get("UV_CONFIG_FILE", "")
    if not named and not environ.get("UV_NO_CONFIG"):
        return {}
    settings = folder / "uv.toml"
    if named:
        try:
            text = Path(named).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return {}  # uv reports what is wrong with it
        settings.write_text(f"{text}\n{settings.read_text(encoding='utf-8')}", encoding="utf-8")
    return {"UV_CONFIG_FILE": str(settings)}


def _url(offer: Offer, folder: Path) -> str:
    """Return the URL of a wheel; if only claims are known, one of a file that does not exist."""
    if "://" in offer.location:
        return offer.location
    return Path(offer.location or folder / "files" / offer.file).absolute().as_uri()


def _link(offer: Offer, url: str) -> str:
    extra = ""
    if offer.requires_python:
        extra += f' data-requires-python="{html.escape(offer.requires_python)}"'
    if offer.core_metadata:
        extra += ' data-core-metadata="true"'
    href = html.escape(f"{url}#sha256={offer.sha256}")
    return f'<a href="{href}"{extra}>{html.escape(offer.file)}</a>\n'


def _requirements(offer: Offer, requires_dist: tuple[str, ...]) -> str:
    """Return an entry of uv.toml; a JSON string or list of such is the same in TOML."""
    entry = {
        "name": canonical(offer.distribution),
        "version": offer.version,
        "requires-dist": requires_dist,
    }
    if offer.requires_python:
        entry["requires-python"] = offer.requires_python
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in entry.items()]
    return f"[[dependency-metadata]]\n{''.join(lines)}\n"
