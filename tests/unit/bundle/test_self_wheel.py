"""envbuilder in a bundle: the wheel of its own installation, and the locked uv."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuilder.bundle import self_wheel as own
from envbuilder.core.errors import BuildError
from envbuilder.core.settings import Settings
from envbuilder.packages.python import uv as uv_compile
from tests.support.bundles import QUIET


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder as an installer leaves it, with an envbuilder of two modules."""
    folder = tmp_path / "site-packages"
    files = {
        "envbuilder/__init__.py": b"x = 1\n",
        "envbuilder/templates/a.j2": b"{{ x }}\n",
        "envbuilder_ml-9.dist-info/METADATA": b"Metadata-Version: 2.1\nName: envbuilder-ml\n"
        b"Version: 9\n"
        b"Requires-Python: >=3.11\nRequires-Dist: click>=8\n"
        b"Requires-Dist: pytest; extra == 'test'\n",
        "envbuilder_ml-9.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n",
        "envbuilder_ml-9.dist-info/INSTALLER": b"pip\n",
    }
    lines = []
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        lines.append(f"{name},sha256={record(content)},{len(content)}")
    lines += ["../../bin/envbuilder,sha256=x,1", "envbuilder/__pycache__/a.pyc,,"]
    (folder / "envbuilder_ml-9.dist-info/RECORD").write_text("\n".join(lines) + "\n")
    return folder


def record(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def distribution(folder: Path) -> metadata.Distribution:
    return metadata.Distribution.at(folder / "envbuilder_ml-9.dist-info")


def test_an_installation_becomes_a_wheel_again(installed: Path) -> None:
    wheel = own._repacked(distribution(installed))
    assert wheel == own._repacked(distribution(installed))
    assert wheel.file == "envbuilder_ml-9-py3-none-any.whl"
    with zipfile.ZipFile(io.BytesIO(wheel.content)) as archive:
        names = archive.namelist()
        listed = archive.read("envbuilder_ml-9.dist-info/RECORD").decode()
    assert names == sorted(names)
    assert "envbuilder/templates/a.j2" in names
    assert not [n for n in names if "INSTALLER" in n or "bin" in n or "pyc" in n]
    for n in names:
        assert n in listed
    assert own.requirements(wheel) == (("click>=8",), ">=3.11")
    assert own.requirements(wheel, "test")[0] == ("click>=8", "pytest")
    assert [own.accepts(wheel, python) for python in ("3.9", "3.11")] == [False, True]


def test_a_changed_installation_is_not_passed_on(installed: Path) -> None:
    (installed / "envbuilder/__init__.py").write_text("x = 2\n")
    with pytest.raises(BuildError, match="changed after envbuilder was installed"):
        own._repacked(distribution(installed))


def test_of_uv_the_locked_version_goes_along_whatever_is_installed(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    preferred: dict[str, str] = {}

    def compiled(self: object, requirements: Any, platform: str, python: str, pins: Any) -> Any:
        preferred.update(pins)
        return ()

    here = [
        SimpleNamespace(metadata={"Name": name}, version=version)
        for name, version in (("uv", "99.0"), ("Click", "8.3.0"), (None, "1"))
    ]
    monkeypatch.setattr(metadata, "distributions", lambda: here)
    monkeypatch.setattr(own, "requirements", lambda wheel, extra: (("click", "uv"), ""))
    monkeypatch.setattr(uv_compile.Uv, "compile", compiled)
    itself = own.Wheel(file="e.whl", content=b"e")
    assert own.dependencies(itself, "linux/amd64", "3.11", found, QUIET, "0.13.8") == ()
    assert preferred == {"uv": "0.13.8", "click": "8.3.0"}
