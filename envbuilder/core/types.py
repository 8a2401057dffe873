"""Enumerations and validated string types shared by profiles, locks and plans."""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

Framework = Literal["torch", "jax", "tensorflow"]
FrameworkVersion = Annotated[
    str, Meta(pattern=r"^[0-9][0-9a-z.+]*\Z", description="a version of the framework")
]
FrameworkRelease = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]+(\.[0-9]+(\.[0-9]+((a|b|rc|\.post)[0-9]+)?)?)?\Z",
        description='a release of the framework such as "2.7" or "2.7.1", in quotes',
        extra={"hint": "Leave out a build such as +cu126: the hardware determines it."},
    ),
]
BuildName = Annotated[
    str, Meta(pattern=r"^[a-z][a-z0-9.]{1,15}\Z", description='a build of a framework ("cu126")')
]
Backend = Literal["docker", "venv", "conda"]
Platform = Literal["linux/amd64", "linux/arm64", "macos/arm64"]
FileKind = Literal["wheel", "source", "deb", "conda", "tool", "oci", "python"]
SourceKind = Literal["sdist", "git", "path", "wheel"]
Role = Literal["", "base"]
Provenance = Literal["read", "claim", "assumed"]
LockState = Literal["locked", "claimed", "unlocked"]

PLATFORMS: tuple[Platform, ...] = get_args(Platform)
FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)

# Patterns end in \Z, because `$` would accept a trailing newline, and begin with ^, because msgspec
# searches. Every value that may reach a file name, a Dockerfile or a command line is checked here.
Accelerator = Annotated[
    str, Meta(pattern=r"^[a-z][a-z0-9]{1,15}\Z", description="the name of an accelerator")
]
"""Name of an accelerator that has a row in `host.accelerators`.

Whether the row exists is checked when a profile is read.
"""
_NAME = r"^_?[a-z0-9][a-z0-9-]{0,62}\Z"
Name = Annotated[
    str, Meta(pattern=_NAME, description="a name of lower-case letters, digits and hyphens")
]
PythonVersion = Annotated[
    str,
    Meta(
        pattern=r"^3\.[1-9][0-9]?\Z",
        description='a Python version such as "3.12", in quotes',
        extra={
            "hint": "Write its first two numbers only, or remove the key to leave the choice open."
        },
    ),
]
PythonChoice = Annotated[
    str,
    Meta(
        pattern=r"^(managed|(managed )?3\.[1-9][0-9]?)\Z",
        description='a Python version such as "3.12", in quotes, or `managed 3.12`, or `managed`',
        extra={
            "hint": "Write its first two numbers only, or remove the key to leave the choice open."
        },
    ),
]
FullPythonVersion = Annotated[
    str,
    Meta(
        pattern=r"^(3\.[0-9]{1,3}\.[0-9]{1,3}(~?(a|b|rc)[0-9]+)?)?\Z",
        description="a Python version X.Y.Z",
    ),
]
"""A Python version X.Y.Z, or "" if no source states the version."""
FileSize = Annotated[int, Meta(ge=1, le=1 << 36)]
"""Size of a locked file in bytes, at most 64 GiB. The largest wheels have 6 GB."""
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
Registry = Annotated[
    str,
    Meta(
        pattern=r"^(?!(hub|index|registry-1|registry\.hub)\.docker\.(io|com)$)"
        r"(localhost|\[[0-9a-f:.]+\]|(?=[^/]*[.:])[A-Za-z0-9][A-Za-z0-9.-]*)(:[0-9]{1,5})?\Z",
        description=(
            "a registry's host as in image references, such as docker.io, ghcr.io or"
            " registry.example:5000"
        ),
    ),
]
# Name, extras, versions, and for which Python or platform; no URL, no option. The full grammar is
# left to the resolver: its parser would add 0.1 s to the start-up.
_VERSION = r"([0-9]+!)?[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.?post[0-9]+)?(\.?dev[0-9]+)?"
# Each copy of `_VERSION` would take 0.1 ms of every start: one follows all operators.
_CLAUSE = (
    r"(?![<>~][^,;]*[*+])(==|!=|<=|>=|<|>|~=(?= ?[0-9!]+\.[0-9]))"
    rf" ?{_VERSION}(\.\*|\+[a-z0-9.]*[a-z0-9])?"
)
_MARKER = r"(python_version|platform_machine|sys_platform) ?(==|!=|<=|>=|<|>) ?'[A-Za-z0-9_.]+'"
Requirement = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(\[[A-Za-z0-9._,-]+\])?"
        rf"( ?{_CLAUSE}(,(?= ?[=!<>~])|(?= ?;|$)))*( ?; ?{_MARKER})?\Z",
        description="a package: name, name==version or name>=version, perhaps with a marker such as"
        " ; python_version < '3.12' (files and URLs are not supported)",
    ),
]
Marker = Annotated[
    str,
    Meta(pattern=rf"^({_MARKER})?\Z", description="a marker such as python_version < '3.12'"),
]
Distribution = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,198}[A-Za-z0-9])?\Z",
        description="the name of a package",
    ),
]
DebianPackage = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-z0-9+.-]{1,100}\Z",
        description="the name of a Debian package",
        extra={"hint": "Write only the name as apt lists it, without a version: libgomp1"},
    ),
]
DebianSuite = Annotated[str, Meta(pattern=r"^[a-z]*\Z", description="the name of a Debian suite")]
FileVersion = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+:~!_-]{0,199}\Z", description="a version")
]
# A wheel's file name, or a .deb's path below the archive root. Never absolute, never with `..`.
FilePath = Annotated[
    str,
    Meta(
        pattern=r"^(?!.{1000})(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9._+~%:-]*(/[A-Za-z0-9._+~%:-]+)*\Z",
        description="a file name, or a path below an archive's root",
    ),
]
# The name of a conda package, and a profile's requirement: a name and, after a space, versions.
CondaName = Annotated[
    str, Meta(pattern=r"^[a-z0-9_][a-z0-9_.-]*\Z", description="the name of a conda package")
]
CondaSpec = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9_][a-z0-9_.-]*( [=<>!~]*[0-9][A-Za-z0-9.*,|=<>!~]*)?\Z",
        description="a conda package, and versions after a space",
    ),
]
CondaSubdir = Literal["linux-64", "linux-aarch64", "osx-arm64", "noarch"]
VirtualPackage = Annotated[
    str,
    Meta(pattern=r"^__[a-z0-9_]+\Z", description="the name of a virtual package, such as __cuda"),
]
"""A conda virtual package. It describes a property of the machine that no package provides."""
VirtualVersion = Annotated[
    str,
    Meta(
        pattern=r"^[0-9][0-9A-Za-z.]*(=[A-Za-z0-9_]+)?\Z",
        description="a version",
    ),
]
"""The version of a virtual package. It includes a build string only if that has a meaning."""
Source = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-z0-9-]{0,99}\Z",
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
LAST_PORT = 65535
# YAML has more line breaks than other formats, and rendered files must be UTF-8, which excludes
# surrogates. YAML parsers also reject U+FFFE and U+FFFF.
_LINE_ENDS = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff"
VariableValue = Annotated[
    str,
    Meta(
        pattern=rf"^[^{_LINE_ENDS}\"'\\`$]*\Z",
        description="one line without quotes, backslashes, backquotes and dollar signs",
    ),
]
Library = Annotated[
    str,
    Meta(
        pattern=r"^lib[A-Za-z0-9_+-]+\.so(\.[0-9]+)*\Z",
        description="the file name of a shared library",
    ),
]
DevicePath = Annotated[
    str, Meta(pattern=r"^/dev/[A-Za-z0-9/_-]+\Z", description="a path below /dev")
]
DeviceGlob = Annotated[
    str,
    Meta(pattern=r"^/dev/[A-Za-z0-9/_-]+\*?\Z", description="a path below /dev that may end in *"),
]
KernelTarget = Annotated[
    str,
    Meta(
        pattern=r"^[0-9a-z][0-9a-z._-]{0,31}\Z",
        description='what kernels are compiled for, such as "9.0" or gfx1100',
    ),
]
Size = Annotated[str, Meta(pattern=r"^[1-9][0-9]*[kmg]\Z", description="a size such as 512m or 2g")]
CpuFlag = Annotated[str, Meta(pattern=r"^[a-z0-9_]+\Z", description="name of a CPU flag")]
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
SourceLocation = Annotated[
    str,
    Meta(
        pattern=r"^(?!.*://(?!git@)[^/]*@)[^\x00-\x20\x7f\"'\\`$<>|]{1,500}\Z",
        description="a URL without credentials, or a path",
    ),
]
CudaArchitecture = Annotated[
    str,
    Meta(
        pattern=r"^[1-9][0-9]?\.[0-9][af]?(\+PTX)?\Z",
        description='a compute capability such as "9.0" or "8.6+PTX"',
    ),
]
CudaArchitectures = Annotated[
    str,
    Meta(
        pattern=r"^([1-9][0-9]?\.[0-9][af]?(\+PTX)?;?){0,40}\Z",
        description='compute capabilities such as "8.0;9.0+PTX"',
    ),
]
Subfolder = Annotated[
    str, Meta(pattern=r"^[^\x00-\x20\x7f\"'\\`$<>|]{0,200}\Z", description="a folder of a source")
]
Reference = Annotated[
    str,
    Meta(pattern=r"^[^\x00-\x20\x7f\"'\\`$<>|]{0,500}\Z", description="a branch, tag or commit"),
]
Commit = Annotated[str, Meta(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})?\Z", description="a commit")]
Day = Annotated[datetime.date, Meta(description="a day such as 2022-03-01")]
"""A date, which needs no quotes in YAML."""
Date = Annotated[
    str,
    Meta(pattern=r"^20[0-9]{2}-[01][0-9]-[0-3][0-9]\Z", description="a date such as 2026-11-22"),
]


