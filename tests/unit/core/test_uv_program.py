"""uv is started in a private folder, and gets no more of its caller's settings than documented."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from envbuilder.core import process
from envbuilder.core.errors import ToolError

LET_IN = {
    "UV_DEFAULT_INDEX": "https://me:x@index.example/simple",
    "UV_INDEX_LAB_USERNAME": "me",
    "UV_INDEX_LAB_PASSWORD": "secret",
    "UV_HTTP_TIMEOUT": "9",
    "HTTPS_PROXY": "http://proxy.example",
    "SSL_CERT_FILE": "/etc/ssl/own.pem",
    "NETRC": "/home/me/.netrc",
    "LD_LIBRARY_PATH": "/opt/python/lib",
}
KEPT_OUT = (
    "UV_CONSTRAINT",
    "UV_OVERRIDE",
    "UV_BUILD_CONSTRAINT",
    "UV_EXCLUDE_NEWER",
    "UV_PYTHON",
    "UV_NO_BINARY",
    "UV_ONLY_BINARY",
    "UV_PRERELEASE",
    "UV_RESOLUTION",
    "UV_TORCH_BACKEND",
    "UV_WORKING_DIR",
    "UV_PROJECT",
    "UV_VENV_SEED",
    "UV_COMPILE_BYTECODE",
    "UV_CACHE_DIR",
    "UV_INDEX_LAB_TOKEN",
    "UV_INTERNAL__PARENT_INTERPRETER",
    "UV_NO_VERIFY_HASHES",
    "PIP_INDEX_URL",
    "PIP_NO_BINARY",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "COLUMNS",
)


def test_only_documented_settings_are_let_in() -> None:
    assert process.uv_environment({**LET_IN, **dict.fromkeys(KEPT_OUT, "x")}) == LET_IN


class Started:
    """What a program was started with."""

    def run(self, argv: Any, **options: Any) -> process.Completed:
        self.options = options
        self.settings = (options["cwd"] / "uv.toml").read_text()
        return process.Completed(argv=argv, returncode=0, stdout="", stderr="", seconds=0)


def test_the_working_folder_is_private_and_has_settings_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OVERRIDE", "theirs.txt")
    started = Started()
    process.run_uv(["uv"], runner=started.run, env={"UV_CACHE_DIR": "/cache"}, timeout=3)
    folder = started.options["cwd"]
    assert (started.settings, started.options["timeout"]) == ("", 3)
    assert not folder.exists()
    assert started.options["env"] == {"UV_CACHE_DIR": "/cache", "TMPDIR": str(folder)}
    assert "UV_OVERRIDE" not in started.options["base"]
    (tmp_path / "uv.toml").write_text("offline = true\n")
    process.run_uv(["uv"], runner=started.run, folder=tmp_path)
    assert (started.settings, started.options["cwd"]) == ("offline = true\n", tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "absolute"),
    [
        ("UV_FIND_LINKS", "wheels,https://e.example/all", "{here}/wheels,https://e.example/all"),
        ("UV_INDEX", "lab=simple https://e.example/a=b", "lab={here}/simple https://e.example/a=b"),
        ("UV_CONFIG_FILE", "uv.toml", "{here}/uv.toml"),
        ("UV_CONFIG_FILE", "/a=b/uv.toml", "/a=b/uv.toml"),
        ("SSL_CERT_DIR", "/a:b", "/a:{here}/b"),
        ("UV_DEFAULT_INDEX", "", ""),
        ("UV_KEYRING_PROVIDER", "subprocess", "subprocess"),
    ],
)
def test_paths_stay_those_of_the_callers_folder(
    name: str, value: str, absolute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert process.uv_environment({name: value}) == {name: absolute.format(here=tmp_path)}


@pytest.mark.parametrize("package", [None, types.ModuleType("uv")], ids=["none", "half imported"])
def test_without_uv_what_looks_things_up_says_what_to_do(
    package: types.ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uv", package)
    with pytest.raises(ToolError, match="uv: not found") as caught:
        process.uv_path()
    assert (caught.value.exit_code, caught.value.hint) == (4, "Run: pip install uv")
