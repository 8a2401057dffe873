"""Repositories become sources by commit: git reads them from a server of the test's own."""

from __future__ import annotations

import os
import subprocess
from base64 import b64encode
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.core.decoding import convert
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError
from envbuilder.core.settings import Settings
from envbuilder.core.types import SourceLocation
from envbuilder.packages.sources import source, source_locker
from envbuilder.profiles.lock import File, Recipe
from tests.integration.test_sources import build, settings
from tests.support import sources
from tests.support.http_server import Files, serving
from tests.support.repositories import lay


class Repository:
    """A repository that tests change, and its URL."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file://{folder}"
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch", "main")

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=x", "-c", "user.email=x@y.example", "-c", "core.hooksPath=")
        done = subprocess.run(
            ["git", *identity, "-c", "protocol.file.allow=always", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"},
        )
        return done.stdout.strip()

    def commit(self, **files: str) -> str:
        """Commit files, given by name without a suffix, and return the commit."""
        lay(self.folder, {f"{name}.py": text for name, text in files.items()})
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "x")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture
def found(tmp_path: Path) -> Settings:
    return settings(tmp_path)


def read(text: str, found: Settings, folder: Path) -> tuple[Recipe, dict[str, str]]:
    """Return the recipe of a location, and the files of the source that is built."""
    recipe, _ = source.of_git(source.located(text), found)
    built = source.unpack(recipe, found, folder / f"out-{len([*folder.iterdir()])}")
    paths = (path for path in built.rglob("*") if path.is_file())
    return recipe, {str(path.relative_to(built)): path.read_text() for path in paths}


def test_references_become_commits(repository: Repository, found: Settings, tmp_path: Path) -> None:
    first = repository.commit(a="1")
    repository.git("tag", "v1.0")
    repository.git("checkout", "--quiet", "-b", "feature/x")
    second = repository.commit(a="2")
    repository.git("checkout", "--quiet", "main")
    third = repository.commit(a="3")
    for reference, commit, text in (
        ("", third, "3"),
        ("@main", third, "3"),
        ("@v1.0", first, "1"),
        ("@feature/x", second, "2"),
        (f"@{second}", second, "2"),
        (f"@{first[:9]}", first, "1"),
    ):
        recipe, files = read(f"git+{repository.url}{reference}", found, tmp_path)
        assert (recipe.commit, files, recipe.location) == (commit, {"a.py": text}, repository.url)
    assert source.of_git(source.located(f"git+{repository.url}"), found)[1] == "1.0"
    with pytest.raises(InvalidError, match="has no branch, tag or commit 'gone'"):
        read(f"git+{repository.url}@gone", found, tmp_path)


def test_a_branch_that_moved_and_a_rewritten_history(
    repository: Repository, found: Settings, tmp_path: Path
) -> None:
    repository.commit(a="1")
    recipe, _ = read(f"git+{repository.url}@main", found, tmp_path)
    repository.commit(a="2")
    elsewhere = replace(found, cache_dir=tmp_path / "elsewhere")
    source.obtain("tiny", recipe, elsewhere)
    assert source.unpack(recipe, elsewhere, tmp_path / "o").joinpath("a.py").read_text() == "1"

    repository.git("checkout", "--quiet", "--orphan", "new")
    repository.commit(a="4")
    repository.git("branch", "--quiet", "-D", "main")
    repository.git("reflog", "expire", "--expire=now", "--all")
    repository.git("gc", "--quiet", "--prune=now")
    source.obtain("tiny", recipe, elsewhere)  # it is in the store
    with pytest.raises(BuildError, match="history was rewritten"):
        source.obtain("tiny", recipe, replace(found, cache_dir=tmp_path / "third"))
    wrong = replace(recipe, commit=repository.git("rev-parse", "HEAD"), sha256="0" * 64)
    with pytest.raises(BuildError, match="differ from the locked ones"):
        source.obtain("tiny", wrong, found)


def test_a_locked_commit_stays_until_it_is_gone(
    repository: Repository, found: Settings, tmp_path: Path
) -> None:
    """Also where the source is not in the store yet; where it is, the repository is not asked."""
    repository.commit(a="1")
    location = source.located(f"git+{repository.url}@main")
    recipe, _ = source.of_git(location, found)
    assert recipe.reference == "main"
    locked = File(
        kind="source", name="tiny", version="1.0", file="tiny.tar", sha256=recipe.sha256, size=None,
        source="built", provenance="read", by="x", recipe=replace(recipe, with_framework=True),
    )  # fmt: skip
    repository.commit(a="2")
    elsewhere = replace(found, cache_dir=tmp_path / "elsewhere")
    assert source_locker._named(location, locked, elsewhere) == (recipe, "")
    assert source_locker._named(location, locked, found) == (recipe, "1.0")
    assert source_locker._named(location, None, found)[0].commit != recipe.commit

    repository.git("checkout", "--quiet", "--orphan", "new")
    last = repository.commit(a="3")
    repository.git("branch", "--quiet", "--move", "--force", "main")
    repository.git("reflog", "expire", "--expire=now", "--all")
    repository.git("gc", "--quiet", "--prune=now")
    third = replace(found, cache_dir=tmp_path / "third")
    assert source_locker._named(location, locked, third)[0].commit == last
    repository.folder.rename(tmp_path / "away")
    assert source_locker._named(location, locked, found)[0] == recipe


def test_submodules_and_subdirectories(
    repository: Repository, found: Settings, tmp_path: Path
) -> None:
    inner = Repository(tmp_path / "inner")
    inner.commit(b="1")
    repository.git("submodule", "--quiet", "add", "../inner", "sub/inner")
    repository.commit(a="1")
    inner.commit(b="2")
    text = f"git+{repository.url}#subdirectory=sub"
    recipe, files = read(text, found, tmp_path)
    assert files == {"inner/b.py": "1"}
    assert recipe.subdirectory == "sub"


def test_a_server_over_http(repository: Repository, found: Settings, tmp_path: Path) -> None:
    repository.commit(a="1")
    repository.git("update-server-info")
    handler = partial(Files, directory=str(repository.folder / ".git"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, serving(server):
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        assert read(f"git+{url}", found, tmp_path)[1] == {"a.py": "1"}


SECRET = "a-secret-token"


def test_a_login_is_that_of_the_users_credential_helper(
    repository: Repository, found: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked while fetching, and is in nothing that is kept."""
    repository.commit(a="1")
    repository.git("update-server-info")
    login = "Basic " + b64encode(f"x:{SECRET}".encode()).decode()

    class Private(Files):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") == login:
                return super().do_GET()
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            return self.end_headers()

    handler = partial(Private, directory=str(repository.folder / ".git"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, serving(server):
        text = f"git+http://127.0.0.1:{server.server_address[1]}/"
        with pytest.raises(BuildError, match="git clone failed") as caught:
            read(text, found, tmp_path)
        assert "credential helper" in caught.value.hint
        helper = f"!printf 'username=x\\npassword={SECRET}\\n' #"
        lay(tmp_path / "home", {".gitconfig": f'[credential]\nhelper = "{helper}"\n'})
        recipe, files = read(text, found, tmp_path)
    assert files == {"a.py": "1"}
    assert SECRET not in str(recipe)
    kept = b"".join(p.read_bytes() for p in found.cache_dir.rglob("*") if p.is_file())
    assert SECRET.encode() not in kept


def test_a_host_that_cannot_be_reached_is_no_matter_of_logins(
    found: Settings, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match="git clone failed") as caught:
        read("git+http://127.0.0.1:9/x", found, tmp_path)
    assert caught.value.hint == "Check the network: the repository's host cannot be reached."


def test_a_repository_over_ssh(
    repository: Repository, found: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own ssh is run; the lock has its URL alone, without what it took to log in."""
    commit = repository.commit(a="1")
    ran = tmp_path / "ran"
    program = lay(
        tmp_path, {"ssh": f'#!/bin/sh\nprintf "%s\\n" "$*" "$SSH_AUTH_SOCK" >> {ran}\n'
                   'for last; do :; done\nexec sh -c "$last"\n'}
    ) / "ssh"  # fmt: skip
    program.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", f"{program} -i {SECRET}")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/the/agent")
    url = f"ssh://git@host.example{repository.folder}"
    recipe, files = read(f"git+{url}@main", found, tmp_path)
    assert (recipe.location, recipe.commit, files) == (url, commit, {"a.py": "1"})
    assert convert(recipe.location, SourceLocation) == url
    assert SECRET not in str(recipe)
    called = ran.read_text()
    assert "git@host.example git-upload-pack" in called
    assert "/the/agent" in called


def test_nothing_of_the_user_or_the_repository_runs(
    repository: Repository, found: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither hooks nor filters, in whatever place git would find them."""
    (repository.folder / ".gitattributes").write_text("*.py filter=evil\n")
    repository.commit(a="1")
    ran = tmp_path / "ran"
    home = tmp_path / "home"
    evil = f"touch {ran}"
    lay(home, {".gitconfig": f'[filter "evil"]\nsmudge = {evil}\n[core]\nhooksPath = {home}\n'})
    hook = lay(home, {"post-checkout": f"#!/bin/sh\n{evil}\n"}) / "post-checkout"
    hook.chmod(0o755)
    for name, value in {
        "HOME": str(home),
        "GIT_SSH_COMMAND": evil,
        "GIT_EXTERNAL_DIFF": evil,
    }.items():
        monkeypatch.setenv(name, value)
    assert read(f"git+{repository.url}", found, tmp_path)[1]["a.py"] == "1"
    assert not ran.exists()


@pytest.mark.parametrize(
    "location",
    [
        "git+ssh://-oProxyCommand=x/y",
        "git+http://host.example/x",
        "git+ext::sh -c touch% x",
        "git+/a/path",
        "git+file:///nowhere/at/all",
        "git+--upload-pack=x/y",
    ],
)
def test_other_transports_are_refused(found: Settings, location: str) -> None:
    with pytest.raises(EnvbuilderError):
        source.of_git(source.located(location), found)


def test_a_wheel_of_a_repository(repository: Repository, tmp_path: Path) -> None:
    lay(repository.folder / "python", sources.files())
    commit = repository.commit(a="1")
    file, _ = build(tmp_path, f"git+{repository.url}@main#subdirectory=python")
    assert file.recipe
    assert (file.recipe.commit, file.recipe.subdirectory) == (commit, "python")


def test_a_folder_of_the_project_is_what_git_tracks_of_it(
    repository: Repository, found: Settings, tmp_path: Path
) -> None:
    lay(repository.folder, {".gitignore": ".env\nbuild/\n", "ops/pyproject.toml": "", "y.py": ""})
    repository.commit(**{"ops/x": "x = 1\n", "ops/sub/a name": "y = 2\n"})
    lay(
        repository.folder, {"ops/.env": "T=1", "ops/build/lib/x.py": "old", "ops/notes.txt": "mine"}
    )
    repository.git("clone", "--quiet", ".", str(tmp_path / "clone"))
    # Nobody's program is run.
    repository.git("config", "core.fsmonitor", f"touch {tmp_path / 'ran'}; false")
    recipes = [
        source.of_path(source.located("./ops"), replace(found, project=project))
        for project in (repository.folder, tmp_path / "clone")
    ]
    assert recipes[0] == recipes[1]
    built = source.unpack(recipes[0], found, tmp_path / "out")
    files = {path.relative_to(built).as_posix() for path in built.rglob("*") if path.is_file()}
    assert files == {"pyproject.toml", "x.py", "sub/a name.py"}
    assert not (tmp_path / "ran").exists()
    (repository.folder / "ops/x.py").write_text("x = 3\n")
    edited = source.of_path(source.located("./ops"), replace(found, project=repository.folder))
    assert edited.sha256 != recipes[0].sha256
