"""setup.py by its syntax tree, setup.cfg, and what a pyproject.toml leaves to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from envbuilder.project.environments import read
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
NAME, MINIMUM = "own", "1.2"
common = ["numpy>=%s" % MINIMUM, f"scipy>={MINIMUM}"]
common += ["rich"]
extras = {"dev": ["pytest"], "docs": ["sphinx"]}
extras["all"] = extras["dev"] + extras["docs"]
extras.update(gpu=common)
if os.environ.get("OWN_FULL", "0") == "1":
    common.append("never")

if __name__ == "__main__":
    setup(
        name=NAME,
        version=VERSION["version"],
        python_requires=">=3.9",
        install_requires=["torch", *common, "tqdm" + ">=4"],
        extras_require=extras,
    )
"""


def test_what_is_written_down(tmp_path: Path) -> None:
    lay(tmp_path, {"setup.py": PLAIN})
    listed = read(tmp_path, "setup.py", ["all"])
    assert texts(listed.requirements) == [
        *("torch", "numpy>=1.2", "scipy>=1.2", "rich", "tqdm>=4", "pytest", "sphinx"),
    ]
    assert places(listed.requirements)[:2] == ["setup.py:22", "setup.py:9"]
    assert texts(listed.pythons) == [">=3.9"]
    assert "no extra gone" in refusal(tmp_path, "setup.py", ["gone"])[0]
    assert not (tmp_path / "own").exists()


READS = {
    "open().read().splitlines()": "setup(install_requires=open('r.txt').read().splitlines())",
    "a with statement": "with open('r.txt') as f:\n    r = f.readlines()\n"
    "setup(install_requires=r)",
    "a path": "import pathlib\nr = pathlib.Path(__file__).resolve().parent / 'r.txt'\n"
    "setup(install_requires=[x for x in r.read_text().split('\\n') if x])",
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
    assert listed.read_from == ("sub/more.txt", "sub/r.txt")


FORMS = {
    "a table by names": "_deps = ['rich>=13', 'numpy!=1.0', 'tqdm']\n"
    "deps = {b: a for a, b in (re.findall('^(([^!=<>]+).*)$', x)[0] for x in _deps)}\n"
    "def deps_list(*names):\n    return [deps[name] for name in names]\n"
    "setup(install_requires=[deps['rich']] + deps_list('numpy', 'tqdm'))",
    "keywords in a dict": "kwargs = dict(name='x')\nkwargs['install_requires'] = ['rich>=13', "
    "'numpy!=1.0', 'tqdm']\nsetup(**kwargs)",
    "a text of lines": 'setup(install_requires="""\nrich>=13\nnumpy!=1.0\ntqdm\n""")',
    "a function that calls it": "def main():\n    r = ('rich>=13', 'numpy!=1.0', 'tqdm')\n"
    "    setuptools.setup(install_requires=r)\nmain()",
    "conditions": "r = ['rich>=13']\nif sys.version_info >= (3, 8):\n    r.append('numpy!=1.0')\n"
    "else:\n    r += ['typing']\ntry:\n    import x\n    r.extend(['tqdm'])\nexcept ImportError:\n"
    "    pass\nsetup(install_requires=r)",
    "sums": "a = {'x': ['rich>=13'], 'y': ['numpy!=1.0', 'tqdm']}\n"
    "setup(install_requires=sum(a.values(), []))",
    "format": "setup(install_requires=['rich>={}'.format('13'), 'numpy!=1.0', 'TQDM'.lower()])",
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS.keys())
def test_other_forms(tmp_path: Path, text: str) -> None:
    lay(tmp_path, {"setup.py": text})
    assert texts(read(tmp_path, "setup.py").requirements) == ["rich>=13", "numpy!=1.0", "tqdm"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("r = get()\n\nsetup(install_requires=r)", "setup.py:1: install_requires is computed"),
        ("setup(install_requires=[\n  'a'] * 9)", "setup.py:1: install_requires is computed"),
        ("if os.path.exists('\\0'):\n  r = 1\nsetup(install_requires=r)", "setup.py:3"),
        ("print('no')", "setup.py:1: no call of setup() is found"),
        ("setup(\n", "setup.py:1: not valid Python 3"),
        ("print 'old'", "setup.py:1: not valid Python 3"),
        ("x = ['a']\nfor i in range(9):\n  x = x + x\nsetup(install_requires=x)", "setup.py:2"),
        ("x = 'a' * 10\nsetup(install_requires=x)", "setup.py:1: install_requires is computed"),
        ("x = ['a'] * 1\n" + "y = 1\n" * 20_001, "computes too much"),
        ("def f():\n    return f()\nsetup(install_requires=f())", "setup.py:2: install_requires"),
        ("setup(install_requires=open('../x.txt'))", "setup.py:1: ../x.txt: "),
        ("setup(install_requires=open('/etc/x.txt'))", "setup.py:1: /etc/x.txt: "),
        (f"x = {'-' * 5000}1\nsetup(install_requires=['a', x])", "setup.py"),
        ("setup(install_requires='{0}{0}'.format(open))", "setup.py:1: install_requires"),
    ],
)
def test_what_is_computed_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    lay(tmp_path, {"setup.py": text})
    assert refusal(tmp_path, "setup.py")[0].startswith(message) or message in str(
        refusal(tmp_path, "setup.py")
    )


def test_what_depends_on_the_machine_is_noted_beside_the_rest(tmp_path: Path) -> None:
    text = "r = ['rich']\nif sys.platform == 'win32':\n    r.append('colorama')\n"
    text += f"setup(install_requires=r + [torch_for(GPU), {'[' * 90}{']' * 90}])\n"
    lay(tmp_path, {"setup.py": text})
    listed = read(tmp_path, "setup.py")
    assert texts(listed.requirements) == ["rich"]
    for note, place in zip(listed.notes, (":2", ":4", ": install_requires"), strict=True):
        assert note.startswith(f"setup.py{place}: a requirement that is computed while it runs")


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
        ({"pyproject.toml": OPEN, "setup.cfg": CFG}, (), ["rich>=13", "numpy"]),
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
    assert listed.read_from
    lay(tmp_path, {"requirements.txt": f"-e .[{','.join(extras)}]\n"})
    assert read(tmp_path, "requirements.txt").requirements == listed.requirements


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edited(
        [PLAIN, *READS.values(), *FORMS.values()],
        ["(", ")", "[", "]", "{", "}", "f'", "*", "**", "lambda: ", "open(", "'r.txt'", "while 1:",
         "for x in y:", "%s", ".format(", "return ", "setup(", "\n    ", "\x00", "yield ", "+=",
         "install_requires=", "x[0]", "if x:", "common"],
    )
)  # fmt: skip
def test_any_text_is_read_or_refused(tmp_path: Path, text: str) -> None:
    outcome(tmp_path, "setup.py", text)
    outcome(tmp_path, "setup.cfg", text)
