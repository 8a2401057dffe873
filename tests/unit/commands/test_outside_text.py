"""Outside text, pushed through every command that reads some, cannot act on a terminal.

Each kind of source gets each hostile text; whatever the command then prints is plain, on lines of
its own and of limited length, and no failure counts as a defect.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from envbuilder import cli
from envbuilder.containers.engine import connection
from envbuilder.core import process
from envbuilder.core.errors import ToolError, escaped_lines
from tests.support import host_trees, reports

FORGED = "VERIFIED: forged"
HOSTILE = {
    "styles": f"\x1b[2J\x1b[1;1H{FORGED}\x1b]8;;http://evil.example\x1b\\x\x9b2J\x90x\x9c\rfine",
    "controls": "".join(map(chr, [*range(1, 32), *range(0x7F, 0xA0)])),
    "lines": f"x\n{FORGED}\n{FORGED}\u2028{FORGED}\u2029{FORGED}\x85{FORGED}\x0b\x0c{FORGED}",
    "hidden": "\u202egnp.exe\u2066\u2069\u200b\ufeff\U000e0041[/bold][link=http://evil.example]x[red]",
    "surrogates": "a\ud800b\udfff\udc9b",
    "endless": "\x1b[2J" * 100_000,
}


def _yaml(text: str) -> str:
    """A YAML scalar; YAML's escapes are JSON's, and let any character but surrogates in."""
    return json.dumps(text)


def _report(text: str, folder: Path) -> list[list[str]]:
    def hostile(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: hostile(v) for k, v in value.items()}
        if isinstance(value, list):
            return [hostile(v) for v in value]
        return text if value in {"ok", "AMD EPYC", "2.13.0+cpu", "envs/cpu", "MNIST"} else value

    report = hostile(reports.whole(reasons=[text], warnings=[text]))
    for name, data in {
        "plain": report,
        "wrong": {**report, "status": text},
        "key": {**report, text: 1},
        "profile": {**report, "profile": text, "time": text},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(data))
    return [
        *(
            ["compare", str(folder / "plain.json"), "--format", form]
            for form in ("table", "csv", "markdown", "json", "html")
        ),
        *(["compare", str(folder / f"{name}.json")] for name in ("wrong", "key", "profile")),
        ["verify", "--against", str(folder / "wrong.json"), "--profile", "cpu"],
    ]


def _configuration(text: str, folder: Path) -> list[list[str]]:
    content = {
        "a": f"{_yaml(text)}: 1\n",
        "b": f"indexes: {{{_yaml(text)}: https://x.example}}\n",
        "c": f"indexes: {{pytorch-cpu: {_yaml(text)}}}\n",
        "d": f"profile: {_yaml(text)}\n",
        "e": f"mirrors: {{{_yaml(text)}: {_yaml(text)}}}\n",
        "f": f"mirrors: {{docker.io: {_yaml(text)}}}\n",
        "g": f"base_images: {{{_yaml(text)}: x}}\n",
        "h": f"profile: {text}\n",
        "i": f"profile: [{text}\n",
    }
    (folder / "envbuilder.yaml").write_bytes(content[folder.name].encode(errors="surrogatepass"))
    return [["profiles"], ["render", "--profile", "cpu", "--target", "requirements"]]


def _profile(text: str, folder: Path) -> list[list[str]]:
    profiles = folder / "profiles"
    (profiles / "locks").mkdir(parents=True)
    (folder / "envbuilder.yaml").write_text("{}\n")
    texts = {
        "a": f"name: lab\nextends: cpu\ndescription: {_yaml(text)}\n",
        "b": f"name: {_yaml(text)}\nextends: cpu\n",
        "c": f"name: lab\nextends: {_yaml(text)}\n",
        "d": f"name: lab\nextends: cpu\n{_yaml(text)}: 1\n",
        "e": f"name: lab\nextends: cpu\nwarnings: [{_yaml(text)}]\n",
        "f": f"name: lab\nextends: cpu\nenvironment: {{{_yaml(text)}: {_yaml(text)}}}\n",
        "g": f"name: lab\nextends: cpu\naccelerator: {_yaml(text)}\n",
    }
    (profiles / "lab.yaml").write_text(texts[folder.name])
    lock = {"schema": 2, "profile": "lab", "inputs": "0" * 64, "state": "unlocked", "reason": ""}
    lock["obstacle"] = {"text": text}
    (profiles / "locks/lab.json").write_text(json.dumps({**lock, "tools": {}, "targets": []}))
    return [
        ["profiles"],
        ["profiles", "--json"],
        ["profiles", "lab"],
        ["profiles", "lab", "--json"],
        ["check", "lab"],
        ["check", "lab", "--json"],
        *([command, "--profile", "lab"] for command in ("build", "verify", "render", "sbom")),
        ["bundle", "--profile", "lab", "--output", str(folder / "x.tar")],
    ]


def _lock(text: str, folder: Path) -> list[list[str]]:
    profiles = folder / "profiles"
    (profiles / "locks").mkdir(parents=True)
    (folder / "envbuilder.yaml").write_text("{}\n")
    (profiles / "lab.yaml").write_text("name: lab\nextends: cpu\n")
    lock = {"schema": 2, "profile": "lab", "inputs": "0" * 64, "state": "locked", "reason": ""}
    whole = {**lock, "tools": {}, "targets": []}
    changes = {
        "a": {"profile": text},
        "b": {"state": text},
        "c": {text: 1},
        "d": {"targets": [{"platform": text, "python": text}]},
        "e": {"tools": {text: {}}},
        "f": {"inputs": text},
    }
    content = json.dumps({**whole, **changes[folder.name]})
    (profiles / "locks/lab.json").write_text(content)
    return [["profiles"], ["profiles", "lab"], ["check", "lab"], ["build", "-p", "lab"]]


def _target_host(text: str, folder: Path) -> list[list[str]]:
    gpu = {"vendor": "nvidia", "name": text, "state": "usable", "detail": text}
    host = {
        "os": "linux",
        "machine": text,
        "platform": "linux/amd64",
        "notes": [text],
        "gpus": [{**gpu, "driver_version": text, "sm": "8.9", "pci_address": text}],
        "cpu": {"model_name": text, "vendor": text},
        "distribution": text,
    }
    contents = {"a": {"host": host}, "b": host, "c": text, "d": {text: host}, "e": {"os": text}}
    (folder / "host.json").write_text(json.dumps(contents[folder.name]))
    options = ["--target-host", str(folder / "host.json")]
    return [
        ["render", *options],
        ["build", "--dry-run", "--backend", "venv", *options],
        ["build", "--profile", "cuda", "--dry-run", "--json", "--backend", "venv", *options],
    ]


def _root(text: str, folder: Path) -> list[list[str]]:
    root = folder / "root"
    data = host_trees.load("rtx4090" if "rtx4090" in host_trees.NAMES else "epyc-vm")
    root.mkdir()
    host_trees.plant(root, data)
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.name in _HOST_FILES:
            path.chmod(0o644)
            old = path.read_text(errors="replace")
            new = "\n".join(_poisoned(line, text) for line in old.split("\n"))
            path.write_bytes(new.encode(errors="surrogatepass"))
    return [[c, "--root", str(root), *j] for c in ("detect", "doctor") for j in ([], ["--json"])]


_HOST_FILES = {
    "cpuinfo",
    "os-release",
    "nvml.json",
    "version",
    "information",
    "uevent",
    "osrelease",
}


def _poisoned(line: str, text: str) -> str:
    key, separator, _ = line.partition(":") if ":" in line else line.partition("=")
    if key.strip() in {"model name", "vendor_id", "PRETTY_NAME", "NAME", "ID", "Model"}:
        return f"{key}{separator}{text}"
    return line


def _unbundle(text: str, folder: Path) -> list[list[str]]:
    from hashlib import sha256

    from envbuilder.bundle import format as form

    member = {"path": text, "size": 1, "sha256": "0" * 64, "kind": "profile", "what": text}
    manifests = {
        "a": {"made_by": text, "members": []},
        "b": {"made_by": "x", "members": [member]},
        "c": {"made_by": "x", "members": [], text: 1},
        "d": {"made_by": "x", "members": [], "lacks": [text]},
    }
    rest = {"schema": 2, "profiles": [], "platforms": [], "pythons": [], "lacks": []}
    content = json.dumps({**rest, **manifests[folder.name]}).encode()
    path = folder / "bundle.tar"
    header = form.header(form.manifest_name(sha256(content).hexdigest()), len(content))
    path.write_bytes(header + content + form.padding(len(content)) + form.END)
    return [["unbundle", str(path)], ["unbundle", "--json", str(path)]]


def _arguments(text: str, folder: Path) -> list[list[str]]:
    # What arguments may hold: bytes that are not UTF-8 become the surrogates of PEP 383.
    argument = (
        text.replace("\0", "").replace("\ud800", "\udcff").replace("\udfff", "\udcff")[:100_000]
    )
    return [
        [argument],
        ["profiles", argument],
        *(["render", f"--{o}", argument] for o in ("profile", "target", "python-version")),
        *(["build", f"--{o}", argument] for o in ("profile", "base-image", "tag", "backend")),
        ["render", "--profile", "cpu", "--target-host", argument],
        ["verify", "--profile", "cpu", "--data", argument],
        ["verify", "--python", argument],
        ["compare", argument],
        ["unbundle", argument],
        ["detect", "--model", argument],
        ["detect", "--root", argument],
        ["run", "--profile", argument, "--", "true"],
        ["clean", argument],
    ]


SOURCES: dict[str, Callable[[str, Path], list[list[str]]]] = {
    "report": _report,
    **{f"configuration-{n}": _configuration for n in "abcdefghi"},
    **{f"profile-{n}": _profile for n in "abcdefg"},
    **{f"lock-{n}": _lock for n in "abcdef"},
    **{f"host-{n}": _target_host for n in "abcde"},
    "root": _root,
    **{f"bundle-{n}": _unbundle for n in "abcd"},
    "arguments": _arguments,
}


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: Any, **options: Any) -> Any:
        raise ToolError("not in a unit test")

    # Not `process.run`: what runs a command may hold it already, as the default of a parameter.
    monkeypatch.setattr(subprocess, "Popen", missing)
    monkeypatch.setattr(process, "exec_program", missing)
    monkeypatch.setattr(connection, "connect", missing)


def require_plain(arguments: list[str], out: str, err: str) -> None:
    """Raise unless the output cannot act on a terminal, and holds no forged line."""
    assert "a bug in envbuilder" not in err, (arguments[:3], err[-1500:])
    for text in (out, err):
        assert escaped_lines(text) == text, (arguments[:3], text[:300])
        lines = text.splitlines()
        for line in lines:
            assert not line.startswith("VERIFIED"), (arguments[:3], text[:300])
    assert len(err) < 60_000, arguments[:3]
    out.encode()
    err.encode()


def push(source: str, text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = folder / (source.rpartition("-")[2])
    place.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for arguments in SOURCES[source](text, place):
            capsys.readouterr()
            cli._run(arguments)
            require_plain(arguments, *capsys.readouterr())


def pairs() -> list[tuple[str, str]]:
    """Each source with two hostile texts, and what has no variants with all."""
    kinds = [*HOSTILE]
    return [
        (source, kind)
        for number, source in enumerate(SOURCES)
        for place, kind in enumerate(kinds)
        if "-" not in source or (place - number) % len(kinds) in {0, 3}
    ]


@pytest.mark.parametrize(("source", "kind"), pairs())
def test_outside_text_cannot_act_on_a_terminal(
    source: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push(source, HOSTILE[kind], tmp_path, capsys)


@settings(
    deadline=None,
    max_examples=settings().max_examples // 5,
)
@example(source="arguments", text="0")
@given(source=st.sampled_from(sorted(SOURCES)), text=st.text(max_size=60))
def test_no_text_can_act_on_a_terminal(
    source: str,
    text: str,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    push(source, text, tmp_path_factory.mktemp("text"), capsys)
