"""setup.py by its syntax tree, setup.cfg, and what a pyproject.toml leaves to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from envbuilder.project.forms import read
from envbuilder.project.lines import Needed
from tests.support.edited_text import edited
from tests.support.repositories import lay
from tests.support.requirement_projects import outcome, places, refusal, texts

PLAIN = """\
import os
from pathlib import Path
from setuptools import setup

HERE = Path(__file__).parent
VERSION = {}
exec((HERE / "own" / "version.py").read_text(), VERSION)
NAME = "own"
common: list[str] = ["numpy>=1.2", "scipy>=" + "1.2"]
extras = {"dev": ["pytest"], "gpu": more(), "docs": ["pytest", "sphinx"],
    ":python_version < '3.9'": ("typing-extensions",)}

if __name__ == "__main__":
    setup(
        name=NAME,
        version=VERSION["version"],
        python_requires=">=3.9",
        install_requires=["torch", *common] + [torch_for(GPU), "tqdm"],
        extras_require=extras,
    )
"""


def test_what_is_written_down(tmp_path: Path) -> None:
    lay(tmp_path, {"setup.py": PLAIN})
    listed = read(tmp_path, "setup.py", ["docs"])
    assert [line.text.partition(";")[0] for line in listed.requirements] == [
        *("torch", "numpy>=1.2", "scipy>=1.2", "tqdm", "typing-extensions", "pytest", "sphinx"),
    ]
    assert places(listed.requirements)[:2] == ["setup.py:18", "setup.py:9"]
    note = "left out a requirement that is computed at run time. Write it under requirements:"
    assert listed.notes == (Needed(f"setup.py:18: {note} in envbuilder.yaml."),)
    assert texts(listed.pythons) == [">=3.9"]
    assert "no extra gone" in refusal(tmp_path, "setup.py", ["gone"])[0]
    assert (
        "setup.py:10: extras_require gpu is computed" in refusal(tmp_path, "setup.py", ["gpu"])[0]
    )
    assert not (tmp_path / "own").exists()


READS = {
    "open().read().splitlines()": "setup(install_requires=open('r.txt').read().splitlines())",
    "a with statement": "with open('r.txt') as f:\n    r = f.readlines()\n"
    "setup(install_requires=r)",
    "a path": "import pathlib\nr = pathlib.Path(__file__).resolve().parent / 'r.txt'\n"
    "setup(install_requires=[x for x in r.read_text().split('\\n')[:-1] if x])",
    "os.path": "import os\nhere = os.path.dirname(os.path.abspath(__file__))\n"
    "setup(install_requires=list(map(str.strip, open(os.path.join(here, 'r.txt')))))",
    "a function": "def required(name='r.txt'):\n    with open(name) as f:\n"
    "        return [line.strip() for line in f if not line.startswith('#')]\n"
    "setup(install_requires=required())",
    "a function with a loop": "def required(name):\n    found = []\n    for line in open(name):\n"
    "        found.append(line)\n    return found, []\nr, links = required('r.txt')\n"
    "setup(install_requires=r)",
    "a function that does more": "def required(name):\n    def inner(path):\n"
    "        with open(path) as f:\n            for line in f:\n                yield clean(line)\n"
    "    return list(inner(name))\nsetup(install_requires=required('r.txt'))",
    "a function for any file": "import io\ndef read(*parts):\n    return io.open(os.path.join("
    "os.path.dirname(__file__), *parts)).read()\nsetup(install_requires=read('r.txt').split())",
    "parse_requirements": "from pip.req import parse_requirements\n"
    "r = parse_requirements('r.txt', session=False)\n"
    "setup(install_requires=[str(each.req) for each in r])",
}


@pytest.mark.parametrize("text", READS.values(), ids=READS.keys())
def test_a_requirements_file_that_it_reads(tmp_path: Path, text: str) -> None:
    lay(tmp_path, {"sub/setup.py": text, "sub/r.txt": "# first\nrich>=13\n-r more.txt\n"})
    lay(tmp_path, {"sub/more.txt": "--extra-index-url https://example.org\nnumpy\n"})
    listed = read(tmp_path, "sub/setup.py")
    assert texts(listed.requirements) == ["rich>=13", "numpy"]
    assert places(listed.requirements) == ["sub/r.txt:2", "sub/more.txt:2"]
    assert listed.read_from == ("sub/more.txt", "sub/r.txt", "sub/setup.py")


WITHIN = """\
stated = '''
rich>=13
numpy
'''
try:
    if sys.argv:
        setuptools.setup(install_requires=stated)
