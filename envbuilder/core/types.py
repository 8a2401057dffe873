"""The closed sets and checked kinds of text that profiles, locks and plans share."""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

from msgspec import Meta

Accelerator = Literal["cpu", "cuda", "xpu", "mps"]
Backend = Literal["docker", "venv", "conda"]
Platform = Literal["linux/amd64", "linux/arm64", "macos/arm64"]
FileKind = Literal["wheel", "deb", "conda", "tool", "oci"]
Role = Literal["", "base"]
Provenance = Literal["read", "claim", "assumed"]
LockState = Literal["locked", "claimed", "unlocked"]

PLATFORMS: tuple[Platform, ...] = get_args(Platform)

# Patterns end in \Z: `$` would accept a trailing newline. msgspec searches, so they begin with ^.
# Everything that may end in a file name, a Dockerfile or a command line is checked here once.
_NAME = r"^_?[a-z0-9][a-z0-9-]{0,62}\Z"
Name = Annotated[
    str, Meta(pattern=_NAME, description="a name of lower-case letters, digits and hyphens")
]
PythonVersion = Annotated[
    str,
    Meta(pattern=r"^3\.[1-9][0-9]?\Z", description='a Python version such as "3.12", in quotes'),
]
FullPythonVersion = Annotated[
    str, Meta(pattern=r"^(3\.[0-9]{1,3}\.[0-9]{1,3}(~?(a|b|rc)[0-9]+)?)?\Z")
]
"""X.Y.Z; empty where no source states it."""
FileSize = Annotated[int, Meta(ge=1, le=1 << 36)]
"""Bytes of a file of a lock: 64 GiB at most; the largest wheels have 3."""
Sha256 = Annotated[
    str, Meta(pattern=r"^[0-9a-f]{64}\Z", description="a sha256: 64 hexadecimal digits")
]
Digest = Annotated[
    str,
    Meta(
        pattern=r"^sha256:[0-9a-f]{64}\Z", description="a digest: sha256: and 64 hexadecimal digits"
    ),
]
ImageRef = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-zA-Z0-9._/:-]{0,200}(@sha256:[0-9a-f]{64})?\Z",
        description="an image reference",
    ),
]
# A name, extras, and versions; no URL, no marker (platforms are the profile's), no option. The full
# grammar is the resolver's business: its parser costs a tenth of a second's start-up budget.
_CLAUSE = r"(==|~=|!=|<=|>=|<|>) ?[0-9][A-Za-z0-9.+!*]*"
Requirement = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(\[[A-Za-z0-9._,-]+\])?"
        rf"( ?{_CLAUSE}(, ?{_CLAUSE})*)?\Z",
        description="a package: name, name==version or name>=version (files, URLs and markers are"
        " not supported)",
    ),
]
Distribution = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z", description="the name of a package"
    ),
]
DebianPackage = Annotated[
    str, Meta(pattern=r"^[a-z0-9][a-z0-9+.-]+\Z", description="the name of a Debian package")
]
DebianSuite = Annotated[str, Meta(pattern=r"^[a-z]*\Z")]
FileVersion = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+:~!_-]*\Z")]
# A wheel's name, or a .deb's path below the root of its archive. Never `..`, never absolute.
FilePath = Annotated[
    str, Meta(pattern=r"^(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._+~%:-]*(/[A-Za-z0-9._+~%:-]+)*\Z")
]
# A conda package, and what a profile wants of one: a name and, after a blank, versions.
CondaName = Annotated[str, Meta(pattern=r"^[a-z0-9_][a-z0-9_.-]*\Z")]
CondaSpec = Annotated[
    str, Meta(pattern=r"^[a-z0-9_][a-z0-9_.-]*( [=<>!~]*[0-9][A-Za-z0-9.*,|=<>!~]*)?\Z")
]
CondaSubdir = Literal["linux-64", "linux-aarch64", "osx-arm64", "noarch"]
VirtualPackage = Annotated[str, Meta(pattern=r"^__[a-z0-9_]+\Z")]
"""What a machine has that no package brings, as conda names it."""
VirtualVersion = Annotated[str, Meta(pattern=r"^[0-9][0-9A-Za-z.]*(=[A-Za-z0-9_]+)?\Z")]
"""A version and, where it means something, a build."""
Source = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-z0-9-]*\Z",
        description="the name of a source: lower-case letters, digits and hyphens",
    ),
]
Variable = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z",
        description="a variable's name: letters, digits and underscores",
    ),
]
# YAML ends a line at more characters than others do, and what is rendered must be UTF-8.
# Its parsers refuse the two noncharacters of the first plane.
_LINE_ENDS = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff"
VariableValue = Annotated[
    str,
    Meta(
        pattern=rf"^[^{_LINE_ENDS}\"'\\`$]*\Z",
        description="one line without quotes, backslashes, backquotes and dollar signs",
    ),
]
Library = Annotated[str, Meta(pattern=r"^lib[A-Za-z0-9_+-]+\.so(\.[0-9]+)*\Z")]
DevicePath = Annotated[str, Meta(pattern=r"^/dev/[A-Za-z0-9/_-]+\Z")]
DeviceGlob = Annotated[str, Meta(pattern=r"^/dev/[A-Za-z0-9/_-]+\*?\Z")]
Size = Annotated[str, Meta(pattern=r"^[1-9][0-9]*[kmg]\Z", description="a size such as 512m or 2g")]
Sentence = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]*\Z", description="one line of text")]
Comment = Annotated[str, Meta(pattern=rf"^[^{_LINE_ENDS}]*\Z", description="one line of text")]
Url = Annotated[
    str,
    Meta(
        pattern=r"^(https?|file)://[^\s\x00-\x1f\x7f\"'\\`$<>]+\Z",
        description="a URL that begins with https://, http:// or file://",
    ),
]
AbsolutePath = Annotated[
    str, Meta(pattern=r"^/(?!.*\.\.)[A-Za-z0-9._+/-]*\Z", description="an absolute path")
]
Date = Annotated[
    str,
    Meta(pattern=r"^20[0-9]{2}-[01][0-9]-[0-3][0-9]\Z", description="a date such as 2026-11-22"),
]


def is_name(text: str) -> bool:
    """Whether a profile may be called that; its file is named after it."""
    return re.match(_NAME, text) is not None


def container_platform(machine: str) -> Platform | None:
    """The platform of containers on a machine, by the name that it has for its architecture."""
    known: dict[str, Platform] = {
        "x86_64": "linux/amd64",
        "aarch64": "linux/arm64",
        "arm64": "linux/arm64",
    }
    return known.get(machine)


def machine(platform: Platform) -> str:
    """The machine part of a platform as Python's markers spell it."""
    return {"linux/amd64": "x86_64", "linux/arm64": "aarch64", "macos/arm64": "arm64"}[platform]


def system(platform: Platform) -> str:
    """The system part of a platform as `sys.platform` spells it."""
    return "darwin" if platform.startswith("macos") else "linux"


BACKENDS = ("docker", "venv", "conda")
"""Backends that can build."""

BUILDERS = ("buildkit", "layers")
"""How the docker backend makes its image."""
