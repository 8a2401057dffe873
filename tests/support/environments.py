"""Environments as other tools leave them, from `tests/data/environments.yaml`.

made        the tool: uv (default), venv, virtualenv, conda, pixi, debian, image, envbuilder
prefix      the folder of the environment, `proj/.venv` if not stated; `beside`: files next to it
python      X.Y of its Python; `lost`: where the link to it leads, if that is gone
packages    name → version, or what else its files state: `version` of METADATA, `code` of
            version.py, `cuda` as a line there, `requires`, `installer`; `home`: of the user's site
records     files in conda-meta
libraries   library below the folder of packages → those that it needs
host        one of `tests/data/hosts`
verdict, says, fix, paste, notes, accelerator    what the doctor has to say, in part but for `paste`
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from envbuilder.doctor import installed, verdict
from envbuilder.host import model
from envbuilder.packages.python import indexes
from tests.support import elf, host_trees

DATA = Path(__file__).parents[1] / "data"
CASES: dict[str, dict[str, Any]] = yaml.safe_load((DATA / "environments.yaml").read_text())
_CONFIGS = {
    "uv": "home = /usr/bin\nuv = 0.13.9\nversion_info = {0}.7\n",
    "venv": "home = /usr/bin\nversion = {0}.7\ncommand = /usr/bin/python3 -m venv .venv\n",
    "virtualenv": "home = /usr/bin\nversion_info = {0}.7.final.0\nvirtualenv = 21.15.11\n",
    "envbuilder": "home = /usr/bin\nuv = 0.13.9\nversion_info = {0}.7\n",
}
PYTHON = b"\x7fELF"


def install(site: Path, packages: Mapping[str, Any]) -> None:
    """Write what an installer leaves of packages."""
    for name, stated in packages.items():
        facts = stated if isinstance(stated, dict) else {"version": str(stated)}
        module = name.replace("-", "_")
        info = site / f"{module}-{facts['version']}.dist-info"
        info.mkdir(parents=True)
        lines = [f"Metadata-Version: 2.1\nName: {name}", f"Version: {facts['version']}"]
        lines += [f"Requires-Dist: {need}" for need in facts.get("requires", ())]
        (info / "METADATA").write_text("\n".join([*lines, "", "Requires-Dist: torch==0.1"]))
        (info / "INSTALLER").write_text(facts.get("installer", ""))
        if name.startswith("torch"):
            code = f"__version__ = '{facts.get('code', facts['version'])}'\n"
            if name == "torch":
                code += f"debug = False\ncuda: Optional[str] = {facts.get('cuda')}\nhip = None\n"
            (site / module).mkdir(exist_ok=True)
            (site / module / "version.py").write_text(code)


def lay(root: Path, case: Mapping[str, Any]) -> Path:
    """Write an environment below a folder; return its interpreter."""
    made = case.get("made", "uv")
    version = case.get("python", "3.11")
    prefix = root / case.get("prefix", "proj/.venv")
    site = prefix / f"lib/python{version}/site-packages"
    site.mkdir(parents=True)
    python = prefix / "bin/python"
    python.parent.mkdir()
    if "lost" in case:
        python.symlink_to(case["lost"])
    else:
        python.write_bytes(PYTHON)
    if made in _CONFIGS:
        (prefix / "pyvenv.cfg").write_text(_CONFIGS[made].format(version))
    elif made == "debian":
        site = prefix / "lib/python3/dist-packages"
        (prefix / f"lib/python{version}/EXTERNALLY-MANAGED").touch()
    elif made != "image":
        (prefix / "conda-meta").mkdir()
    if made == "envbuilder":
        (prefix / "envbuilder.json").touch()
    for name in case.get("beside", ()):
        (prefix.parent / name).touch()
    install(site, case["packages"])
    install(root / f"home/.local/lib/python{version}/site-packages", case.get("home", {}))
    for path, needed in case.get("libraries", {}).items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(elf.library(*needed))
    return python


def judged(root: Path, case: Mapping[str, Any], **variables: str) -> verdict.Judgement:
    """Return what the doctor says of an environment that was laid."""
    environ = {"HOME": f"{root}/home", **variables}
    python = root / case.get("prefix", "proj/.venv") / "bin/python"
    env = installed.find(python, environ, "/ours")
    assert env
    host = model.read(host_trees.FOLDER / f"{case['host']}.json")
    system = b"libgomp.so.1\0libc.so.6\0" if "libraries" in case else b""
    shipped = indexes.upstreams()
    around = verdict.Around(lambda name: shipped[name].url, system, environ)
    return verdict.judge(env, host, around)
