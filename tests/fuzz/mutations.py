"""Make hostile bytes out of valid ones: by bytes, by tokens, and as archives with known tricks."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from random import Random

import zstandard

TOKENS = (
    b"\0",
    b"\xff",
    b"..",
    b"/",
    b"//",
    b"\n",
    b"\r",
    b"\x1b[2J",
    b"\xc2\x9b",
    b" ",
    b"-",
    b"~",
    b"../../canary",
    b"/tmp/canary",
    b".wh.x",
    b".wh..wh..opq",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"-1",
    b"0",
    b"99999999999999999999",
    b"9" * 5000,
    b"1e999",
    b"NaN",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b"[" * 2000,
    b'{"a":' * 2000,
    b'"',
    b"'",
    b"&a",
    b"*a",
    b"!!int ",
    b"<<: ",
    b"%",
    b"x" * 70_000,
    b"\xf0\x9f\x98\x80",
    b"\xe2\x80\xae",
    b"sha256:",
    b"0" * 64,
    b"@",
    b"?",
    b"#",
)
NAMES = (
    "../canary",
    "../../../../canary",
    "/canary",
    "a/../../canary",
    "a//b",
    "./a",
    "a/.",
    "",
    ".wh.a",
    ".wh..wh..opq",
    "a\nb",
    "a\x1b[2Jb",
    "é",
    "a" * 300,
    "d/" * 3000 + "a",
    "\udcff",
    "C:\\canary",
    "con",
    "bin/python",
    "envbuilder.json",
    "etc/passwd",
    "usr/bin/python3.11",
    "var/lib/dpkg/status",
    "var/lib/dpkg/status.d/x",
    "info/paths.json",
    "a\0b",
    "a",
    "left-1.0.dist-info/RECORD",
    "x.data/scripts/uv",
    "package/data/t10k-labels-idx1-ubyte",
)
_NUMBER = re.compile(rb"[0-9]+")
_QUOTED = re.compile(rb'"[^"\n]{0,80}"')


def mutated(random: Random, data: bytes, most: int = 4) -> bytes:
    """Return changed bytes; sometimes the same."""
    for _ in range(random.randint(0, most)):
        data = random.choice(_BY_BYTES)(random, data)
    return data


def _place(random: Random, data: bytes) -> tuple[int, int]:
    start = random.randrange(len(data) + 1)
    return start, min(len(data), start + random.choice((1, 2, 4, 8, 64, 512, 4096)))


def _truncate(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _flip(random: Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(random.randint(1, 8) if out else 0):
        out[random.randrange(len(out))] = random.choice((0, 255, 127, random.randrange(256)))
    return bytes(out)


def _cut(random: Random, data: bytes) -> bytes:
    start, end = _place(random, data)
    return data[:start] + data[end:]


def _repeat(random: Random, data: bytes) -> bytes:
    start, end = _place(random, data)
    return data[:end] + data[start:end] * random.choice((1, 1, 2, 300)) + data[end:]


def _insert(random: Random, data: bytes) -> bytes:
    start, _ = _place(random, data)
    return data[:start] + random.choice(TOKENS) + data[start:]


def _overwrite(random: Random, data: bytes) -> bytes:
    start, end = _place(random, data)
    return data[:start] + random.randbytes(end - start) + data[end:]


def _substituted(random: Random, data: bytes, pattern: re.Pattern[bytes]) -> bytes:
    found = [*pattern.finditer(data[:200_000])]
    if not found:
        return data
    match = random.choice(found)
    return data[: match.start()] + random.choice(TOKENS) + data[match.end() :]


def _line(random: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    lines.insert(random.randrange(len(lines) + 1), random.choice(lines))
    return b"\n".join(lines)


_BY_BYTES: tuple[Callable[[Random, bytes], bytes], ...] = (
    _truncate,
    _flip,
    _cut,
    _repeat,
    _insert,
    _overwrite,
    _line,
    *(partial(_substituted, pattern=pattern) for pattern in (_NUMBER, _QUOTED)),
)

# ---- compression


PACKERS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, 1, mtime=0),
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": zstandard.compress,
}


@cache
def bomb(suffix: str) -> bytes:
    """Return 256 MiB of zeros, compressed: streams one after the other are one stream."""
    return PACKERS[suffix](bytes(8 << 20)) * 32


def packed(random: Random, data: bytes, suffix: str) -> bytes:
    """Return compressed bytes; now and then with a bomb behind them."""
    out = PACKERS[suffix](data)
    if suffix and random.random() < 0.01:
        out += bomb(suffix)
    return out


# ---- archives


def tar(random: Random, files: Mapping[str, bytes]) -> bytes:
    """Return a tar with files, and with tricks."""
    out = io.BytesIO()
    form = random.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT))
    names = [*files, *(random.choice(NAMES) for _ in range(random.choice((0, 0, 1, 3))))]
    for name in names:
        entry = tarfile.TarInfo(name)
        content = files.get(name, b"x" * random.choice((0, 9)))
        entry.size = len(content)
        if random.random() < 0.15:
            _trick(random, entry)
        raw = random.choice(_RAW) if random.random() < 0.03 else None
        try:
            header = entry.tobuf(form, "utf-8", "surrogateescape")
        except (ValueError, UnicodeError):
            continue
        out.write((raw(random) if raw else b"") + header + content)
        out.write(bytes(-len(content) % 512))
    out.write(bytes(1024))
    return mutated(random, out.getvalue(), random.choice((0, 0, 2)))


_KINDS = (
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.DIRTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
    tarfile.FIFOTYPE,
    tarfile.GNUTYPE_SPARSE,
    tarfile.CONTTYPE,
    b"Z",
)
_RECORDS = (
    ("size", "-1"),
    ("size", "99999999999999999999"),
    ("size", "1e9"),
    ("mtime", "nan"),
    ("mtime", "inf"),
    ("mtime", "1e300"),
    ("mtime", "-5.5"),
    ("uid", "99999999999999999999"),
    ("path", "../canary"),
    ("path", "a\0b"),
    ("linkpath", "/canary"),
    ("hdrcharset", "BINARY"),
    ("GNU.sparse.major", "1"),
    ("GNU.sparse.map", "0,1,2"),
    ("GNU.sparse.size", "1" * 18),
    ("GNU.sparse.realsize", "9" * 18),
    ("GNU.sparse.name", "../canary"),
    ("k" * 3000, "v"),
    ("SCHILY.xattr.security.capability", "\x01"),
    ("comment", "1" * 3000),
)


def _trick(random: Random, entry: tarfile.TarInfo) -> None:
    entry.type = random.choice((*_KINDS, entry.type))
    entry.linkname = random.choice(("", "a", *NAMES))
    entry.mode = random.choice((0o644, 0o7777, 0))
    entry.mtime = random.choice((0, 1 << 33, -1, 0.5))
    entry.uid = random.choice((0, 1 << 21, 1 << 40))
    entry.size = random.choice((entry.size, entry.size, 1 << 40, 512))
    entry.pax_headers = dict(random.choices(_RECORDS, k=random.choice((0, 1, 2))))


def _block(kind: bytes, size: int, content: bytes) -> bytes:
    entry = tarfile.TarInfo("x")
    entry.type = kind
    entry.size = size
    return entry.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def _chain(random: Random) -> bytes:
    kind = random.choice((tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE))
    return _block(kind, 6, b"6 a=b\n") * random.choice((2, 100, 3000))


def _long(random: Random) -> bytes:
    kind = random.choice((tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME))
    content = random.choice((b"3 a", b"9", b"5 a=\n", b"\0", b"\n")) * random.choice((99, 300_000))
    return _block(kind, random.choice((len(content), 1 << 40)), content)


def _many(random: Random) -> bytes:
    return _block(tarfile.REGTYPE, 0, b"") * random.choice((10, 2000))


_RAW = (_chain, _long, _many)


def zipped(random: Random, files: Mapping[str, bytes], more: int = 3) -> bytes:
    """Return a zip with files, and with tricks."""
    out = io.BytesIO()
    method = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(out, "w", method, compresslevel=1) as archive:
        names = [*files, *random.choices(NAMES, k=random.choice((0, 0, 1, more)))]
        for name in names:
            content = files.get(name, b"x")
            if random.random() < 0.004:
                content = random.choice((b"\0", b"\n", b"a,,\n", b"9")) * (48 << 20)
            entry = zipfile.ZipInfo(name.replace("\0", "0").encode(errors="replace").decode())
            entry.compress_type = random.choice((*[method] * 30, *_METHODS))
            entry.external_attr = random.choice((0o644 << 16, 0o120777 << 16, 0o755 << 16))
            if random.random() < 0.05:
                entry.extra = random.randbytes(random.choice((4, 20)))
            archive.writestr(entry, content)
    data = out.getvalue()
    directory = data.rfind(b"PK\x01\x02")
    if random.random() < 0.3 and directory > 0:  # where sizes and offsets are
        at = directory + random.choice((8, 10, 16, 20, 24, 28, 30, 32, 42))
        data = data[:at] + random.choice((b"\xff" * 4, b"\0" * 4, b"\x01\0\0\0")) + data[at + 4 :]
    if random.random() < 0.1:
        at = data.rfind(b"PK\x05\x06") + random.choice((8, 10, 12, 16, 20))
        data = data[:at] + random.choice((b"\xff" * 4, b"\0" * 4)) + data[at + 4 :]
    return mutated(random, data, random.choice((0, 0, 2)))


_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
