"""Bring a device table up to date from an upstream file that you have fetched.

    python tools/refresh_devices.py TABLE SOURCE_FILE [--version TEXT] [--write]

Prints the rows that are new, changed and gone; `--write` writes them. A row that is gone upstream
is reported and kept, and what was written by hand stays. New Intel GPUs take family, state and
memory from the others of their configuration where these agree. Exit code 2: the file is not what
was expected, and nothing was written.

intel-gpus   shared/source/dll/devices/devices_base.inl of github.com/intel/compute-runtime
nvidia-gpus  pci.ids of pci-ids.ucw.cz; Debian's package `pci.ids` holds it in /usr/share/misc
x86-cpus     arch/x86/include/asm/intel-family.h of Linux; Debian's linux-headers-*-common has it.
             The rows of AMD are not in it and stay.
arm-cpus     sys-utils/lscpu-arm.c of github.com/util-linux/util-linux

`--version` says which commit or release the file is from; it goes into the column `source`. Without
it pci.ids names its own version, and of other files the sha256 is noted.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Row = dict[str, str]
News = list[tuple[str, str]]  # "added", "changed", "kept" or "gone", and what that is about

DEVICES = Path(__file__).resolve().parent.parent / "profiles" / "devices"
LARGEST = 16 * 2**20


class UnexpectedError(Exception):
    """The upstream file, or the table, is not what was expected; the message is for people."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A device in an upstream file: what it says for columns of the table ("" = nothing)."""

    values: Row
    group: str = ""
    """Devices of one group have the hand-written columns in common."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """How one table is kept."""

    columns: tuple[str, ...]
    key: tuple[str, ...]
    source: str
    parse: Callable[[str], list[Found]]
    same: Callable[[str, str], bool] = str.__eq__
    """Whether the table's word for something is that of the upstream file."""
    by_hand: frozenset[str] = frozenset()
    """Columns that an upstream file fills in for new rows only."""
    theirs: Callable[[Row], bool] = lambda _: True
    """Whether a row comes from the upstream file."""


def parse_intel(text: str) -> list[Found]:
    """Return the ids in `DEVICE(id, configuration)` and `NAMEDDEVICE(id, configuration, name)`."""
    macro = re.compile(r'(?:NAMED)?DEVICE\(0x([0-9A-Fa-f]{4}), *(\w+)(?:, *"([^"]*)")?\)\s*(//.*)?')
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not re.match(r"\s*\w*DEVICE\(", line):
            continue
        match = macro.fullmatch(line.strip())
        if match is None:
            raise UnexpectedError(f"line {number} is a device that cannot be read: {line[:80]!r}")
        noise = r"^Intel\(R\) |Data Center GPU |\((?:R|TM)\)| (?:Graphics|GPU)$"
        name = re.sub(noise, "", match[3] or "")
        # "Graphics" or "Iris Xe" name no product: the family says more.
        values = {"id": match[1].lower(), "name": name if re.search("[0-9]", name) else ""}
        found.append(Found(values=values, group=match[2].removesuffix("HwConfig")))
    return found


def parse_pci(text: str) -> list[Found]:
    """NVIDIA's GPUs from Fermi on: `id  CHIP [product]` below vendor 10de."""
    _, start, rest = text.partition("\n10de  ")
    if not start:
        raise UnexpectedError("vendor 10de (NVIDIA) is not in it")
    found = []
    for line in rest.splitlines()[1:]:
        if line[:1] not in ("\t", "#", ""):
            break
        match = re.fullmatch(
            r"\t([0-9a-f]{4})  ((?:G[ABFHKMPRV]|AD|TU)[0-9]{2}[0-9A-F])(?![0-9])(.*)", line
        )
        if match is None or re.search(r"(?i)audio|usb|switch|bridge|controller", match[3]):
            continue
        product = re.search(r"\[(.*)\]", match[3])
        name = product[1].strip() if product else ""
        found.append(Found(values={"id": match[1], "chip": match[2], "name": name}))
    return found


