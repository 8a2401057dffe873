"""No credential gets out of the commands that need no other program; see also the test of the
same name in tests/integration/network, which runs all of them against a loopback index."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from envbuilder import cli
from envbuilder.core import http, process
from envbuilder.core.errors import ToolError
from tests.support.command_line import FILE, Command

CANARY = "c4nary"
URLS = {
    "password": f"https://me:{CANARY}@index.example/simple",
    "user": f"https://{CANARY}@index.example:8443/simple",
    "escaped": f"https://me:%40{CANARY}%2F@index.example/simple",
    "query": f"https://index.example/simple?token={CANARY}",
    "fragment": f"https://index.example/simple#{CANARY}",
    "conda": f"https://index.example/t/{CANARY}/simple",
    "bad port": f"https://me:{CANARY}@index.example:port/simple",
    "no host": f"https://me:{CANARY}@/simple",
    "bracket": f"https://me:{CANARY}@[::1/simple",
    "slash": f"https://me:x/{CANARY}@index.example/simple",
    "space": f"https://me:{CANARY} @index.example/simple",
    "scheme": f"ftp://me:{CANARY}@index.example/simple",
}


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "run", Mock(side_effect=ToolError("not in a unit test")))
    monkeypatch.setenv("SOME_PASSWORD", CANARY)


def require_clean(folder: Path, arguments: tuple[str, ...], *texts: str) -> None:
    for text in texts:
        assert CANARY not in text, arguments
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "envbuilder.yaml":
            assert CANARY.encode() not in path.read_bytes(), (arguments, path)


@pytest.mark.parametrize(
    ("where", "form"),
    [
        *(("variable", form) for form in URLS),
        *((where, form) for where in ("file", "pip", "proxy") for form in ("password", "slash")),
    ],
)
def test_no_credential_gets_out(
    where: str,
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = URLS[form]
    if where == "variable":
        monkeypatch.setenv("ENVBUILDER_INDEX_PYTORCH_CPU", url)
        monkeypatch.setenv("ENVBUILDER_INDEX_DEBIAN", url)
    elif where == "file":
        text = json.dumps({"indexes": {"pytorch-cpu": url, "debian-security": url}})
        FILE.write_text(text)
    elif where == "pip":
        monkeypatch.setenv("PIP_INDEX_URL", url)
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", url)
        monkeypatch.setenv("PIP_FIND_LINKS", url)
    else:
        monkeypatch.setenv("PIP_PROXY", url)
        monkeypatch.setenv("https_proxy", url)
    commands = [
        ("render", "--profile", "cpu", "--target", "requirements"),
        ("render", "--profile", "cpu", "--target", "conda"),
        ("render", "--profile", "cpu", "-o", str(tmp_path / "image")),
        ("build", "--profile", "cpu", "--backend", "venv", "--dry-run", "--json"),
        ("build", "--profile", "cpu", "--backend", "venv"),
    ]
    for arguments in commands:
        cli._run([*arguments, "--verbose"])
        require_clean(tmp_path, arguments, *capsys.readouterr())


@pytest.mark.parametrize("form", [f for f in URLS if f not in {"fragment", "space"}])
def test_no_reason_of_a_failed_request_holds_a_credential(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(http, "ATTEMPTS", 1)
    url = URLS[form].replace("index.example", "127.0.0.1").replace(":8443", ":9")
    try:
        http.download(http.open_session(), url, Path("part"), lambda size: None, limit=1)
    except Exception as error:
        cli._complain(*cli._unforeseen(error))
    assert CANARY not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("target", "note"),
    [("requirements", "the index 'pytorch-cpu' wants"), ("dockerfile", "the secret `netrc`")],
)
def test_a_file_says_that_credentials_are_wanted(
    target: str, note: str, monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    arguments = ("render", "--profile", "cpu", "--target", target)
    assert note not in envbuilder(*arguments).out
    monkeypatch.setenv("ENVBUILDER_INDEX_PYTORCH_CPU", URLS["password"])
    text = envbuilder(*arguments).out
    assert note in text
    assert "https://index.example/simple" in text


def test_an_archive_with_a_login_is_given_as_a_folder(
    monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    monkeypatch.setenv("ENVBUILDER_INDEX_DEBIAN", URLS["password"])
    text = envbuilder("render", "--profile", "cpu", "--target", "dockerfile").out
    assert "'debian' wants credentials: give its files with --build-context debs=DIR" in text
    assert "ARG DEBIAN_MIRROR=https://index.example/simple\n" in text
