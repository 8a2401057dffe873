"""The folder that all nodes of a job share: who takes part, and what each of them has done.

Each attempt has a folder of its own in it, so that no file of an earlier one is taken for a result.
In that folder each node has one that it alone can make, and writes each of its files by one rename.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

from ..report import CheckError

JOINED, ALONE, ENDED = "joined", "alone", "ended"
"""What a node writes: who it is, the speeds of its devices alone, and how its part ended."""

MOST = 1 << 20
"""Bytes of a file that are read."""

INTERVAL = 0.5
"""Seconds between two looks at the folder."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def name(text: str) -> str:
    """Parse the name of an attempt, or of a node; raise ValueError for anything else."""
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not 1 to 64 letters, digits, '.', '_' and '-'")
    return text


def machine(boot: Path = _BOOT) -> str:
    """Return what tells this machine from others: host names may be equal, or differ in one."""
    try:
        return boot.read_text(encoding="ascii").strip()
    except OSError:
        import socket

        return socket.gethostname()


@dataclass(frozen=True)
class Meeting:
    """One attempt of ``nodes`` nodes, as seen by node ``number``."""

    shared: Path
    attempt: str
    nodes: int
    number: int
    clock: Callable[[], float] = field(default_factory=lambda: time.monotonic)
    sleep: Callable[[float], None] = field(default_factory=lambda: time.sleep)

    @property
    def folder(self) -> Path:
        """The folder of this attempt, in which the ranks leave their results."""
        return self.shared / f"attempt-{self.attempt}"

    def join(self) -> None:
        """Make this node's folder; raise CheckError if this attempt already has such a node."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._of(self.number).mkdir()
        except FileExistsError:
            raise CheckError(
                f"node {self.number} has taken part in attempt {self.attempt} before: each attempt"
                " needs a name of its own, and each of its nodes a number"
            ) from None
        except OSError as error:
            raise CheckError(f"{self.folder}: {error.strerror or error}") from error

    def leave(self, kind: str, content: Dict[str, Any]) -> None:
        """Write one of this node's files."""
        path = self._of(self.number) / f"{kind}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content), encoding="utf-8")
        partial.replace(path)

    def look(self, kind: str) -> List[Dict[str, Any]]:
        """Return the files of this kind, by node; an empty one for each that is missing."""
        contents = []
        for number in range(self.nodes):
            folder = self._of(number)
            # NFS remembers for a while that a file was missing; to list its folder helps.
            with suppress(OSError):
                os.listdir(folder)  # noqa: PTH208
            contents.append(read(folder / f"{kind}.json"))
        return contents

    def gather(self, kind: str, until: float) -> List[Dict[str, Any]]:
        """Wait for the files of all nodes until a time of ``clock``; raise CheckError without one.

        A node that has ended without this file ends the wait.
        """
        while True:
            # In this order: a node writes its last file after all others.
            ends, contents = self.look(ENDED), self.look(kind)
            missing = [number for number, content in enumerate(contents) if not content]
            if not missing:
                return contents
            over = [number for number in missing if ends[number]]
            if over:
                raise CheckError(
                    "; ".join(f"node {n}: {ends[n].get('reason') or 'ended'}" for n in over)
                )
            if self.clock() >= until:
                raise CheckError(f"{listed(missing)} did not {_STAGES[kind]} within the limit")
            self.sleep(INTERVAL)

    def await_ends(self, until: float) -> List[Dict[str, Any]]:
        """Wait until every node has ended, or until a time of ``clock``; return what they left."""
        while True:
            ends = self.look(ENDED)
            if all(ends) or self.clock() >= until:
                return ends
            self.sleep(INTERVAL)

    def given_up(self) -> List[int]:
        """Return the other nodes that have ended otherwise than with all of their work done."""
        failed = [n for n, end in enumerate(self.look(ENDED)) if end and end.get("returncode") != 0]
        return [number for number in failed if number != self.number]

    def _of(self, number: int) -> Path:
        return self.folder / f"node-{number}"


_STAGES = {JOINED: "arrive", ALONE: "finish each device alone"}


def listed(numbers: Sequence[int]) -> str:
    """Return nodes by their numbers: ``node 1``, ``nodes 1, 2``."""
    plural = "s" if len(numbers) > 1 else ""
    return f"node{plural} {', '.join(map(str, numbers))}"


def read(path: Path) -> Dict[str, Any]:
    """Return a JSON file's object; an empty one if the file is missing or is something else."""
    try:
        with path.open("rb") as stream:
            value = json.loads(stream.read(MOST))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
