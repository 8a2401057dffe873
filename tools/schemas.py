"""Make the JSON schemas of the files that envbuilder writes, from the structures that read them.

    make docs

They go into `share/envbuilder/`, and with the wheel below the prefix that it is installed into.
What no schema can say (that files fit together, that a passed report contradicts nothing) is
checked by envbuilder alone. envbuilder.yaml has its own (`tools/project_schema.py`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from envbuilder.builds.backends import integrity
from envbuilder.bundle import format as bundle
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.profiles import lock
from envbuilder.verify.report import model as report
from envbuilder.watch import model as watch
from tools import project_schema
from tools.matrix import REPOSITORY

FOLDER = REPOSITORY / "share" / "envbuilder"
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
KINDS = {
    "lock": (lock.Lock, "Lock of a profile, or of a project's environment", (lock.SCHEMA,)),
    "conda-lock": (conda_lock.Lock, "Lock of conda packages", (conda_lock.SCHEMA,)),
    "environment": (
        integrity.Entry,
        f"One line of {integrity.FILES}, the integrity manifest of a native environment",
        (),
    ),
    "report": (report.Report, "Report of `envbuilder verify`", (report.SCHEMA,)),
    "watch": (watch.Watched, "Report of `envbuilder watch`", ()),
    "bundle": (bundle.Manifest, "Manifest of a bundle", (bundle.SCHEMA, bundle.WITH_PROJECT)),
}
"""Name → structure, title, and the numbers that its key `schema` may have if it states none."""


def texts() -> dict[str, str]:
    """Return the files by name."""
    files = {}
    for name, (kind, title, numbers) in KINDS.items():
        made = _portable(msgspec.json.schema(kind))
        if numbers:
            made["$defs"][kind.__name__]["properties"]["schema"]["enum"] = list(numbers)
        whole = {"$schema": _DRAFT, "title": title, **made}
        encoded = msgspec.json.encode(whole, order="deterministic")
        files[f"{name}.schema.json"] = msgspec.json.format(encoded, indent=1).decode() + "\n"
    return files


def _portable(node: Any) -> Any:
    """Return a schema with patterns that other readers than Python know."""
    if isinstance(node, list):
        return [_portable(item) for item in node]
    if not isinstance(node, dict):
        return node
    return project_schema.readable({key: _portable(value) for key, value in node.items()})


def write() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
