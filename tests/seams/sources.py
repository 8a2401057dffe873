"""Source trees that build themselves, and a git repository with commits that move."""

from __future__ import annotations

import subprocess
from pathlib import Path

BACKEND = """\
import os, re, zipfile

def get_requires_for_build_wheel(settings=None):
    return []

def build_wheel(folder, settings=None, metadata=None):
    text = open("pyproject.toml").read()
    name = re.search(r'^name = "(.*)"', text, re.M)[1]
    version = re.search(r'^version = "(.*)"', text, re.M)[1]
    module = name.replace("-", "_")
    file = f"{module}-{version}-py3-none-any.whl"
    info = f"{module}-{version}.dist-info"
    files = {
        f"{module}/__init__.py": open(f"{module}/__init__.py").read(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    record = "".join(f"{path},,\\n" for path in files) + f"{info}/RECORD,,\\n"
    with zipfile.ZipFile(os.path.join(folder, file), "w") as archive:
        for path, content in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, content)
    return file
"""
"""A build backend that needs nothing."""
BUILD_SYSTEM = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def write_source(folder: Path, name: str, version: str, value: str) -> None:
    """Write a package; its module knows its version and a value."""
    module = folder / name.replace("-", "_")
    module.mkdir(parents=True, exist_ok=True)
    text = f'[project]\nname = "{name}"\nversion = "{version}"\n{BUILD_SYSTEM}'
    (folder / "pyproject.toml").write_text(text)
    (folder / "backend.py").write_text(BACKEND)
    (module / "__init__.py").write_text(f"__version__ = {version!r}\nVALUE = {value!r}\n")


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder; return what it prints."""
    identity = ("-c", "user.email=seams@example.org", "-c", "user.name=Seams")
    argv = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


class Repository:
    """A git repository of one package: tags v1 and v2, and `main`, which moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"git+file://{folder}"
        self.commits = 0
        if not folder.exists():
            folder.mkdir(parents=True)
            git(folder, "init", "-q", "-b", "main")
            for tag in ("v1", "v2"):
                self.commit()
                git(folder, "tag", tag)
            self.commit()

    def commit(self) -> None:
        """Add a commit to `main`: versions 0.1, 0.2 and from then on 0.3 with another value."""
        if not self.folder.exists() and self.commits:
            return
        self.commits += 1
        version = f"0.{min(self.commits, 3)}"
        write_source(self.folder, self.folder.name, version, f"commit {self.commits}")
        git(self.folder, "add", "-A")
        git(self.folder, "commit", "-q", "-m", f"commit {self.commits}")

    def leave(self) -> None:
        """Take the repository away, or bring it back."""
        away = self.folder.with_name(f"{self.folder.name}.away")
        if self.folder.exists():
            self.folder.rename(away)
        elif away.exists():
            away.rename(self.folder)
