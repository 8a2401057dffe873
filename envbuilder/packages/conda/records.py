"""Convert between locked packages and py-rattler's records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envbuilder.core.errors import ToolError

if TYPE_CHECKING:
    from rattler import RepoDataRecord

    from envbuilder.packages.conda.lock import Package


def require_rattler() -> str:
    """Return the version of py-rattler; raise `ToolError` (exit 4) if it is missing."""
    from importlib import metadata

    try:
        return metadata.version("py-rattler")
    except metadata.PackageNotFoundError:
        raise ToolError(
            "conda packages are solved and installed with py-rattler, which is not installed",
            "Run: pip install 'envbuilder-ml[conda]'",
        ) from None


def record(package: Package, url: str, channel: str) -> RepoDataRecord:
    """Return py-rattler's record of a locked package whose archive is at `url`."""
    from rattler import BuildString, PackageRecord, RepoDataRecord

    package_record = PackageRecord(
        package.name,
        package.version,
        BuildString(package.build),
        package.build_number,
        package.subdir,
        noarch=package.noarch or None,
        depends=list(package.depends),
        constrains=list(package.constrains),
        sha256=bytes.fromhex(package.sha256),
        size=package.size,
        license=package.license or None,
    )
    if package.timestamp is not None:
        import datetime

        package_record.timestamp = datetime.datetime.fromtimestamp(
            package.timestamp / 1000, datetime.UTC
        )
    return RepoDataRecord(package_record, package.file, url, channel)


def package(solved: Any, channel: str, sha256: str) -> dict[str, Any]:
    """Return a solved record as plain data of a locked package, which is validated later."""
    noarch = solved.noarch
    kind = "python" if noarch.python else "generic" if noarch.generic else ""
    when = solved.timestamp
    return {
        "name": solved.name.normalized,
        "version": str(solved.version),
        "build": str(solved.build),
        "build_number": solved.build_number,
        "subdir": solved.subdir,
        "file": solved.file_name,
        "channel": channel,
        "sha256": sha256,
        "size": solved.size,
        "depends": list(solved.depends),
        "constrains": list(solved.constrains),
        "noarch": kind,
        "timestamp": round(when.timestamp() * 1000) if when else None,
        "license": solved.license or "",
    }
