"""Which files of a project its image contains, and which never."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from envbuilder.core import files
from envbuilder.core.errors import InvalidError
from envbuilder.project import image_files
from envbuilder.project.image_files import Contents, ImageFile
from tests.support import repositories

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"


def lay(folder: Path, *names: str, text: str = "x") -> None:
    repositories.lay(folder, dict.fromkeys(names, text))


def collect(folder: Path, *entries: str) -> Contents:
    return image_files.collect(folder, [(e, f"yaml:{n}") for n, e in enumerate(entries, 1)])


def names(contents: Contents) -> list[str]:
    return [file.path for file in contents.files]


def test_files_and_folders_are_listed_once_in_order(tmp_path: Path) -> None:
    lay(tmp_path, "train.py", "src/b/c.py", "src/a.py", "src/b.py", "other.py")
    (tmp_path / "src/b.py").chmod(0o700)
    contents = collect(tmp_path, "train.py", "./src/", "src/b", "src/a.py")
    assert names(contents) == ["src/a.py", "src/b.py", "src/b/c.py", "train.py"]
    sha256 = hashlib.sha256(b"x").hexdigest()
    assert contents.files[1] == ImageFile(path="src/b.py", sha256=sha256, size=1, executable=True)
    assert not contents.files[0].executable
    assert contents.omitted == ()
    assert names(collect(tmp_path, ".")) == [
        "other.py",
        "src/a.py",
        "src/b.py",
        "src/b/c.py",
        "train.py",
    ]


def test_the_digest_follows_from_names_bytes_and_the_right_to_execute(tmp_path: Path) -> None:
    lay(tmp_path, "a", "b")
    first = collect(tmp_path, ".").digest
    os.utime(tmp_path / "a", (1, 1))
    (tmp_path / "a").chmod(0o600)
    assert collect(tmp_path, "b", "a").digest == first
    changed = set[str]()
    for change in (
        lambda: (tmp_path / "a").chmod(0o755),
        lambda: lay(tmp_path, "a", text="y"),
        lambda: lay(tmp_path, "c"),
        (tmp_path / "b").unlink,
    ):
        change()
        changed.add(collect(tmp_path, ".").digest)
    assert len(changed - {first}) == 4


LITTER = (
    ".git/config",
    "src/.hg/x",
    ".envbuilder/default/x",
    "src/__pycache__/x.pyc",
    "x.pyc",
    ".env",
    "src/.env.local",
    "keys/id_ed25519",
    ".netrc",
    "image/project/x",
    ".venv/bin/python",
    "cenv/bin/python",
    ".mypy_cache/x",
)


def test_secrets_and_litter_are_never_copied(tmp_path: Path) -> None:
    lay(tmp_path, "train.py", ".env.example", "keys/id_ed25519.pub", ".gitignore", *LITTER)
    lay(tmp_path, ".venv/pyvenv.cfg", "cenv/conda-meta/history", ".mypy_cache/CACHEDIR.TAG")
    lay(tmp_path, "deploy", "src/server.pem", text=KEY)
    files.mark_folder(tmp_path / "image/project")
    contents = collect(tmp_path, ".")
    assert names(contents) == [".env.example", ".gitignore", "keys/id_ed25519.pub", "train.py"]
    assert {*contents.omitted} == {
        ".git",
        "src/.hg",
        ".envbuilder",
        "src/__pycache__",
        "x.pyc",
        ".env",
        "src/.env.local",
        "keys/id_ed25519",
        ".netrc",
        "image/project",
        ".venv",
        "cenv",
        ".mypy_cache",
        "deploy",
        "src/server.pem",
    }
    # Whoever lists them does not get them, either.
    for name in (".env", ".git/config", ".venv", "deploy"):
        stated = collect(tmp_path, name)
        assert (stated.files, len(stated.omitted)) == ((), 1)


@pytest.mark.parametrize(
    "name",
    [
        ".envrc",
        ".git-credentials",
        "_netrc",
        ".pgpass",
        "kaggle.json",
        ".ssh/config",
        "server.p12",
        "a.jks",
        "a.key",
        "id_ed25519_sk",
        ".vault-token",
        ".docker/config.json",
    ],
)
def test_what_holds_logins_or_keys_is_never_copied(name: str, tmp_path: Path) -> None:
    lay(tmp_path, "train.py", "public.pem", "keys.py", name)
    assert names(collect(tmp_path, ".", name)) == ["keys.py", "public.pem", "train.py"]


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        KEY.replace("OPENSSH ", ""),
        KEY.replace("OPENSSH", "ENCRYPTED SIGSTORE"),
        "AGE-SECRET-KEY-1QQQ",
        "\n" * 5000 + KEY,
        "PuTTY-User-Key-File-3: ssh-ed25519",
        '{"private_key": "-----BEGIN PRIVATE KEY-----\\nx"}',
    ],
)
def test_private_keys_are_known_by_their_content(text: str, tmp_path: Path) -> None:
    lay(tmp_path, "deploy", text=text)
    lay(tmp_path, "check.py", text='assert "-----BEGIN PRIVATE KEY-----" not in text')
    assert names(collect(tmp_path, ".")) == ["check.py"]


@pytest.mark.parametrize(
    ("link", "target", "entry"),
    [
        ("settings", ".env", "settings"),
        ("remote", ".git/config", "remote"),
        ("tool", ".venv/bin/tool", "tool"),
        ("folder", ".git", "folder/config"),
        ("far", "remote", "far"),
    ],
)
def test_a_link_is_judged_by_where_it_leads(
    link: str, target: str, entry: str, tmp_path: Path
) -> None:
    lay(tmp_path, "train.py", ".env", ".git/config", ".venv/bin/tool", ".venv/pyvenv.cfg")
    (tmp_path / "remote").symlink_to(".git/config")
    if link != "remote":
        (tmp_path / link).symlink_to(target)
    contents = collect(tmp_path, "train.py", entry)
    assert (names(contents), contents.omitted) == (["train.py"], (entry,))


def test_links_stay_in_the_project(tmp_path: Path) -> None:
    project = tmp_path / "project"
    lay(project, "a.py", "src/b.py")
    lay(tmp_path, "secret")
    (project / "link.py").symlink_to("src/b.py")
    assert names(collect(project, "link.py")) == ["link.py"]
    assert collect(project, "link.py").files[0].sha256 == collect(project, "a.py").files[0].sha256
    for name, target, words in (
        ("out", "../secret", "'out' is outside the project"),
        ("absolute", "/etc/passwd", "'absolute' is outside the project"),
        ("nowhere", "none", "'nowhere' is a link to a missing file"),
        ("itself", "itself", "'itself' is a link to a missing file"),
        ("folder", "src", "'folder' is not a file"),
    ):
        (project / name).symlink_to(target)
        with pytest.raises(InvalidError, match=f"^yaml:2: files: {words}"):
            collect(project, "a.py", name)
        with pytest.raises(InvalidError, match=words):
            collect(project, ".")
        (project / name).unlink()


@pytest.mark.parametrize(
    ("entry", "words"),
    [("none", "'none' does not exist"), ("pipe", "is not a file"), ("a\nb", "normalized path")],
)
def test_what_is_no_file_is_refused_with_its_place(entry: str, words: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    lay(tmp_path, "a\nb")
    with pytest.raises(InvalidError, match=rf"yaml:1: files: .*{words}"):
        collect(tmp_path, entry)


def test_number_and_size_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path, "a", "b", "c")
    monkeypatch.setattr(image_files, "MOST_FILES", 2)
    with pytest.raises(InvalidError, match="more than 2 files"):
        collect(tmp_path, ".")
    monkeypatch.setattr(image_files, "MOST_FILES", 3)
    monkeypatch.setattr(image_files, "MOST_BYTES", 2)
    with pytest.raises(InvalidError, match="the image would be larger than 0 KiB") as caught:
        collect(tmp_path, ".")
    assert "volumes:" in caught.value.hint
    lay(tmp_path, "/".join(["d"] * 50))
    with pytest.raises(InvalidError, match="nested too deeply"):
        collect(tmp_path, "d")
