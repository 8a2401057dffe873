"""Decide which files may be shared: files that git tracks, except for caches and credentials."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from envbuilder.core import process
from envbuilder.core.errors import EnvbuilderError, InvalidError, escaped, secrets_in
from envbuilder.core.files import MARKER

LITTER = frozenset(
    {".git", ".hg", ".svn", ".envbuilder", "__pycache__", ".DS_Store", ".env", ".envrc"}
    | {".netrc", "_netrc", ".pypirc", "pip.conf", ".npmrc", ".yarnrc.yml", ".git-credentials"}
    | {".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".dockercfg", ".boto", ".s3cfg"}
    | {".pgpass", ".my.cnf", ".htpasswd", ".vault-token", ".terraformrc", ".kaggle", "kaggle.json"}
    | {"application_default_credentials.json"}
)
"""Names of files and folders that each machine creates for itself, or that contain credentials."""
_KEY_NAME = re.compile(
    r"id_(rsa|dsa|ecdsa|ed25519)(_sk)?|.+\.(key|p12|pfx|jks|keystore|ppk|kdbx)", re.IGNORECASE
)
_TEMPLATES = frozenset({".env.example", ".env.sample", ".env.template"})
_MARKS = ("pyvenv.cfg", "conda-meta", "CACHEDIR.TAG", MARKER)
"""Names of entries that identify a folder as an environment, a cache, or a folder of
envbuilder's."""


def is_litter(path: Path) -> bool:
    """Return whether a file is specific to one machine, or may contain a password or a key."""
    name = path.name
    if name in LITTER or _KEY_NAME.fullmatch(name) or name.endswith((".pyc", ".pyo")):
        return True
    if name.startswith(".env.") and name not in _TEMPLATES:
        return True
    is_folder = path.is_dir() and not path.is_symlink()
    return is_folder and any((path / mark).exists() for mark in _MARKS)


def require_public(name: str, content: bytes) -> None:
    """Raise `InvalidError` if a text that will be shared contains a credential.

    `name` is the name of the file in the message, which never shows the credential itself.
    """
    text = content.replace(b"\0", b"").decode("utf-8", "replace")  # also what was UTF-16
    for line, kind in secrets_in(text)[:1]:
        raise InvalidError(
            f"{escaped(name)}:{line}: would share a credential ({escaped(kind)}) with others",
            "Remove it. Keep logins in ~/.netrc, and other secrets in environment variables.",
        )


def git(folder: Path, *arguments: str, timeout: float = 10) -> str | None:
    """Run git on a clone and return its output, or None if there is no clone or git fails.

    git ignores the configuration of the user and the machine, downloads nothing and prompts for
    nothing. `timeout` is in seconds.
    """
    if not (folder / ".git").exists():
        return None
    sealed = {
        "PATH": os.environ.get("PATH", ""),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }
    with suppress(EnvbuilderError, OSError):
        done = process.run(("git", *arguments), cwd=folder, base=sealed, timeout=timeout)
        return done.stdout if done.returncode == 0 else None
    return None


def tracked(folder: Path) -> frozenset[str]:
    """Return the paths of the files that git tracks below a folder, relative to that folder.

    Another clone contains exactly these files. Return an empty set if the folder is not in a clone,
    or if git fails.
    """
    for top in (folder, *folder.parents):
        if (top / ".git").exists():
            listing = ("-c", "core.fsmonitor=false", "ls-files", "-z", "--recurse-submodules")
            printed = git(top, "-C", str(folder), *listing) or ""
            return frozenset(filter(None, printed.split("\0")))
    return frozenset()
