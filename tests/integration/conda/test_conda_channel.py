"""What py-rattler does with packages of the tests' own channel: what the guards rely on."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import succeeded
from tests.support import conda_channel as conda, conda_packages as packages
from tests.support.conda_server import serve

GLIBC = ("__glibc", "2.36", "0")


@pytest.fixture(autouse=True)
def own_cache(conda_matrix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing goes to the user's cache, and nothing comes from it; no test without py-rattler."""
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def hurt(conda_matrix: Path, tmp_path: Path) -> Path:
    """A channel that may be hurt."""
    return conda.copy(conda_matrix, tmp_path / "hurt")


def solve(url: str, *specs: str, subdir: str = "linux-64", virtual: Any = (GLIBC,)) -> list[Any]:
    import rattler

    given = [
        rattler.GenericVirtualPackage(
            rattler.PackageName(name), rattler.Version(version), rattler.BuildString(build)
        )
        for name, version, build in virtual
    ]
    asked = [rattler.MatchSpec(s) for s in specs]
    where = [rattler.Subdir(subdir), rattler.Subdir("noarch")]
    found = rattler.solve([url], asked, platforms=where, virtual_packages=given)
    return sorted(asyncio.run(found), key=lambda record: str(record.name.normalized))


def install(records: list[Any], prefix: Path, cache: Path) -> None:
    import rattler

    asyncio.run(rattler.install(records, prefix, cache_dir=cache, show_progress=False))


def refused(kind: str) -> Any:
    """`with refused("Solver")`: py-rattler raises its SolverError."""
    from rattler import exceptions

    return pytest.raises(getattr(exceptions, f"{kind}Error"))


def test_python_and_its_library_work_in_a_prefix(
    conda_channel: Path, tmp_path: Path, own_cache: Path
) -> None:
    prefix = tmp_path / "prefix"
    specs = ("python", "tiny-lib", "placed", "scripted")
    install(solve(conda_channel.as_uri(), *specs), prefix, own_cache)

    def run(*command: str) -> str:
        # Without PATH and PYTHON* of the tests: nothing but the prefix can be meant.
        return succeeded(
            subprocess.run(command, capture_output=True, text=True, check=False, env={})
        ).stdout.strip()

    program = (
        "import ctypes, hashlib, json, lzma, sqlite3, ssl, sysconfig, tiny_lib, zlib\n"
        "print(sysconfig.get_path('purelib')); print(tiny_lib.__file__)"
    )
    purelib, library = run(str(prefix / "bin/python"), "-c", program).splitlines()
    assert purelib == str(prefix / "lib/python3.11/site-packages")
    # Debian's interpreter looks there; it is a link to the same folder.
    assert library == str(prefix / "lib/python3.11/dist-packages/tiny_lib/__init__.py")
    for unwanted in ("EXTERNALLY-MANAGED", "sitecustomize.py"):
        assert not (prefix / "lib/python3.11" / unwanted).exists()
    assert run(str(prefix / "bin/tiny")) == f"tiny-lib 1.0 of {prefix}"
    assert run(str(prefix / "bin/placed")) == str(prefix)
    assert (prefix / "etc/placed.conf").read_text() == f"home = {prefix}/share\n"
    binary = prefix / "lib/placed.bin"
    original = packages.PLACED.files["lib/placed.bin"]
    assert binary.read_bytes().startswith(f"\x7fPLACED\0{prefix}/lib\0".encode())
    assert binary.stat().st_size == len(original.content)
    assert (prefix / "lib/placed.so").readlink().name == binary.name
    assert not list(prefix.glob("*-ran"))


def test_two_owners_of_one_path_install_silently(
    conda_matrix: Path, tmp_path: Path, own_cache: Path
) -> None:
    prefix = tmp_path / "prefix"
    install(solve(conda_matrix.as_uri(), "owner-a", "owner-b"), prefix, own_cache)
    assert (prefix / "share/owned.txt").read_bytes()[:11] in {b"of owner-a\n", b"of owner-b\n"}


def test_a_package_sets_variables_where_it_is_activated(
    conda_matrix: Path, tmp_path: Path, own_cache: Path
) -> None:
    from rattler.shell import ActivationVariables, Shell, activate

    prefix = tmp_path / "prefix"
    install(solve(conda_matrix.as_uri(), "activated"), prefix, own_cache)
    script = activate(prefix, ActivationVariables(None, ["/usr/bin", "/bin"]), Shell.bash).script
    script += 'echo "$ACTIVATED" - "$ACTIVATED_VARIABLE"'
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"by {prefix} - of a package, with spaces\n"


# --- what hurts ---


def content(prefix: Path, path: str) -> bytes:
    return (prefix / path).read_bytes()


def test_tampered_over_http_is_refused(hurt: Path, tmp_path: Path, own_cache: Path) -> None:
    conda.tamper(hurt, packages.OWNER_A)
    with serve(hurt) as served:
        records = solve(served.url, "owner-a")
        with refused("Installer") as caught:
            install(records, tmp_path / "prefix", own_cache)
    assert "hash mismatch" in str(caught.value)


# --- over http ---
