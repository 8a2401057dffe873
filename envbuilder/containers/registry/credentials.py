"""Registry credentials stored by `docker login` or `podman login`; read, never written.

A secret is looked up when a registry demands it, kept in memory, and never part of any output.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from envbuilder.containers.oci.reference import DEFAULT_HOST
from envbuilder.core import decoding, process
from envbuilder.core.errors import InvalidError, ToolError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FILE_LIMIT = 1 << 20
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HELPER_SECONDS = 60.0
_DOCKER_HUB = "https://index.docker.io/v1/"
_TOKEN_USER = "<token>"  # noqa: S105 (the user name that helpers give an identity token)


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


class _Answer(Struct, frozen=True, rename="pascal"):
    username: str
    secret: str


def find(
    host: str, environ: Mapping[str, str] | None = None, repository: str = ""
) -> Credential | None:
    """Return the credential for a repository of a registry; None if there is no login for it.

    Of a file's logins, the one of the longest namespace that holds the repository is taken, as
    podman does. Raise `InvalidError` for a damaged file, `ToolError` for a credential helper that
    is configured but does not work.
    """
    for path in _files(os.environ if environ is None else environ):
        found = _in_file(path, host, repository)
        if found is not None:
            return found
    return None


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
    try:
        with path.open("rb") as stream:
            data = stream.read(_FILE_LIMIT)
        read = decoding.from_json(data or b"{}", _File)
    except OSError as error:
        raise InvalidError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The file holds secrets: messages name the problem, never the content.
        raise InvalidError(
            f"{path}: not a Docker configuration: {error}", "Log in again: docker login"
        ) from None
    keys = _keys(host)
    helpers, entries = read.cred_helpers or {}, read.auths or {}
    parts = repository.split("/") if repository else []
    namespaces = ("/".join((host, *parts[:depth])) for depth in range(len(parts), 0, -1))
    entry = next((entries[n] for n in namespaces if n in entries), None)
    helper = next((helpers[k] for k in keys if k in helpers), read.creds_store)
    if helper and entry is None:
        found = _ask(helper, keys[0], path)
        if found is not None:
            return found
    entry = entry or next((entries[k] for k in keys if k in entries), None)
    return None if entry is None else _read_entry(entry, path, host)


def _keys(host: str) -> tuple[str, ...]:
    """Return the keys of a registry in the files, the usual one first."""
    if host == DEFAULT_HOST:
        return (_DOCKER_HUB, DEFAULT_HOST, "index.docker.io")
    schemes = (f"{scheme}://{host}{path}" for scheme in ("https", "http") for path in ("", "/"))
    return (host, *schemes, f"https://{host}/v1/", f"https://{host}/v2/")


def _read_entry(entry: _Entry, path: Path, host: str) -> Credential | None:
    user, secret = entry.username or "", entry.password or ""
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


def _ask(helper: str, server: str, path: Path) -> Credential | None:
    """Return the credential from a helper; its output is not quoted, as it may hold a secret."""
    if not _HELPER.fullmatch(helper):
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
        answer = None if done.returncode else decoding.from_json(done.stdout, _Answer)
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
