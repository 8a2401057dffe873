"""pip's configuration is read as pip reads it."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

from hypothesis import example, given, strategies as st

from envbuilder.core import pip

NAMES = st.from_regex(r"[a-z]{2,8}(-[a-z]{2,8})?", fullmatch=True)
VALUES = st.from_regex(r"[!-~]([ -~]{0,20}[!-~])?", fullmatch=True)


def test_a_broken_file_is_passed_over() -> None:
    assert pip.parse("[global\nx") == {}
    assert pip.parse("index-url = x") == {}


def test_the_section_of_the_command_wins_over_the_global_one_of_a_later_file() -> None:
    texts = ["[install]\nindex-url = a\n", "[global]\nindex-url = b\ncert = c\n"]
    assert pip.merged({}, texts) == {"index-url": "a", "cert": "c"}
    assert pip.merged({"PIP_INDEX_URL": "d"}, texts)["index-url"] == "d"


def test_the_variable_that_names_a_file_is_no_option() -> None:
    assert pip.merged({"PIP_CONFIG_FILE": "/x", "PIPX_HOME": "/y"}, []) == {}


@given(st.dictionaries(NAMES, VALUES))
@example({"index-url": "https://u:p%40ss@x/s"})  # no interpolation
def test_variables_and_files_mean_the_same(options: dict[str, str]) -> None:
    variables = {f"PIP_{k.upper().replace('-', '_')}": v for k, v in options.items()}
    text = "[global]\n" + "".join(f"{k} = {v}\n" for k, v in options.items())
    kept = {k: v for k, v in options.items() if k != "config-file"}
    assert pip.merged(variables, []) == kept
    assert pip.merged({}, [text]) == options


def test_where_pip_looks(tmp_path: Path) -> None:
    files = pip.files({"XDG_CONFIG_HOME": str(tmp_path)}, home=tmp_path)
    if os.uname().sysname == "Linux":
        assert files[0] == Path("/etc/xdg/pip/pip.conf")
        assert files[1] == Path("/etc/pip.conf")
        assert tmp_path / "pip/pip.conf" in files
    assert files[-1] == Path(sys.prefix) / "pip.conf"
    assert pip.files({}, prefix=tmp_path)[-1] == tmp_path / "pip.conf"
    assert pip.files({"PIP_CONFIG_FILE": os.devnull}) == ()
    named = tmp_path / "my.conf"
    missing = pip.files({"PIP_CONFIG_FILE": str(named)}, home=tmp_path)
    assert missing[-1] == named
    assert tmp_path / ".pip/pip.conf" in missing
    named.touch()
    # pip leaves the user's own files out where another is named and exists.
    present = pip.files({"PIP_CONFIG_FILE": str(named)}, home=tmp_path)
    assert tmp_path / ".pip/pip.conf" not in present


def test_files_are_read_from_the_machine(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("[global]\ncert = of the environment\n")
    named = tmp_path / "my.conf"
    environ = {"PIP_CONFIG_FILE": str(named)}
    assert "[global]\ncert = of the environment\n" in pip.texts(environ, prefix=tmp_path)
    named.write_text("[global]\ncert = named\n")
    texts = pip.texts(environ, prefix=tmp_path)
    assert pip.merged({}, texts)["cert"] == "named"


def test_it_needs_nothing_but_the_standard_library() -> None:
    """`bootstrap.py` imports it before anything is installed."""
    todo = {"envbuilder.core.pip"}
    seen = set[str]()
    while todo - seen:
        name = (todo - seen).pop()
        seen.add(name)
        package, *path = name.split(".")
        if package != "envbuilder":
            assert package in sys.stdlib_module_names
            continue
        tree = ast.parse(
            Path(pip.__file__).parents[1].joinpath(*path).with_suffix(".py").read_text()
        )
        todo |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        todo |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
