"""Who we are for a registry: docker's and podman's files, and credential helpers."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.containers.registry import credentials
from envbuilder.containers.registry.credentials import Credential
from envbuilder.core import process
from envbuilder.core.errors import InvalidError, ToolError

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "a:secret:with:colons"
AUTH = base64.b64encode(f"me:{SECRET}".encode()).decode()
ME = Credential(user="me", secret=SECRET)


def docker(folder: Path, content: Any) -> dict[str, str]:
    """An environment with this as docker's configuration."""
    folder.mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "config.json").write_text(text)
    return {"DOCKER_CONFIG": str(folder), "HOME": str(folder)}


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A credential helper: [answer, exit code]; what it was asked is appended."""
    state: list[Any] = ["", 0]

    def run(argv: list[str], **options: Any) -> process.Completed:
        state.append((argv, options["stdin"]))
        return process.Completed(
            argv=tuple(argv), returncode=state[1], stdout=state[0], stderr="", seconds=0.1
        )

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(process, "which", lambda name: f"/bin/{name}")
    return state


@pytest.mark.parametrize(
    ("key", "host"),
    [
        ("ghcr.io", "ghcr.io"),
        ("https://ghcr.io", "ghcr.io"),
        ("https://ghcr.io/v1/", "ghcr.io"),
        ("https://ghcr.io/v2/", "ghcr.io"),
        ("127.0.0.1:5000", "127.0.0.1:5000"),
        ("https://index.docker.io/v1/", "docker.io"),
        ("docker.io", "docker.io"),
    ],
)
def test_what_docker_login_left(tmp_path: Path, key: str, host: str) -> None:
    environ = docker(tmp_path, {"auths": {key: {"auth": AUTH}, "other.example": {}}})
    assert credentials.find(host, environ) == ME
    assert credentials.find("elsewhere.example", environ) is None
    assert credentials.find("other.example", environ) is None


def test_one_host_s_password_is_not_another_s(tmp_path: Path) -> None:
    environ = docker(tmp_path, {"auths": {"ghcr.io": {"auth": AUTH}}})
    for other in ("ghcr.io.evil.example", "evil.example", "ghcr.io:444", "x.ghcr.io"):
        assert credentials.find(other, environ) is None


@pytest.mark.parametrize(
    ("repository", "user"),
    [
        ("org/image", "image"),
        ("org/image/part", "image"),
        ("org/other", "org"),
        ("organisation/image", "host"),
        ("", "host"),
    ],
)
def test_a_login_of_a_namespace_goes_before_the_hosts(
    repository: str, user: str, tmp_path: Path, helper: list[Any]
) -> None:
    keys = {"quay.io": "host", "quay.io/org": "org", "quay.io/org/image": "image"}
    auths = {
        key: {"auth": base64.b64encode(f"{name}:secret".encode()).decode()}
        for key, name in keys.items()
    }
    helper[:2] = ["credentials not found", 1]
    environ = docker(tmp_path, {"auths": auths, "credsStore": "store"})
    credential = credentials.find("quay.io", environ, repository)
    assert credential == Credential(user=user, secret="secret")
    assert credentials.find("evil.example", environ, "quay.io/org") is None


def test_an_identity_token_goes_first(tmp_path: Path) -> None:
    auths = {"x.example": {"auth": AUTH, "identitytoken": "tok"}}
    found = credentials.find("x.example", docker(tmp_path, {"auths": auths}))
    assert found == Credential(user="me", secret="tok", is_token=True)


def test_podman_s_file_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "containers").mkdir()
    path = tmp_path / "containers" / "auth.json"
    path.write_text(json.dumps({"auths": {"x.example": {"auth": AUTH}}}))
    home = {"HOME": str(tmp_path / "empty")}
    assert credentials.find("x.example", {**home, "XDG_RUNTIME_DIR": str(tmp_path)}) == ME
    assert credentials.find("x.example", {**home, "XDG_CONFIG_HOME": str(tmp_path)}) == ME
    assert credentials.find("x.example", {**home, "REGISTRY_AUTH_FILE": str(path)}) == ME
    assert credentials.find("x.example", home) is None


def test_docker_s_own_nulls_are_no_fault(tmp_path: Path) -> None:
    content = {"auths": {"x.example": {"auth": None}}, "credHelpers": None, "credsStore": None}
    assert credentials.find("x.example", docker(tmp_path, content)) is None
    assert credentials.find("x.example", docker(tmp_path, {"auths": None, "x": [1]})) is None
    assert credentials.find("x.example", docker(tmp_path, "")) is None


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"auths": []}',
        '{"auths": {"x.example": {"auth": "!!!"}}}',
        '{"auths": {"x.example": {"auth": "c2VjcmV0"}}}',
        '{"auths": {"x.example": {"auth": "/w=="}}}',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_named_without_its_content(tmp_path: Path, content: str) -> None:
    with pytest.raises(InvalidError) as caught:
        credentials.find("x.example", docker(tmp_path, content))
    assert "config.json" in caught.value.message
    assert "c2VjcmV0" not in caught.value.message
    assert "secret" not in caught.value.message


def test_a_helper_is_asked_for_its_registry(tmp_path: Path, helper: list[Any]) -> None:
    helper[0] = json.dumps({"ServerURL": "x", "Username": "me", "Secret": SECRET})
    environ = docker(
        tmp_path,
        {"credHelpers": {"x.example": "one"}, "credsStore": "all", "auths": {"x.example": {}}},
    )
    assert credentials.find("x.example", environ) == ME
    assert credentials.find("docker.io", environ) == ME
    assert helper[2:] == [
        (["docker-credential-one", "get"], "x.example\n"),
        (["docker-credential-all", "get"], "https://index.docker.io/v1/\n"),
    ]


def test_a_helper_s_identity_token(tmp_path: Path, helper: list[Any]) -> None:
    helper[0] = json.dumps({"Username": "<token>", "Secret": "tok"})
    found = credentials.find("x.example", docker(tmp_path, {"credsStore": "all"}))
    assert found is not None
    assert found.is_token


def test_a_helper_that_knows_nobody(tmp_path: Path, helper: list[Any]) -> None:
    helper[:2] = ["credentials not found in native keychain\n", 1]
    content = {"credsStore": "all", "auths": {"x.example": {"auth": AUTH}}}
    assert credentials.find("x.example", docker(tmp_path, content)) == ME


@pytest.mark.parametrize(
    ("answer", "code"), [("locked: very-secret", 1), ("very-secret", 0), ('{"Secret": 1}', 0)]
)
def test_a_helper_that_fails_is_named_and_not_quoted(
    tmp_path: Path, helper: list[Any], answer: str, code: int
) -> None:
    helper[:2] = [answer, code]
    with pytest.raises(ToolError, match=r"docker-credential-all: no answer") as caught:
        credentials.find("x.example", docker(tmp_path, {"credsStore": "all"}))
    assert "very-secret" not in caught.value.message + caught.value.hint


def test_a_helper_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda name: None)
    with pytest.raises(ToolError, match=r"docker-credential-gone: not found"):
        credentials.find("x.example", docker(tmp_path, {"credsStore": "gone"}))


@pytest.mark.parametrize("name", ["../evil", "a b", "-x", "x;y", "x/y"])
def test_a_helper_s_name_is_a_name(tmp_path: Path, helper: list[Any], name: str) -> None:
    with pytest.raises(InvalidError, match="is not the name of a credential helper"):
        credentials.find("x.example", docker(tmp_path, {"credsStore": name}))
    assert helper[2:] == []


def test_a_credential_prints_nothing() -> None:
    assert SECRET not in repr(ME)
    assert SECRET not in str([ME])
    assert SECRET not in f"{ME}"
