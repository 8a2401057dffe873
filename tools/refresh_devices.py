"""Bring a device table up to date from an upstream file that you have fetched.

    python tools/refresh_devices.py TABLE SOURCE_FILE [--version TEXT] [--write]

Prints the rows that are new, changed and gone; `--write` writes them. A row that is gone upstream
is reported and kept, and what was written by hand stays. New Intel GPUs take family, state and
memory from the others of their configuration where these agree. Exit code 2: the file is not what
was expected, and nothing was written.

intel-gpus         shared/source/dll/devices/devices_base.inl of github.com/intel/compute-runtime
intel-gpus-kernel  include/drm/intel/pciids.h of Linux (i915_pciids.h before 6.14), for the same
                   table: every GPU that the kernel knows. What Linux alone knows of a family that
                   PyTorch lists is `unlisted`.
intel-gpus-names   pci.ids, for the same table: names of the GPUs that are in it
nvidia-gpus, amd-gpus
                   pci.ids of pci-ids.ucw.cz; Debian's package `pci.ids` holds it in /usr/share/misc
x86-cpus           arch/x86/include/asm/intel-family.h of Linux. The rows of AMD are not in it and
                   stay.
arm-cpus           sys-utils/lscpu-arm.c of github.com/util-linux/util-linux

Debian's packages linux-headers-*-common have Linux's headers.

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
    file: str = ""
    """The table's file without its suffix, if it is not the name of the source."""
    drives: bool = True
    """Whether a new device works as those of its group do; if not, it is at best unlisted."""
    names_only: bool = False
    """Whether the upstream file only fills in empty names of rows that the table has."""


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


# Platforms in the macros of pciids.h that no other source of the table names. All but those in
# _NEWER are before Xe-HPG (Arc), the first that torch.xpu supports.
_PLATFORMS = {
    "I8": "Gen 2", "I9": "Gen 3", "I965": "Gen 4", "G33": "Gen 3", "GM45": "Gen 4.5",
    "G45": "Gen 4.5", "PNV": "Pineview", "ILK": "Ironlake", "SNB": "Sandy Bridge",
    "IVB": "Ivy Bridge", "HSW": "Haswell", "VLV": "Bay Trail", "BDW": "Broadwell",
    "CHV": "Cherry Trail", "SKL": "Skylake", "BXT": "Apollo Lake", "GLK": "Gemini Lake",
    "KBL": "Kaby Lake", "AML": "Amber Lake", "CML": "Comet Lake", "CFL": "Coffee Lake",
    "WHL": "Whiskey Lake", "CNL": "Cannon Lake", "ICL": "Ice Lake", "EHL": "Elkhart Lake",
    "JSL": "Jasper Lake", "WCL": "Wildcat Lake", "NVLP": "Nova Lake-P",
}  # fmt: skip
_NEWER = frozenset({"WCL", "NVLP"})


def parse_kernel(text: str) -> list[Found]:
    """Return the ids in `#define INTEL_PLATFORM_VARIANT_IDS(…)`, each as `MACRO__(0xID, …)`."""
    found: dict[str, Found] = {}
    platform = ""
    for number, line in enumerate(text.splitlines(), 1):
        if define := re.match(r"#define (?:INTEL|XE)_(\w+)_IDS\(", line):
            platform = define[1]
        elif re.match(r"\s*MACRO__\(0", line):
            match = re.match(r"\s*MACRO__\(0[xX]([0-9A-Fa-f]{4}),", line)
            if match is None or not platform:
                raise UnexpectedError(f"line {number} is a device that cannot be read: {line!r}")
            group = _platform(platform)
            values = {"id": match[1].lower()}
            if group in _PLATFORMS:
                state = "unlisted" if group in _NEWER else "unsupported"
                values |= {"family": _PLATFORMS[group], "torch_xpu": state, "memory": "shared"}
            found.setdefault(values["id"], Found(values=values, group=group))
    return list(found.values())


def _platform(macro: str) -> str:
    """Return what devices of a macro have in common: "SKL" of "SKL_ULT_GT1", "ARL_S" itself."""
    short = macro.partition("_")[0]
    if short in ("ARL", "ATS", "DG2"):
        return macro
    if short in _PLATFORMS:
        return short
    return next((p for p in ("I965", "I9", "I8") if short.startswith(p)), short)


def parse_intel_names(text: str) -> list[Found]:
    """Return the names of Intel's devices in pci.ids: the product, else the whole name."""
    found = []
    for number, name in _of_vendor(text, "8086"):
        product = re.search(r"\[(.*)\]", name)
        short = (product[1] if product else name).strip().removeprefix("Intel ")
        if re.search("[0-9]", short) and "," not in short:
            found.append(Found(values={"id": number, "name": short}))
    return found


# Chips that pci.ids also lists without a product.
_AMD_CHIPS = (
    r"(Kaveri|Mendocino|Phoenix|Barcelo|Lucienne|Rembrandt|Raphael|Oland|Bonaire|Vega|Hawaii"
    r"|Pitcairn|Cape Verde|Polaris|Navi|Arcturus|Aldebaran|Mullins|Tahiti)"
)


