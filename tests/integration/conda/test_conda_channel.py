"""The tests' own conda channel: what other tests of conda rely on."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import requests

from tests.support import conda_channel as conda
from tests.support import conda_packages as packages
from tests.support.conda_server import PASSWORD, serve

if TYPE_CHECKING:
    from pathlib import Path

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


def builds(records: list[Any]) -> list[str]:
    return [f"{record.name.normalized} {record.build}" for record in records]


def digests(channel: Path, pattern: str) -> dict[str, str]:
    return {
        str(p.relative_to(channel)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in channel.rglob(pattern)
        if p.is_file()
    }


# --- writing and indexing ---


def test_packages_have_the_same_bytes_wherever_they_are_written(
    conda_matrix: Path, tmp_path: Path
) -> None:
    for package in (*packages.MATRIX, packages.PYTHON_STUB):
        conda.write(package, tmp_path)
    written = digests(tmp_path, "*")
    assert len(written) == len(packages.MATRIX) + 1
    assert written.items() <= digests(conda_matrix, "*").items()


def test_indexing_again_changes_no_repodata(hurt: Path) -> None:
    before = digests(hurt, "repodata.json*")
    assert len(before) == 8
    (hurt / "noarch" / "repodata.json.zst").unlink()
    conda.index(hurt)
    assert digests(hurt, "repodata.json*") == before


def test_repodata_state_size_and_both_hashes(conda_matrix: Path) -> None:
    for package in (packages.PLACED, packages.TINY_LIB):
        record = conda.records(conda_matrix, package.subdir)[package.file]
        data = (conda_matrix / package.place).read_bytes()
        assert record["sha256"] == hashlib.sha256(data).hexdigest()
        assert record["md5"] == hashlib.md5(data).hexdigest()
        assert record["size"] == len(data)
        assert record["timestamp"] == conda.MADE * 1000


# --- solving ---


@pytest.mark.parametrize(
    ("specs", "virtual", "expected"),
    [
        (["gpu-only"], [("__cuda", "12.4", "0")], ["gpu-only 0"]),
        (["gpu-only"], [("__cuda", "11.8", "0")], None),
        (["gpu-only"], [], None),
        (["gpu-lib"], [("__cuda", "12.4", "0")], ["gpu-lib cuda12_0"]),
        (["gpu-lib"], [], ["gpu-lib cpu_0"]),
        (["new-glibc"], [("__glibc", "2.34", "0")], ["new-glibc 0"]),
        (["new-glibc"], [("__glibc", "2.31", "0")], None),
        (["needs-v3"], [("__archspec", "1", "x86_64_v3")], ["needs-v3 0"]),
        (["needs-v3"], [("__archspec", "1", "zen4")], None),
        (["fast"], [("__archspec", "1", "zen4")], ["_x86_64-microarch-level 2_zen4", "fast v3_1"]),
        (["fast"], [("__archspec", "1", "x86_64")], ["fast v1_0"]),
        (["tiny-lib"], [GLIBC], ["python 0_cpython", "tiny-lib pyh0_0"]),
    ],
)
def test_virtual_packages_decide(
    conda_matrix: Path, specs: list[str], virtual: Any, expected: list[str] | None
) -> None:
    url = conda_matrix.as_uri()
    if expected is None:
        with refused("Solver"):
            solve(url, *specs, virtual=virtual)
    else:
        assert builds(solve(url, *specs, virtual=virtual)) == expected


@pytest.mark.parametrize(
    ("subdir", "virtual", "solves"),
    [
        ("osx-arm64", [("__osx", "14.0", "0")], True),
        ("osx-arm64", [("__osx", "10.15", "0")], False),
        ("osx-arm64", [], False),
        ("linux-aarch64", [("__glibc", "2.28", "0")], True),
    ],
)
def test_other_platforms(conda_matrix: Path, subdir: str, virtual: Any, solves: bool) -> None:
    url = conda_matrix.as_uri()
    if solves:
        (python, _) = solve(url, "tiny-lib", subdir=subdir, virtual=virtual)
        assert python.subdir == subdir
    else:
        with refused("Solver"):
            solve(url, "tiny-lib", subdir=subdir, virtual=virtual)


# --- installing ---


def test_python_and_its_library_work_in_a_prefix(
    conda_channel: Path, tmp_path: Path, own_cache: Path
) -> None:
    prefix = tmp_path / "prefix"
    specs = ("python", "tiny-lib", "placed", "scripted")
    install(solve(conda_channel.as_uri(), *specs), prefix, own_cache)

    def run(*command: str) -> str:
        # Without PATH and PYTHON* of the tests: nothing but the prefix can be meant.
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={})
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    program = (
        "import ctypes, hashlib, json, lzma, sqlite3, ssl, sysconfig, tiny_lib, zlib\n"
        "print(sysconfig.get_path('purelib')); print(tiny_lib.__file__)"
    )
    purelib, library = run(str(prefix / "bin" / "python"), "-c", program).splitlines()
    assert purelib == str(prefix / "lib/python3.11/site-packages")
    # Debian's interpreter looks there; it is a link to the same folder.
    assert library == str(prefix / "lib/python3.11/dist-packages/tiny_lib/__init__.py")
    for unwanted in ("EXTERNALLY-MANAGED", "sitecustomize.py"):
        assert not (prefix / "lib/python3.11" / unwanted).exists()
    assert run(str(prefix / "bin" / "tiny")) == f"tiny-lib 1.0 of {prefix}"
    assert run(str(prefix / "bin" / "placed")) == str(prefix)
    assert (prefix / "etc/placed.conf").read_text() == f"home = {prefix}/share\n"
    binary, original = prefix / "lib/placed.bin", packages.PLACED.files["lib/placed.bin"]
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


@pytest.mark.parametrize("package", [packages.PLACED, packages.OWNER_A], ids=lambda p: p.kind)
def test_tampering_keeps_size_and_is_sound_in_itself(
    hurt: Path, conda_matrix: Path, tmp_path: Path, own_cache: Path, package: conda.Package
) -> None:
    before = (hurt / package.place).stat().st_size
    path = conda.tamper(hurt, package)
    assert (hurt / package.place).stat().st_size == before
    assert (conda_matrix / package.place).read_bytes() == conda.archive(package)
    # py-rattler compares no hash of a file: this is what envbuilder must not let through.
    install(solve(hurt.as_uri(), package.name), tmp_path / "prefix", own_cache)
    assert content(tmp_path / "prefix", path) == conda.EVIL


def test_every_package_of_files_can_be_tampered_with(hurt: Path) -> None:
    for package in packages.MATRIX:
        if package.files:
            conda.tamper(hurt, package)


def test_tampered_over_http_is_refused(hurt: Path, tmp_path: Path, own_cache: Path) -> None:
    conda.tamper(hurt, packages.OWNER_A)
    with serve(hurt) as served:
        records = solve(served.url, "owner-a")
        with refused("Installer") as caught:
            install(records, tmp_path / "prefix", own_cache)
    assert "hash mismatch" in str(caught.value)


@pytest.mark.parametrize("hurting", [conda.truncate, conda.remove])
def test_truncated_or_removed_does_not_install(
    hurt: Path, tmp_path: Path, own_cache: Path, hurting: Any
) -> None:
    hurting(hurt, packages.OWNER_A)
    records = solve(hurt.as_uri(), "owner-a")
    with refused("Installer"):
        install(records, tmp_path / "prefix", own_cache)


@pytest.mark.parametrize("over", ["file", "http"])
def test_repodata_without_hashes_and_of_another_platform(hurt: Path, over: str) -> None:
    conda.drop_hashes(hurt, packages.PLACED)
    conda.drop_hashes(hurt, packages.OWNER_A, keep=("md5",))
    conda.claim_subdir(hurt, packages.OWNER_B, "osx-arm64")
    # Over http, py-rattler takes shards or compressed repodata where there are any.
    with serve(hurt) as served:
        url = served.url if over == "http" else hurt.as_uri()
        a, b, placed = solve(url, "owner-a", "owner-b", "placed")
    assert (placed.sha256, placed.md5) == (None, None)
    assert a.sha256 is None
    assert a.md5 is not None
    assert b.sha256 is not None
    assert b.subdir == "osx-arm64"


# --- over http ---


def test_requests_are_counted(conda_matrix: Path, tmp_path: Path, own_cache: Path) -> None:
    with serve(conda_matrix) as served:
        records = solve(served.url, "owner-a")
        assert any("repodata" in r for r in served.requests)
        assert served.packages == []
        install(records, tmp_path / "one", own_cache)
        install(records, tmp_path / "two", own_cache)
        assert served.packages == [packages.OWNER_A.place]
        assert served.wait_for_package("owner") == packages.OWNER_A.file


@pytest.mark.parametrize(("token", "password"), [("tk-0123-secret", False), ("", True)])
def test_strangers_are_refused(
    conda_matrix: Path, tmp_path: Path, own_cache: Path, token: str, password: bool
) -> None:
    with serve(conda_matrix, token=token, password=password) as served:
        assert (token or PASSWORD) not in served.url
        with refused("Gateway"):
            solve(served.url, "owner-a")
        assert served.packages == []
        install(solve(served.secret_url, "owner-a"), tmp_path / "prefix", own_cache)
        assert served.packages == [packages.OWNER_A.place]


def test_a_channel_that_vanishes_stays_away(
    conda_matrix: Path, tmp_path: Path, own_cache: Path
) -> None:
    with serve(conda_matrix) as served:
        records = solve(served.url, "owner-a")
        served.vanish_after = 100
        with refused("Installer"):
            install(records, tmp_path / "prefix", own_cache)
        assert served.gone
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{served.url}/noarch/repodata.json", timeout=5)


def test_a_slow_channel_ends_with_the_test(conda_matrix: Path) -> None:
    with serve(conda_matrix) as served:
        url = f"{served.url}/{packages.OWNER_A.place}"
        served.pause = 0.001
        assert requests.get(url, timeout=5).content == conda.archive(packages.OWNER_A)
        served.pause = 3600.0
        waiting = requests.get(url, timeout=5, stream=True)
        assert waiting.status_code == 200
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        _ = waiting.content
