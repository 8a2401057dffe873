"""Provide the commands that install another build of a framework with each tool.

The commands follow the documentation at docs.astral.sh/uv, pip.pypa.io, python-poetry.org,
pdm-project.org, docs.conda.io and pixi.prefix.dev. Tests run the commands for uv, pip, poetry and
pdm in clean environments. The commands for conda and pixi, and the commands that repair an
installation, have never been run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envbuilder.core import process
from envbuilder.core.errors import Hint
from envbuilder.host.accelerators import ACCELERATORS
from envbuilder.profiles.frameworks import FRAMEWORKS, cuda_of
from envbuilder.profiles.releases import table_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from envbuilder.core import types
    from envbuilder.doctor.installed import Installed
    from envbuilder.profiles.releases import Build

_PIP = "{python} -m pip install{again}{needs}« \\\n  --index-url {url}»"
_TOOLS = {
    "uv": "uv pip install --python {python}{again}{needs}« \\\n  --index {url}»",
    "uv project": """«grep -q '"{name}"' pyproject.toml || cat >> pyproject.toml <<'END'

[[tool.uv.index]]
name = "{name}"
url = "{url}"
explicit = true
END
»uv add{needs}« \\
  --index {name}={url}»""",
    "pdm": """«grep -q '"{name}"' pyproject.toml || cat >> pyproject.toml <<'END'

[[tool.pdm.source]]
name = "{name}"
url = "{url}"
END
»pdm add{needs}""",
    "poetry": """«poetry source add --priority explicit {name} \\
  {url}
»poetry add{needs}« \\
  --source {name}»""",
    "new": """python{version} -m venv .venv-{version}
.venv-{version}/bin/python -m pip install{needs}« \\
  --index-url {url}»""",
    "conda": """conda install -p {prefix} \\
  -c conda-forge pytorch-gpu={release} 'cuda-version<={cuda}'""",
    "pixi": """pixi workspace system-requirements add cuda {cuda}
pixi add pytorch-gpu={release} 'cuda-version<={cuda}'""",
    "pixi of PyPI": """«file=pixi.toml table=pypi-options
[ -e pixi.toml ] || {{ file=pyproject.toml table=tool.pixi.pypi-options; }}
printf '\\n[%s]\\nextra-index-urls = ["%s"]\\n' $table {url} >> $file
»pixi add --pypi{needs}""",
    "envbuilder": Hint("", ("build",)).command_line(),
}
"""Tool → its installation commands. The parts in «» are for an index other than the default one."""
_INDEX = re.compile("«(.*?)»", re.DOTALL)
_INSTEAD = {"conda": "pip", "pixi": "pixi of PyPI"}
"""Tool → the tool to use instead for builds that conda-forge lacks. conda-forge has PyTorch's CUDA
builds."""
_AGAIN = {"pip": " --force-reinstall", "uv": " --reinstall"}
_REMOVE = {
    "pip": "{python} -m pip uninstall -y",
    "uv": "uv pip uninstall --python {python}",
    "uv project": "uv remove",
    "pdm": "pdm remove",
    "poetry": "poetry remove",
}
"""Tool → its command that removes packages."""
_EXTRAS = {"torch": "", "jax": "[{}]", "tensorflow": "[and-cuda]"}


def lines(
    env: Installed,
    key: types.Framework,
    build: Build,
    url: Callable[[str], str],
    *,
    again: bool = False,
) -> str:
    """Return the commands that install this build in an environment.

    `url` takes the name of an index and returns its URL. With `again`, the commands reinstall a
    damaged build.
    """
    package = env.frameworks[key]
    is_cuda = build.build.startswith("cu")
    # PyPI's builds are in PyTorch's indexes, too, where their versions name them.
    plain = key != "torch" or (build.index == "default" and not is_cuda)
    local = "" if plain else f"+{build.build}"
    named = key + _EXTRAS[key].format(build.build) if is_cuda else package.name
    row = table_of(key)[build.release]
    needs = [f"{named}=={build.release}{local}"]
    removed = set()
    for name in sorted(FRAMEWORKS[key].companions & env.packages.keys()):
        needs.append(f"{name}{row.range_of(name) or ''}")
        if version := row.companions.get(name):
            needs[-1] = f"{name}=={version}{local}"
        elif needs[-1] == name and cuda_of(env.packages[name].build) != cuda_of(build.build):
            # An installer would keep it. torchcodec's build for the CPU works beside any.
            removed |= {name} - {"torchcodec"}
    needs += [rule for rule in row.constraints if rule.startswith("numpy")]
    tool = env.place.tool
    version = env.place.version
    if version not in build.pythons or tool == "system":
        tool = "new"
    elif not (is_cuda and key == "torch" and env.is_of_conda(package)):
        tool = _INSTEAD.get(tool, tool)
    name = "" if plain else f"pytorch-{build.build.replace('.', '')}"
    text = _INDEX.sub(r"\1" if name else "", _TOOLS.get(tool, _PIP))
    accelerator = next(
        r for r in ACCELERATORS.values() if build.build.startswith(r.builds or r.name)
    )
    twins = FRAMEWORKS[key].names - {named.partition("[")[0]}
    twins |= FRAMEWORKS[key].foreign(accelerator.name)
    removed |= twins & env.packages.keys()
    if removed and tool in _REMOVE:
        text = f"{_REMOVE[tool]} {' '.join(sorted(removed))}\n{text}"
    if env.place.project:
        text = f"cd {{project}}\n{text}"
    return text.format(
        again=_AGAIN.get(tool, "") if again else "",
        needs="".join(f" \\\n  {process.quoted([need])}" for need in needs),
        name=name,
        url=url(name) if name else "",
        version=version if version in build.pythons else build.pythons[-1],
        release=build.release,
        cuda=f"{build.build[2:4]}.{build.build[4:]}",
        python=process.quoted([env.place.python]),
        prefix=process.quoted([env.place.prefix]),
        project=process.quoted([env.place.project]),
    )
