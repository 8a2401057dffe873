"""Recorded trees with what engines and CDI leave there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from envbuilder.host import engines
from envbuilder.host.model import Containers
from envbuilder.host.snapshot import Reader
from tests.support.repositories import lay

NVIDIA = """\
---
cdiVersion: 0.5.0
containerEdits:
  hooks:
  - args: [nvidia-cdi-hook, chmod]
    hookName: createContainer
    name: a hook
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      name: a node
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: GPU-520e01f2-cf30-6396-abef-e8e9a5233b0e # the same
- name: all
kind: nvidia.com/gpu
"""


def tree(root: Path, files: dict[str, Any]) -> Path:
    return lay(root, {p: c if isinstance(c, str) else json.dumps(c) for p, c in files.items()})


def look(root: Path, *, full: bool = False, live: bool = False) -> tuple[Containers, list[str]]:
    reader = Reader(root)
    reader.live = live
    engines.read(reader, full=full)
    taken = reader.snapshot("linux")
    return engines.decide(taken), engines.notes(taken)