except OSError:
    setup()
"""


def test_a_call_within_other_statements(tmp_path: Path) -> None:
    lay(tmp_path, {"setup.py": WITHIN})
    assert texts(read(tmp_path, "setup.py").requirements) == ["rich>=13", "numpy"]


CHANGED = "r = ['rich', 'numpy']\n{}  # here\nsetup(**{{'install_requires': r}})"
READER = "def f(name='r.txt'):\n    r = open(name).read().split()\n    {}\n    return r\n"
READER += "setup(install_requires=f())  # here"


def test_a_call_within_a_function(tmp_path: Path) -> None:
    text = (
        "BASE = ['numpy']\ndef main():\n    requires = BASE\n    if cuda():\n"
        "        requires.extend(MORE)\n    setup(install_requires=requires)\nmain()\n"
    )
    lay(tmp_path, {"setup.py": text})
    listed = read(tmp_path, "setup.py")
    assert texts(listed.requirements) == ["numpy"]
    assert [note.partition(": ")[0] for note in listed.notes] == ["setup.py:5"]


@pytest.mark.parametrize(
    "text",
    [
        "r = get()  # here\n\nsetup(install_requires=r)",
        "setup(install_requires=[  # here\n  'a'] * 9)",
        "setup(**options)  # here",
        "def f():\n    return f()\nsetup(install_requires=f())  # here",
        *map(CHANGED.format, ["*r, x = f()", "if X: r = 1"]),
        "r = open('r.txt').readlines()\nr.append('x')  # here\nsetup(install_requires=r)",
        *map(READER.format, ["r.append('x')", "r += ['x']", "open('other.txt')"]),
    ],
)
def test_what_is_computed_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    lay(tmp_path, {"setup.py": text})
    line = text.partition("# here")[0].count("\n") + 1
    message = f"setup.py:{line}: install_requires is computed at run time"
    assert refusal(tmp_path, "setup.py")[0] == message


@pytest.mark.parametrize(
    "change",
    ["r += ['x']", "r[0] = 'x'", "add_to(r)", "if X: r.append('x')", "s = r\ns += ['x']",
     "d = {'s': r}\nd['s'] += ['x']"],
)  # fmt: skip
def test_what_a_list_gets_in_addition_needs_the_user(tmp_path: Path, change: str) -> None:
    text = CHANGED.format(change)
    lay(tmp_path, {"setup.py": text})
    listed = read(tmp_path, "setup.py")
    assert texts(listed.requirements) == ["rich", "numpy"]
    line = text.partition("# here")[0].count("\n") + 1
    assert listed.notes[0].startswith(f"setup.py:{line}: left out a requirement that is ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("setup()\nif X:\n  setup()", "setup.py:3: setup() is called a second time"),
        ("setup(extras_require=more())", "setup.py:1: extras_require is computed"),
        ("print('no')", "setup.py:1: there is no call of setup()"),
        ("setup(\n", "setup.py:1: not valid Python 3"),
        ("x = ['a']\n" + "x = x + x\n" * 30, "setup.py:16: a value that is too long"),
        (
            f"def f():\n  x = [{'y, ' * 900}]\n  return open('r')\n" + "x = f()\n" * 900,
            "setup.py:1: the file computes",
        ),
        (
            "setup(extras_require={'x': open(Path(__file__).parent.parent / 'x.txt')})",
            "setup.py:1: ../x",
        ),
        (f"x = {'-' * 5000}1\nsetup(install_requires=['a', x])", "setup.py"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    lay(tmp_path, {"setup.py": text})
    assert refusal(tmp_path, "setup.py", ["x"])[0].startswith(message)


CFG = """\
[metadata]
name = own
[options]
python-requires = >=3.9
install_requires =
    rich>=13  # for tables
    numpy; python_version >= "3.8"
