"""A program of another Python is told from the environment's and from ordinary ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.build.access import Access
from envbuilder.build.backends import foreign_programs as foreign
from envbuilder.build.backends import venv
from envbuilder.build.backends.foreign_programs import Place, Program
from envbuilder.build.backends.native import NativeEnvironment
from envbuilder.core import process
from envbuilder.core.errors import EnvbuilderError, ToolError

if TYPE_CHECKING:
    from pathlib import Path

BIN = "/data/envs/cpu/bin"
PLACE = Place(
    folders=(f"{BIN}/venv", BIN),
    programs=frozenset({"python", "python3", "python3.11", "torchrun"}),
)
ELF = b"\x7fELF\x02\x01\x01"
ADVICE = "how it is done"


def program(name: str, path: str = "", head: bytes = ELF, target: str = "") -> Program:
    path = path or f"/usr/bin/{name}"
    return Program(name=name, path=path, target=target or path, head=head)


def script(*lines: str) -> bytes:
    return "\n".join(lines).encode() + b"\n"


PIP = script("#!/usr/bin/python3", "import sys")
LONG = script("#!/bin/sh", "'''exec' /a/very/long/path/bin/python3.11 \"$0\" \"$@\"", "' '''")
BLANK = script("#!/bin/sh", '\'\'\'exec\' "/home/my user/venv/bin/python" "$0" "$@"', "' '''")
UV = script(
    "#!/bin/sh", '\'\'\'exec\' "$(dirname -- "$(realpath -- "$0")")"/\'python\' "$0" "$@"', "' '''"
)
PYENV = script(
    "#!/usr/bin/env bash", "set -e", "program=${0##*/}", 'export PYENV_ROOT="/root/.pyenv"',
    'exec "/root/.pyenv/libexec/pyenv" exec "$program" "$@"',
)  # fmt: skip
ASDF = script(
    "#!/usr/bin/env bash",
    "# asdf-plugin: python 3.12.1",
    'exec /opt/asdf/bin/asdf exec "black" "$@"',
)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        # The environment's own.
        (program("python", f"{BIN}/python", target="/usr/bin/python3.11"), "own"),
        (program("torchrun", f"{BIN}/torchrun", UV), "own"),
        (program("pip", f"{BIN}/venv/pip", PIP), "own"),
        # Installers, whatever they are made of and wherever they lie.
        (program("pip", head=PIP), "installer"),
        (program("pip3", head=PIP), "installer"),
        (program("pip3.11", "/opt/venv/bin/pip3.11", LONG), "installer"),
        (program("pip", "/root/.pyenv/shims/pip", PYENV), "installer"),
        (program("conda", "/opt/conda/condabin/conda"), "installer"),
        (program("mamba", "/opt/conda/bin/mamba"), "installer"),
        (program("micromamba"), "installer"),
        (program("uv", "/root/.local/bin/uv"), "installer"),
        (program("uvx"), "installer"),
        (program("poetry", head=PIP), "installer"),
        (program("easy_install-3.11", head=PIP), "installer"),
        (program("pip", "/shims/pip", target="/usr/bin/mise"), "installer"),
        (program("install-it", target="/usr/bin/pip3"), "installer"),
        (Program(name="pip", path="", target="", head=b""), "installer"),
        # Interpreters.
        (program("python3.12"), "interpreter"),
        (program("python2"), "interpreter"),
        (program("pypy3"), "interpreter"),
        (program("py", target="/usr/bin/python3.12"), "interpreter"),
        (program("python3.12", "/root/.pyenv/shims/python3.12", PYENV), "interpreter"),
        (program("python3.13t"), "interpreter"),
        # Python tools.
        (program("jupyter", head=PIP), "tool"),
        (program("torchrun", "/opt/venv/bin/torchrun", LONG), "tool"),
        (program("accelerate", "/opt/venv/bin/accelerate", BLANK), "tool"),
        (program("ipython", "/opt/venv/bin/ipython", UV), "tool"),
        (program("black", "/root/.pyenv/shims/black", PYENV), "tool"),
        (program("black", "/root/.asdf/shims/black", ASDF), "tool"),
        (program("app.pyz", head=b"#!/opt/python3.12/bin/python3.12\nPK\x03\x04\xff\xfe"), "tool"),
        (program("meson", head=b"#! /usr/bin/python3 -Es\n"), "tool"),
        (program("x", head=b"#!/usr/bin/python3"), "tool"),
        (program("x", head=b"#!/usr/bin/env python3.12\n"), "tool"),
        (program("x", head=b"#!/usr/bin/env -S PYTHONUTF8=1 pypy3 -u\n"), "tool"),
        (program("x", head=script("#!/bin/sh", 'exec /usr/bin/python3 -m x "$@"')), "tool"),
        (program("x", head=script("#!/bin/bash", 'exec -a x "${HERE}/python3" -m x')), "tool"),
        (program("x", head=script("#!/bin/sh", "exec python2 /usr/share/x.py")), "tool"),
        # Ordinary ones.
        (program("bash"), "ordinary"),
        (program("git"), "ordinary"),
        (program("nvidia-smi"), "ordinary"),
        (program("gcc", target="/usr/bin/x86_64-linux-gnu-gcc-12"), "ordinary"),
        (program("pipewire"), "ordinary"),
        (program("python3-config", head=script("#!/bin/sh", "exit_with_usage ()")), "ordinary"),
        (program("unreadable", head=b""), "ordinary"),
        (program("ldd", head=script("#! /bin/bash", "# uses python3", "echo python3")), "ordinary"),
        (program("x", head=script("#!/bin/sh", "exec java -jar /opt/python x")), "ordinary"),
        (program("x", head=b"#!/usr/bin/env node\n"), "ordinary"),
        (program("x", head=b"#!/usr/bin/perl\n# python3\n"), "ordinary"),
        (program("node", "/x/shims/node", ASDF.replace(b"python 3", b"nodejs 2")), "ordinary"),
        # Found elsewhere, but run by the environment's Python.
        (program("x", head=b"#!/usr/bin/env python3\n"), "ordinary"),
        (program("x", head=b"#!/usr/bin/env -S python -u\n"), "ordinary"),
        (program("x", head=f"#!{BIN}/python\n".encode()), "ordinary"),
        (program("x", head=script("#!/bin/sh", 'exec python3 -m x "$@"')), "ordinary"),
        (program("x", head=script("#!/bin/sh", f'exec {BIN}/python -m x "$@"')), "ordinary"),
    ],
)  # fmt: skip
def test_what_a_program_is(found: Program, kind: str) -> None:
    assert foreign.judge(found, PLACE).kind == kind
    refused = foreign.refusal(found, [found.name], PLACE, ADVICE)
    assert (refused is None) == (kind in {"own", "ordinary"})
    if refused:
        assert refused.message.startswith(f"{found.name} is not in this environment")
        assert ADVICE in refused.hint or kind == "interpreter"


def test_a_refusal_says_where_the_program_is_and_what_it_runs() -> None:
    refused = foreign.refusal(program("jupyter", head=PIP), ["jupyter", "lab"], PLACE, ADVICE)
    assert refused is not None
    assert "/usr/bin/jupyter, which runs /usr/bin/python3" in refused.message
    assert "give its path: /usr/bin/jupyter" in refused.hint
    refused = foreign.refusal(program("pip", head=PIP), ["pip"], PLACE, ADVICE)
    assert refused is not None
    assert "/usr/bin/pip" in refused.message


@pytest.mark.parametrize("name", ["/usr/bin/pip", "./pip", "../venv/bin/python3.12", "/x/jupyter"])
def test_a_program_that_is_named_by_its_path_is_meant(name: str) -> None:
    found = program(name, f"/usr/bin/{name.rpartition('/')[2]}", PIP)
    assert foreign.refusal(found, [name, "install", "x"], PLACE, ADVICE) is None


@pytest.mark.parametrize(
    ("argv", "change"),
    [
        (["pip", "install", "x"], "pip install"),
        (["pip3", "-q", "--proxy", "http://x", "uninstall", "-y", "x"], "pip3 uninstall"),
        (["python", "-m", "pip", "install", "x"], "pip install"),
        (["python3.11", "-X", "dev", "-I", "-mpip", "install"], "pip install"),
        (["uv", "pip", "sync", "x"], "uv sync"),
        (["conda", "env", "create"], "conda create"),
        (["poetry", "add", "x"], "poetry add"),
        (["pip", "list"], ""),
        (["pip", "freeze"], ""),
        (["python", "-m", "pip", "--version"], ""),
        (["python", "train.py", "-m", "pip", "install"], ""),
        (["python", "-c", "x", "-m", "pip", "install"], ""),
        (["python", "-m"], ""),
        (["python", "-X"], ""),
        (["python", "-m", "install"], ""),
        (["npm", "install"], ""),
        (["python"], ""),
    ],
)
def test_commands_that_change_an_environment_are_refused_in_it(
    argv: list[str], change: str
) -> None:
    assert foreign.change(argv) == change
    own = program(argv[0], f"{BIN}/{argv[0]}", PIP)
    refused = foreign.refusal(own, argv, PLACE, ADVICE)
    assert (refused.message if refused else "") == (
        f"{change} would change this environment" if change else ""
    )


@given(st.binary(max_size=300), st.text(min_size=1, max_size=30))
def test_no_file_is_too_strange_to_be_judged(head: bytes, name: str) -> None:
    for begin in (b"", b"#!", b"#!/bin/sh\nexec ", b"#!/usr/bin/env "):
        foreign.refusal(program(name, head=begin + head), [name], PLACE, ADVICE)


def test_advice_names_the_key_the_file_and_the_command() -> None:
    shipped, mine = foreign.advice("cpu"), foreign.advice("of-mine")
    for text in (shipped, mine):
        assert "Changes made by hand would be lost and fail verification." in text
        assert "to a project: envbuilder add NAME." in text
    assert "add_requirements: in profiles/mine.yaml, a profile of yours that extends cpu" in shipped
    assert shipped.endswith("envbuilder lock --profile mine")
    assert "in profiles/of-mine.yaml" in mine
    assert mine.endswith("envbuilder lock --profile of-mine")


@pytest.mark.parametrize(
    ("argv", "packages"),
    [
        (["pip", "install", "scipy"], "scipy"),
        (["python", "-m", "pip", "install", "scipy", "rich>=13"], "scipy 'rich>=13'"),
        (["uv", "pip", "install", "torch[optree]"], "'torch[optree]'"),
        (["uv", "add", "scipy"], "scipy"),
        (["pip", "uninstall", "rich"], "rich"),
        (["pip", "install", "-r", "requirements.txt"], "NAME"),
        (["pip", "install", "."], "NAME"),
        (["pip", "install", "git+https://host/x"], "NAME"),
        (["pip", "list"], None),
        (["/usr/bin/pip", "install", "scipy"], None),
        (["python", "train.py", "install"], None),
    ],
)
def test_an_installer_is_refused_before_anything_is_built(
    argv: list[str], packages: str | None
) -> None:
    if packages is None:
        foreign.require_unchanged(argv, "cpu", of_project=True)
        return
    with pytest.raises(ToolError, match="would change the environment") as caught:
        foreign.require_unchanged(argv, "cpu", of_project=True)
    way = "remove" if "uninstall" in argv else "add"
    assert caught.value.hint.endswith(f" The project's packages: envbuilder {way} {packages}")
    with pytest.raises(ToolError) as caught:
        foreign.require_unchanged(argv, "cpu", of_project=False)
    assert "add_requirements" in caught.value.hint


@pytest.mark.parametrize(
    ("argv", "locked", "message"),
    [
        (["pip", "install", "x"], (), "pip install would be lost when the container ends"),
        (["python", "-m", "pip", "install", "x"], ("pip",), "would be lost"),
        (["pip", "list"], (), "pip is not in this environment"),
        (["uv", "--version"], (), "uv is not in this environment"),
        (["pip3.11", "list"], ("pip",), ""),
        (["python", "train.py"], (), ""),
        (["/usr/local/bin/pip", "list"], (), ""),
    ],
)
def test_installers_of_an_image_are_refused(
    argv: list[str], locked: tuple[str, ...], message: str
) -> None:
    if not message:
        foreign.in_image(argv, locked, "cpu")
        return
    with pytest.raises(ToolError, match=message) as caught:
        foreign.in_image(argv, locked, "cpu")
    assert "add_requirements" in caught.value.hint


# --- where commands are started


class Native(NativeEnvironment):
    """An environment in a folder, of which only the programs matter."""

    def __init__(self, prefix: Path) -> None:
        from envbuilder.core import resources
        from envbuilder.profiles import profile as profiles

        self.prefix, self.device_variables = prefix, {}
        self.profile = profiles.load("cpu", (resources.profiles_dir(),))

    def inside(self, argv: Any, environ: Any) -> tuple[list[str], dict[str, str]]:
        return list(argv), {}


def lay(folder: Path, name: str, head: bytes) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(head)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("name", "head", "runs"),
    [("pip", PIP, False), ("jupyter", LONG, False), ("make", ELF, True), ("python", ELF, True)],
)
def test_a_native_environment_starts_no_program_of_another_python(
    name: str, head: bytes, runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(process, "replace", lambda argv, env: started.append(argv))
    own = lay(tmp_path / "env" / "bin", "python", ELF)
    path = lay(tmp_path / "elsewhere", name, head)
    environment = Native(tmp_path / "env")
    environ = {**os.environ, "PATH": str(tmp_path / "elsewhere")}
    if runs:
        environment.become([name, "x"], environ)
        assert started == [[own if name == "python" else path, "x"]]
    else:
        with pytest.raises(ToolError, match=f"{name} is not in this environment"):
            environment.become([name, "x"], environ)
        environment.become([path, "x"], environ)
        assert started == [[path, "x"]]


def test_a_native_command_gets_the_variables_that_the_user_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(process, "replace", lambda argv, env: started.append(env))
    lay(tmp_path / "bin", "python", ELF)
    environment = Native(tmp_path)
    environment.device_variables = {"HIP_VISIBLE_DEVICES": "0", "C": "of the profile"}
    given = Access(variables={"A": "1", "HIP_VISIBLE_DEVICES": "1"}, passed=("C",))
    environment.become(["python"], {"PATH": "", "C": "of the caller"}, given)
    assert started == [{"A": "1", "HIP_VISIBLE_DEVICES": "1", "C": "of the caller"}]


@pytest.mark.parametrize(
    ("value", "expected"), [("x.so", "{}/lib/envbuilder/libtcmalloc_minimal.so.4:x.so"), ("", "")]
)
def test_a_native_command_preloads_after_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, expected: str
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(process, "replace", lambda argv, env: started.append(env["LD_PRELOAD"]))
    monkeypatch.setattr(
        Native,
        "inside",
        lambda self, argv, environ: ([], venv.environment(self.profile, self.prefix, environ)),
    )
    lay(tmp_path / "bin", "python", ELF)
    for access in (Access(variables={"LD_PRELOAD": value}), Access(passed=("LD_PRELOAD",))):
        Native(tmp_path).become(["python"], {"PATH": "", "LD_PRELOAD": value}, access)
    assert started == [expected.format(tmp_path)] * 2


def test_a_native_command_imports_from_the_project_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(process, "replace", lambda argv, env: started.append(env))
    lay(tmp_path / "bin", "python", ELF)
    given = Access(python_path=(tmp_path / "src", tmp_path / "lib"))
    for own, others in (("", ""), ("/mine", ":/mine")):
        Native(tmp_path).become(["python"], {"PATH": "", "PYTHONPATH": own}, given)
        assert started.pop() == {"PYTHONPATH": f"{tmp_path}/src:{tmp_path}/lib{others}"}
    stated = Access(python_path=(tmp_path / "src",), variables={"PYTHONPATH": "/only"})
    Native(tmp_path).become(["python"], {"PATH": ""}, stated)
    assert started == [{"PYTHONPATH": "/only"}]


def test_an_installer_that_is_nowhere_is_explained_too(tmp_path: Path) -> None:
    lay(tmp_path / "bin", "python", ELF)
    with pytest.raises(ToolError) as caught:
        Native(tmp_path).become(["pip", "install", "x"], {"PATH": ""})
    assert caught.value.message == "pip is not in this environment"
    assert "add_requirements" in caught.value.hint
    with pytest.raises(EnvbuilderError, match="nothing: not found in the environment"):
        Native(tmp_path).become(["nothing"], {"PATH": ""})


# --- and what a shell or a script in the environment finds


@pytest.mark.parametrize("profile", ["cpu", "of-mine"])
def test_the_programs_that_refuse_are_one_quoted_script(profile: str) -> None:
    import shlex

    text = foreign.script(profile)
    assert text.startswith("#!/bin/sh\n")
    words = shlex.split(text, comments=True)
    assert words[0] == "printf"
    assert foreign.advice(profile) in words
    assert words[-2:] == ["exit", "125"]
    assert {"pip", "pip3", "conda", "mamba", "uv"} <= set(foreign.REFUSED)


def test_an_environments_own_programs_win_over_those_that_refuse(tmp_path: Path) -> None:
    from envbuilder.build.backends import venv
    from envbuilder.core import resources
    from envbuilder.profiles import profile as profiles

    profile = profiles.load("cpu", (resources.profiles_dir(),))
    path = venv.environment(profile, tmp_path, {"PATH": "/usr/bin"})["PATH"]
    assert path == f"{tmp_path}/bin:{tmp_path}/{foreign.FOLDER}:/usr/bin"