def parse_x86(text: str) -> list[Found]:
    """Return the models `INTEL_NAME IFM(family, model)`, and the older `INTEL_FAM6_NAME model`."""
    define = re.compile(
        r"#define\s+INTEL_(?:FAM6_)?(?!FAM|ANY|LAST|PENTIUM|QUARK|P4_)(\w+?)"
        r"\s+(?:IFM\((\d+), *)?0x([0-9A-Fa-f]{1,2})\)?\s*(?:/\*\s*(.*?)\s*\*/)?\s*"
    )
    found = []
    for match in filter(None, map(define.fullmatch, text.splitlines())):
        model = str(int(match[3], 16))
        values = {"vendor": "GenuineIntel", "family": match[2] or "6"}
        values |= {"first_model": model, "last_model": model}
        values["generation"] = _generation(match[1], match[4] or "")
        found.append(Found(values=values))
    return found


def _generation(macro: str, comment: str) -> str:
    """`SAPPHIRERAPIDS_X` is "Sapphire Rapids"; of small cores the comment names the product."""
    if macro.startswith("XEON_PHI_"):
        return comment or macro
    name = re.sub(r"^(?:ATOM|CORE2?)_|_(?:[A-Z]|E[PX]|MID2?|NP|TABLET|NNPI)$", "", macro)
    name = re.sub(r"_|(?<=[A-Z])(?=(?:LAKE|RAPIDS|BRIDGE)$)", " ", name).title()
    return f"{name} ({comment})" if macro.startswith("ATOM_") and comment else name


def _same_generation(ours: str, theirs: str) -> bool:
    return theirs.partition(" (")[0].replace(" ", "").lower() in ours.replace(" ", "").lower()


def parse_arm(text: str) -> list[Found]:
    """Return the lists of parts, each below the implementer that `hw_implementer` gives it."""
    parts = {
        name: re.findall(r'\{\s*(0x[0-9a-fA-F]{1,3})\s*,\s*"([^"\n]+)"\s*\}', body)
        for name, body in re.findall(r"struct id_part (\w+)\[\] = \{(.*?)\n\};", text, re.DOTALL)
    }
    found = []
    for implementer, name in re.findall(r'\{\s*(0x[0-9a-fA-F]{2})\s*,\s*(\w+)\s*,\s*"', text):
        if name not in parts:
            raise UnexpectedError(f"the list {name} of implementer {implementer} is not in it")
        for part, core in parts[name]:
            values = {"implementer": implementer.lower(), "part": f"0x{int(part, 16):03x}"}
            found.append(Found(values={**values, "name": core}))
    return found


TABLES = {
    "intel-gpus": Table(
        columns=("id", "family", "torch_xpu", "memory", "name", "source"),
        key=("id",),
        source="intel/compute-runtime devices_base.inl @{}",
        parse=parse_intel,
    ),
    "nvidia-gpus": Table(
        columns=("id", "chip", "name", "source"),
        key=("id",),
        source="pci.ids {}",
        parse=parse_pci,
    ),
    "x86-cpus": Table(
        columns=("vendor", "family", "first_model", "last_model", "generation", "source"),
        key=("vendor", "family", "first_model"),
        source="Linux {} arch/x86/include/asm/intel-family.h",
        parse=parse_x86,
        same=_same_generation,
        by_hand=frozenset({"generation"}),
        theirs=lambda row: row["vendor"] == "GenuineIntel",
    ),
    "arm-cpus": Table(
        columns=("implementer", "part", "name", "source"),
        key=("implementer", "part"),
        source="util-linux {} sys-utils/lscpu-arm.c",
        parse=parse_arm,
    ),
}