def parse_amd(text: str) -> list[Found]:
    """AMD's GPUs from Evergreen on: `id  Chip [product]` below vendor 1002."""
    found = []
    for number, name in _of_vendor(text, "1002"):
        match = re.fullmatch(r"([^\[\]]+?)(?: \[(.*)\])?(?: SR-IOV| VF)?", name)
        if match is None or re.match(r"(?:R[0-9]|R[SCV][0-9]|RV|M[0-9]|Rage|Mach|ES)", name):
            continue
        if re.search(r"(?i)audio|usb|bridge|controller|sata|smbus|root|switch|i/o|iommu", name):
            continue
        product = (match[2] or "").strip()
        if product or re.match(_AMD_CHIPS, name):
            found.append(Found(values={"id": number, "chip": match[1].strip(), "name": product}))
    return found


def _of_vendor(text: str, vendor: str) -> list[tuple[str, str]]:
    """Return ids and names of a vendor's devices in pci.ids."""
    _, start, rest = text.partition(f"\n{vendor}  ")
    if not start:
        raise UnexpectedError(f"vendor {vendor} is not in it")
    found = []
    for line in rest.splitlines()[1:]:
        if line[:1] not in ("\t", "#", ""):
            break
        if match := re.fullmatch(r"\t([0-9a-f]{4})  (.+)", line):
            found.append((match[1], match[2].strip()))
    return found


def parse_pci(text: str) -> list[Found]:
    """NVIDIA's GPUs from Fermi on: `id  CHIP [product]` below vendor 10de."""
    found = []
    for number, description in _of_vendor(text, "10de"):
        match = re.fullmatch(r"((?:G[ABFHKMPRV]|AD|TU)[0-9]{2}[0-9A-F])(?![0-9])(.*)", description)
        if match is None or re.search(r"(?i)audio|usb|switch|bridge|controller", match[2]):
            continue
        product = re.search(r"\[(.*)\]", match[2])
        name = product[1].strip() if product else ""
        found.append(Found(values={"id": number, "chip": match[1], "name": name}))
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
    "intel-gpus-kernel": Table(
        file="intel-gpus",
        columns=("id", "family", "torch_xpu", "memory", "name", "source"),
        key=("id",),
        source="Linux {} drm/intel/pciids.h",
        parse=parse_kernel,
        by_hand=frozenset({"family", "torch_xpu", "memory"}),
        drives=False,
    ),
    "intel-gpus-names": Table(
        file="intel-gpus",
        columns=("id", "family", "torch_xpu", "memory", "name", "source"),
        key=("id",),
        source="pci.ids {}",
        parse=parse_intel_names,
        names_only=True,
    ),
    "amd-gpus": Table(
        columns=("id", "chip", "name", "source"),
        key=("id",),
        source="pci.ids {}",
        parse=parse_amd,
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
    if len(gone) * 2 > len(theirs) and not table.names_only:
        raise UnexpectedError(f"{len(gone)} of the table's {len(theirs)} rows are not in it")
    if table.names_only:
        return _named(table, old, upstream, version)
    rows = [row for key, row in known.items() if key not in upstream]
    news = [("gone", f"{' '.join(key)}: upstream does not have it any more; kept") for key in gone]
    for key, one in upstream.items():
        if key in known:
            row, told = _updated(table, known[key], one, source)
        else:
            group = [known[k] for k, o in upstream.items() if k in known and o.group == one.group]
            row = {**dict.fromkeys(table.columns, ""), **one.values, "source": source}
            if one.group and not row.get("family"):
                row |= _shared(table, one.group, group, source)
            told = [("added", ", ".join(row[n] or f"no {n}" for n in table.columns[:-1]))]
        rows.append(row)
        news += [(word, f"{' '.join(key)}: {text}") for word, text in told]
    # Ids have one length, and numbers no leading zeros: of two the longer is the larger.
    rows.sort(key=lambda row: [(len(part), part) for part in _key(table, row)])
    return rows, news


def _key(table: Table, row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in table.key)


def _updated(table: Table, row: Row, one: Found, source: str) -> tuple[Row, News]:
    told = []
    taken = {}
    for name, value in one.values.items():
        if value and value != row[name] and not table.same(row[name], value):
            if name not in table.by_hand:
                taken[name] = value
            word = "changed" if name in taken else "kept"
            told.append((word, f"{name} {row[name]!r}, upstream {value!r}"))
    if taken:
        taken["source"] = source + "".join(row["source"].partition("; ")[1:])
    return {**row, **taken}, told


def _named(
    table: Table, old: Sequence[Row], upstream: dict[tuple[str, ...], Found], version: str
) -> tuple[list[Row], News]:
    """Return the rows with the upstream names of those that had none, and the news."""
    remark = f"; name: {table.source.format(version)}"
    rows = []
    news = []
    for row in old:
        one = upstream.get(_key(table, row))
        name = one.values.get("name", "") if one else ""
        if name and not row["name"]:
            rows.append({**row, "name": name, "source": row["source"] + remark})
            news.append(("changed", f"{' '.join(_key(table, row))}: name {name!r}"))
        else:
            rows.append(row)
    return rows, news


def _shared(table: Table, name: str, group: Sequence[Row], source: str) -> Row:
    """Return what a new device has in common with its group; what cannot be known stays empty."""
    columns = ("family", "torch_xpu", "memory")
    families, states, memories = (sorted({row[column] for row in group}) for column in columns)
    remarks = {"".join(row["source"].partition("; ")[1:]) for row in group}
    if states != ["unsupported"] and not table.drives:
        states = ["unlisted"]
        remarks = set()
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
        rows = list(reader)
        columns = tuple(reader.fieldnames or ())
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
    table = TABLES[options.table]
    path = folder / f"{table.file or options.table}.csv"
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
