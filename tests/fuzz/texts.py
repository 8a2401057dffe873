"""Hostile data and texts: samples, profiles, locks, reports, hosts, pages, repositories."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from random import Random

from envbuilder.core.settings import load as load_settings
from envbuilder.packages import upstream
from envbuilder.packages.python import indexes, uv
from envbuilder.profiles import profile
from envbuilder.project import forms
from envbuilder.verify import show
from envbuilder.verify.report import comparison, regression
from tests.fuzz.inputs import ROOT, written
from tests.fuzz.mutations import mutated
from tests.support import reports

# ---- data


# ---- text


SEEDS: dict[str, Iterable[Path]] = {
    "yaml": [
        path
        for folder in ("profiles", "profiles/indexes")
        for path in sorted((ROOT / folder).rglob("*.yaml"))
    ],
    "lock": sorted((ROOT / "profiles/locks").glob("*.json")),
}


@cache
def _seeds(kind: str) -> list[bytes]:
    of_files = [path.read_bytes() for path in SEEDS.get(kind, ())]
    return of_files or [json.dumps(reports.whole()).encode()]


def _grown(random: Random, data: bytes) -> bytes:
    """Bytes with known tricks of text formats, besides `mutated`."""
    if random.random() < 0.1:
        line = random.choice(
            (
                b"a: &a [x]\nb: [*a, *a]\n",
                b"- " * 3000,
                b"k: !!int ''\n",
                b"? [a]\n: b\n",
                b"[[],",
                b'{"a":1,"a":2}',
                b"a: " + b"1:" * 40 + b"1\n",
                b"x: 2026-99-99\n",
                b"[],",
            )
        )
        data = data + b"\n" + line * random.choice((1, 100, 30_000))
    return mutated(random, data)


def grown(kind: str, file: str) -> Callable[[Random, Path], Path]:
    return lambda random, work: written(work / file, _grown(random, random.choice(_seeds(kind))))


def make_yaml(random: Random, work: Path) -> Path:
    data = _grown(random, random.choice(_seeds("yaml")))
    for path in ("config/config.yaml", "profiles/indexes.yaml"):
        written(work / path, data)
    written(work / "profiles/_base.yaml", b"description: x\n")
    return written(work / "profiles/mine.yaml", data)


def read_profile(path: Path, work: Path) -> None:
    profile.load("mine", [path.parent])


def read_settings(path: Path, work: Path) -> None:
    load_settings(
        {"ENVBUILDER_CONFIG_DIR": str(work / "config"), "HOME": str(work)}, work, lambda line: None
    )


def read_indexes(path: Path, work: Path) -> None:
    indexes.upstreams(path.parent)


def read_report(path: Path, work: Path) -> None:
    stored = regression.read(path)
    show.render(json.loads(path.read_bytes()))
    rows = comparison.rows([stored])
    comparison.markdown(rows)
    comparison.comma_separated(rows)
    comparison.as_json(rows)


# ---- answers of indexes, and of uv


def make_page(random: Random, work: Path) -> Path:
    html = (
        b'<!DOCTYPE html><a href="x-1.0-py3-none-any.whl#sha256=00" data-requires-python="x">x</a>'
    )
    known = {"files": [{"filename": "x-1.0-py3-none-any.whl", "url": "x", "hashes": {}, "size": 1}]}
    lock = b'[[packages]]\nname = "x"\nversion = "1"\nwheels = [{url = "http://h/x-1.0-py3-none-any.whl"}]\n'
    data = random.choice((html, json.dumps(known).encode(), lock)) * random.choice((1, 1, 2000))
    if random.random() < 0.05:
        data += random.choice((b"<", b"<a ", b"<!", b"<a href='", b"&", b"[", b"a.")) * 50_000
    return written(work / "page", mutated(random, data))


def read_page(path: Path, work: Path) -> None:
    text = path.read_text(encoding="utf-8", errors="replace")
    upstream.parse_page(text, "https://index.invalid/x/", "x", "default")


def read_pylock(path: Path, work: Path) -> None:
    text = path.read_text(encoding="utf-8", errors="replace")
    uv.parse_pylock(text, "linux/amd64", "3.12")


# ---- a repository's files that list requirements

REPOSITORY = {
    "requirements.txt": "-r more.in\n-c pins.txt\n-e .[dev]\ntorch==2.1+cu118\n./libs/x[a]; a\n"
    "git+https://example.org/o/r.git@v1#egg=r\nx @ https://example.org/x-1.0.zip\n",
    "more.in": "rich>=13; python_version < '3.12' --hash=sha256:0\n-r requirements.txt\n",
    "pins.txt": "numpy<2\n",
    "pyproject.toml": '[project]\nname = "own"\ndynamic = ["dependencies"]\n'
    '[tool.poetry.dependencies]\npython = "^3.9"\n'
    'x = [{ version = "~1.2", python = "<3.10" }, { path = "libs/x" }]\n'
    '[tool.uv.workspace]\nmembers = ["libs/*"]\n[tool.uv.sources]\nx.workspace = true\n',
    "libs/x/pyproject.toml": '[project]\nname = "x"\ndependencies = ["own[dev]"]\n',
    "setup.cfg": "[options]\ninstall_requires = file: more.in, setup.py\n",
    "setup.py": "def f(name='more.in', *a):\n    r = []\n    for x in open(name):\n"
    "        r.append(x)\n    return r, f(*a)\nd = {'extras_require': {'dev': ['b']}}\n"
    "r, _ = f()\nsetup(install_requires=[*r, 'x'], **d)\n",
    "environment.yml": "channels: [https://example.org/c, a]\ndependencies:\n- a::b==1.0=0\n"
    "- numpy=1.26|1.27\n- pip:\n  - -r requirements.txt\nvariables: {A: b}\n",
    "conda.txt": "# platform: linux-64\nnumpy=1.0=0\nrich=1.0=pypi_0\n",
    "uv.lock": "version = 1\n[[package]]\nname = 'own'\nsource = {virtual = '.'}\n"
    "dependencies = [{name = 'x', marker = \"extra == 'dev'\"}]\n[package.metadata]\n"
    "requires-dist = [{name = 'x'}]\n[[package]]\nname = 'x'\nversion = '1'\n"
    "source = {git = 'x#1'}\n",
    "pylock.toml": "lock-version = '1.0'\ncreated-by = 'x'\n[[packages]]\nname = 'x'\n"
    "version = '1'\n[packages.archive]\nurl = 'https://example.org/x'\nhashes = {sha256 = '1'}\n",
    "Pipfile": "[packages]\nx = {git = 'https://example.org/x', ref = 'v1', markers = 'a'}\n",
    "Pipfile.lock": '{"default": {"x": {"version": "==1.0", "markers": "python_version < \'4\'"}}}',
    "pixi.toml": "[dependencies]\nx = {version = '1.*', channel = 'a'}\n[target.linux-64]\n"
    "dependencies = {y = '>=1,<2'}\n[pypi-dependencies]\nown = {path = '.'}\n",
    "train.py": "# /// script\n# dependencies = ['x']\n# [tool.uv.sources]\n"
    "# x = {git = 'x'}\n# ///\n",
    "cog.yaml": "build: {python_packages: [rich], python_requirements: more.in}\n",
}
"""Files that name each other, themselves and what there is not."""


def make_repository(random: Random, work: Path) -> Path:
    names = ["/etc/hostname", "../x", "more.in", "\\\n", "${A}", "(" * 300, "[" * 300, "a" * 3000]
    for name, plain in REPOSITORY.items():
        text = plain
        if random.random() < 0.5:
            text = plain.replace(random.choice(("more.in", "x", "=", "1")), random.choice(names))
        data = mutated(
            random, text.encode() * random.choice((1, 1, 1, 300)), random.choice((0, 1, 3))
        )
        path = written(work / "repository" / name, data)
        if random.random() < 0.05:
            path.unlink()
            path.symlink_to(random.choice((path.name, "../../x", "/dev/zero", "more.in")))
    return work / "repository"


def read_repository(path: Path, work: Path) -> None:
    from envbuilder.core.errors import EnvbuilderError

    for name in REPOSITORY:
        try:
            listed = forms.read(path, name)
        except EnvbuilderError as error:
            assert len(error.message) < 2000, name  # noqa: PT017 (no test of pytest)
        else:
            assert listed.requirements or listed.constraints or listed.conda or listed.notes, name
