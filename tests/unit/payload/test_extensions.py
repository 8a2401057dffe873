"""The subprocess itself is tried in the integration tests; here, what is made of its end."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from envbuilder.payload.numerics import extensions
from envbuilder.payload.report import CheckError


def ending(monkeypatch: pytest.MonkeyPatch, code: int, stdout: str = "", stderr: str = "") -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code, stdout, stderr)

    monkeypatch.setattr(subprocess, "run", run)


def test_an_extension_that_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    ending(monkeypatch, 0, f"banner\n{extensions.MARK} 2.8.0\nfarewell\n")
    found = extensions.require_importable("ipex")
    assert found == "intel_extension_for_pytorch 2.8.0 imports with this torch"


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "words"),
    [
        (127, "ERROR! needs torch 2.7\n", "", r"\(exit 127\): ERROR! needs torch 2.7"),
        (1, "", "Traceback\nImportError: another minor\n", "ImportError: another minor"),
        (-11, "", "", r"\(exit -11\): no output"),
        (0, "", "", "no output"),
        (0, "banner\n", "", "banner"),
        (1, "needs torch 2.7\n", "a warning\n", "needs torch 2.7; a warning"),
        (0, "", f"{extensions.MARK} 2.8.0\n", "exit 0"),
        (3, f"{extensions.MARK} 2.8.0\n", "", "exit 3"),
    ],
)
def test_an_import_that_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, code: int, stdout: str, stderr: str, words: str
) -> None:
    ending(monkeypatch, code, stdout, stderr)
    with pytest.raises(CheckError, match=words):
        extensions.require_importable("ipex")


def test_an_import_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(CheckError, match="did not finish importing in 3 s"):
        extensions.require_importable("zentorch", 3)