[options.extras_require]
dev = pytest; tox
more = file: a.txt, b.txt
"""


def test_setup_cfg(tmp_path: Path) -> None:
    lay(tmp_path, {"setup.cfg": CFG, "a.txt": "attrs\n", "b.txt": "cffi\n"})
    listed = read(tmp_path, "setup.cfg", ["more"])
    assert texts(listed.requirements) == [
        *("rich>=13", 'numpy; python_version >= "3.8"', "attrs", "cffi"),
    ]
    assert texts(listed.pythons) == [">=3.9"]
    # A setup.py that says nothing leaves it to that file.
    lay(tmp_path, {"setup.py": "from setuptools import setup\nsetup()\n"})
    by_python, alone = (read(tmp_path, name).requirements for name in ("setup.py", "setup.cfg"))
    assert by_python == alone
    lay(tmp_path, {"setup.cfg": "[options\nx"})
    assert "setup.cfg: cannot be read" in refusal(tmp_path, "setup.cfg")[0]
    assert "no group x" in refusal(tmp_path, "setup.py", (), ["x"])[0]


OPEN = '[project]\nname = "own"\nrequires-python = ">=3.9"\ndynamic = ["dependencies", "version"]\n'


@pytest.mark.parametrize(
    ("files", "extras", "expected"),
    [
        ({"pyproject.toml": OPEN, "setup.py": "setup(install_requires=['rich'])"}, (), ["rich"]),
        ({"pyproject.toml": "[tool.black]\n", "setup.cfg": CFG}, (), ["rich>=13", "numpy"]),
        (
            {
                "pyproject.toml": OPEN + '[tool.setuptools.dynamic]\ndependencies = {file = '
                '["r.txt"]}\noptional-dependencies.dev = {file = "d.txt"}\n',
                "r.txt": "rich\n",
                "d.txt": "pytest\n",
            },
            ("dev",),
            ["rich", "pytest"],
        ),
        (
            {
                "pyproject.toml": OPEN + '[project.optional-dependencies]\ndev = ["pytest"]\n'
                '[tool.hatch.metadata.hooks.requirements_txt]\nfiles = ["r.txt"]\n',
                "r.txt": "rich\n",
            },
            ("dev",),
            ["pytest", "rich"],
        ),
    ],
)  # fmt: skip
def test_a_pyproject_that_leaves_its_requirements_to_other_files(
    tmp_path: Path, files: dict[str, str], extras: tuple[str, ...], expected: list[str]
) -> None:
    lay(tmp_path, files)
    listed = read(tmp_path, "pyproject.toml", extras)
    assert [line.text.partition(";")[0] for line in listed.requirements] == expected
    assert {*listed.read_from} == {*files}
    lay(tmp_path, {"requirements.txt": f"-e .[{','.join(extras)}]\n"})
    assert read(tmp_path, "requirements.txt").requirements == listed.requirements


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edited(
        [PLAIN, WITHIN, *READS.values()],
        ["(", ")", "[", "]", "{", "}", "*", "**", "open(", "'r.txt'", "for x in y:", "return ",
         "setup(", "\n    ", "\x00", "+=", "install_requires=", "x[0]", "if x:", "common"],
    )
)  # fmt: skip
def test_any_text_is_read_or_refused(tmp_path: Path, text: str) -> None:
    outcome(tmp_path, "setup.py", text)
    outcome(tmp_path, "setup.cfg", text)
