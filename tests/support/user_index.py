"""uv with the user's own package index."""

from __future__ import annotations

import os
import subprocess

import requests

from envbuilder.core import process
from envbuilder.core.settings import load as load_settings
from envbuilder.packages import fetch as origins
from envbuilder.packages.python import indexes
from tests.conftest import succeeded


def refused(status: int) -> requests.HTTPError:
    """Return what the reading of a page raises if the index answers with a status."""
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(response=response)


def uv(*arguments: str, environment: dict[str, str]) -> None:
    """Run uv with the user's own index; it must succeed."""
    succeeded(ask_uv(*arguments, environment=environment))


def ask_uv(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    found = load_settings({**os.environ, **environment})
    return subprocess.run(
        [process.uv_path(), *arguments],
        env={
            **os.environ,
            **environment,
            **origins.uv_variables(indexes.DEFAULT, found),
            "UV_CACHE_DIR": str(found.cache_dir / "uv-tests"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
