"""Record what detection reads on this machine, as a tree that `envbuilder detect --root` replays.

    python tools/record_host.py ARCHIVE.tar.gz

The archive holds `host/` (the tree) and `host.yaml` (the same for `tests/data/hosts`). The
tree is that of `envbuilder detect --record`. It is replayed before it is written: exit code 1 and
the differing facts where it does not lead to the decisions that the machine itself does.
"""

from __future__ import annotations

import argparse
import difflib
import io
import json
import re
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from envbuilder.core.settings import load as load_settings
from envbuilder.host import probe, record
from envbuilder.profiles.choice import choose_best
from envbuilder.project import variants

if TYPE_CHECKING:
    from envbuilder.host.model import Host
    from envbuilder.profiles.choice import Choice


def as_yaml(data: dict[str, Any], choice: Choice) -> str:
    """Return a recording as a host of `tests/data/hosts`; time and place are for people."""
    lines = ["origin: recorded", "source:"]
    for section in ("files", "binary", "links", "nodes"):
        lines += [f"{section}:"] * bool(data[section])
        lines += [f"  {path}: {_scalar(value)}" for path, value in data[section].items()]
    lines += ["folders:"] * bool(data["folders"]) + [f"  - {path}" for path in data["folders"]]
    verdicts = ", ".join(f'{fit.profile}: "{fit.verdict}"' for fit in choice.fits)
    return "\n".join([*lines, f"verdicts: {{{verdicts}}}", f"chosen: {choice.profile}", ""])


def _scalar(value: str | bool) -> str:
    """Text as a YAML block where that is possible, else as JSON, which YAML is a superset of."""
    if isinstance(value, bool) or not re.match(r"\S[^\0]*\n\Z", value):
        return json.dumps(value)
    block = "|+" if value.endswith("\n\n") else "|"
    return "\n".join([block, *(f"    {line}".rstrip() for line in value[:-1].split("\n"))])


def archive(tree: Path, text: str) -> bytes:
    """Return the tree and its YAML as a tar.gz without this machine's users and times."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = 0
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(tree, "host", filter=plain)
        entry = tarfile.TarInfo("host.yaml")
        entry.size = len(text.encode())
        tar.addfile(plain(entry), io.BytesIO(text.encode()))
    return buffer.getvalue()


def judged(host: Host) -> tuple[Choice, dict[str, Any]]:
    """Return the choice among the profiles, and all that `detect --json` says of it and the host.

    What only the live machine has (the numbers of groups; that buildx is in nobody's home, either)
    is not in a recording.
    """
    library = variants.library(load_settings())
    candidates = library.profiles()
    choice = choose_best(candidates, host, locks=library.locks(candidates))
    facts = {"host": msgspec.to_builtins(host), "choice": msgspec.to_builtins(choice)}
    facts["host"]["containers"]["buildx"] = host.containers.buildx or None
    return choice, facts


def differences(
    live: dict[str, Any], replayed: dict[str, Any], scrubber: record.Scrubber
) -> list[str]:
    """Return the lines in which a host and its recording are judged differently, as a diff."""
    here = scrubber.public(json.dumps(live, indent=1)).splitlines()
    there = json.dumps(replayed, indent=1).splitlines()
    return [*difflib.unified_diff(here, there, "here", "recording", lineterm="")]


def main(arguments: list[str]) -> int:
    """Write the archive; 1 where its replay leads to other decisions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    options = parser.parse_args(arguments)
    scrubber = record.this_machine()
    taken = probe.fetch(Path("/"))
    data = record.recording(taken, scrubber)
    _, live = judged(probe.decide(taken, {}))
    with tempfile.TemporaryDirectory() as folder:
        tree = record.plant(Path(folder), data)
        choice, replayed = judged(probe.host(tree))
        options.archive.write_bytes(archive(tree, as_yaml(data, choice)))
    found = differences(live, replayed, scrubber)
    for line in found:
        sys.stderr.write(f"{line}\n")
    sys.stdout.write(json.dumps({"profile": choice.profile, "differences": found}) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