def canonical(name: str) -> str:
    """Return the normalized name of a distribution (PEP 503).

    `packaging` provides the same function, but importing it takes longer than reading all profiles.
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def is_debian(name: str, version: str) -> bool:
    """Return whether a package name and a version are valid in Debian.

    The rules are in the Debian Policy, sections 5.6.1 and 5.6.12.
    """
    return bool(
        re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name)
        and re.fullmatch(r"(?:[0-9]+:)?[0-9][A-Za-z0-9.+~-]*", version)
    )


def is_name(text: str) -> bool:
    """Return whether the text is a valid profile name, which is also the name of a file."""
    return re.match(_NAME, text) is not None


def container_platform(machine: str) -> Platform | None:
    """Return the platform of containers that run on a machine with this architecture.

    Return None if the architecture is not known.
    """
    platforms: dict[str, Platform] = {
        "x86_64": "linux/amd64",
        "aarch64": "linux/arm64",
        "arm64": "linux/arm64",
    }
    return platforms.get(machine)


def machine(platform: Platform) -> str:
    """Return a platform's architecture, spelled as in Python's environment markers."""
    return {"linux/amd64": "x86_64", "linux/arm64": "aarch64", "macos/arm64": "arm64"}[platform]


def system(platform: Platform) -> str:
    """Return a platform's operating system, spelled as in `sys.platform`."""
    return "darwin" if platform.startswith("macos") else "linux"


class Action(Struct, frozen=True, kw_only=True, tag=True):
    """A step of a plan. The text in `what` describes the step while it runs."""

    what: str