def merge(
    table: Table, old: Sequence[Row], found: Sequence[Found], version: str
) -> tuple[list[Row], News]:
    """Return a table's new rows and the news; raise UnexpectedError if the two do not fit."""
    source = table.source.format(version)
    upstream = {_key(table, one.values): one for one in found}
    known = {_key(table, row): row for row in old}
    theirs = [key for key, row in known.items() if table.theirs(row)]
    gone = [key for key in theirs if key not in upstream]
    if not upstream:
        raise UnexpectedError("no device is in it")
    if len(gone) * 2 > len(theirs):
        raise UnexpectedError(f"{len(gone)} of the table's {len(theirs)} rows are not in it")
    rows = [row for key, row in known.items() if key not in upstream]
    news = [("gone", f"{' '.join(key)}: upstream does not have it any more; kept") for key in gone]
    for key, one in upstream.items():
        if key in known:
            row, told = _updated(table, known[key], one, source)
        else:
            group = [known[k] for k, o in upstream.items() if k in known and o.group == one.group]
            row = {**dict.fromkeys(table.columns, ""), **one.values, "source": source}
            row |= _shared(one.group, group, source) if one.group else {}
            told = [("added", ", ".join(row[n] or f"no {n}" for n in table.columns[:-1]))]
        rows.append(row)
        news += [(word, f"{' '.join(key)}: {text}") for word, text in told]
    # Ids have one length, and numbers no leading zeros: of two the longer is the larger.
    rows.sort(key=lambda row: [(len(part), part) for part in _key(table, row)])
    return rows, news


def _key(table: Table, row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in table.key)


def _updated(table: Table, row: Row, one: Found, source: str) -> tuple[Row, News]:
    told, taken = [], {}
    for name, value in one.values.items():
        if value and value != row[name] and not table.same(row[name], value):
            if name not in table.by_hand:
                taken[name] = value
            word = "changed" if name in taken else "kept"
            told.append((word, f"{name} {row[name]!r}, upstream {value!r}"))
    if taken:
        taken["source"] = source + "".join(row["source"].partition("; ")[1:])
    return {**row, **taken}, told


def _shared(name: str, group: Sequence[Row], source: str) -> Row:
    """Return what a new device has in common with its group; what cannot be known stays empty."""
    columns = ("family", "torch_xpu", "memory")
    families, states, memories = (sorted({row[column] for row in group}) for column in columns)
    remarks = {"".join(row["source"].partition("; ")[1:]) for row in group}
    return {
        "family": " or ".join(families) or name,
        "torch_xpu": states[0] if len(states) == 1 else "unlisted",
        "memory": memories[0] if len(memories) == 1 else "",
        "source": source + (remarks.pop() if len(remarks) == 1 else ""),
    }


def read_table(path: Path, table: Table) -> list[Row]:
    """Return the rows of a table."""
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream, restkey="?", restval="?")
        rows, columns = list(reader), tuple(reader.fieldnames or ())
    if columns != table.columns or any("?" in (*row, *row.values()) for row in rows):
        raise UnexpectedError(f"{path.name} does not have the columns {','.join(table.columns)}")
    return rows


def upstream_text(path: Path) -> str:
    """Return the upstream file's text; names of devices may be in any encoding."""
    with path.open("rb") as stream:
        content = stream.read(LARGEST + 1)
    if len(content) > LARGEST or b"\0" in content:
        raise UnexpectedError("it is no text file, or larger than 16 MiB")
    return content.decode("utf-8", "replace")


def main(arguments: Sequence[str] | None = None, folder: Path = DEVICES) -> int:
    """Run the command; 0, or 2 for a file that is not what was expected."""
    parser = argparse.ArgumentParser(description="Bring a device table up to date.")
    parser.add_argument("table", choices=TABLES, metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("source", type=Path, metavar="SOURCE_FILE")
    parser.add_argument("--version", metavar="TEXT", help="commit or release of the file")
    parser.add_argument("--write", action="store_true", help="write the table")
    options = parser.parse_args(arguments)
    table, path = TABLES[options.table], folder / f"{options.table}.csv"
    try:
        text = upstream_text(options.source)
        own = re.search(r"(?m)^#\s*Version:\s*([0-9.]{8,12})\s*$", text)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        version = options.version or (own[1] if own else f"(sha256 {digest})")
        rows, news = merge(table, read_table(path, table), table.parse(text), version)
    except (UnexpectedError, OSError, UnicodeError, csv.Error) as error:
        sys.stderr.write(f"{options.source}: {error}\n")
        return 2
    for word, line in news:
        sys.stdout.write(f"{word:8} {line}\n")
    counts = Counter(word for word, _ in news)
    total = ", ".join(f"{counts[word]} {word}" for word in ("added", "changed", "kept", "gone"))
    end = "written" if options.write else "not written: add --write"
    sys.stdout.write(f"{path.name}: {total}; {end}\n")
    if options.write:
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, table.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
