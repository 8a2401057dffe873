"""What keeps a profile from a host, finding by finding: its level, its code and its sentence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from envbuilder.host.model import Containers, Cpu, Engine, Host
from envbuilder.profiles import fit
from envbuilder.profiles.lock import Lock
from envbuilder.profiles.profile import Expects, Profile, Requires
from tests.support.host_trees import profile
from tests.support.tools import lock_of, wheel

LINUX = Host(
    os="linux",
    machine="x86_64",
    platform="linux/amd64",
    libc="glibc 2.39",
    cpu=Cpu(flags=("avx2",), model_name="A CPU"),
)
MAC = Host(os="macos", machine="arm64", platform="macos/arm64", os_version="14.5", rosetta=False)
Said = list[tuple[str, str, str]]


def changed(host: Host, **changes: Any) -> Host:
    return msgspec.structs.replace(host, **changes)


def a_profile(**changes: Any) -> Profile:
    """A profile for the CPU that needs nothing."""
    return profile("cpu", **{"requires": Requires(), **changes})


def said(profile: Profile, host: Host, backend: str, lock: Lock | None = None) -> Said:
    found = fit.findings(profile, host, backend, lock)
    return [(finding.level, finding.code, finding.text) for finding in found]


ON_MACS = ("linux/amd64", "macos/arm64")
UNREAD = changed(LINUX, machine="unknown", platform=None)
ARM = changed(LINUX, machine="aarch64", platform="linux/arm64")
ROSETTA = "this is x86_64 Linux translated by Rosetta, which is slow"


@pytest.mark.parametrize(
    ("host", "backend", "changes", "expected"),
    [
        (LINUX, "venv", {}, []),
        (LINUX, "docker", {}, []),
        (LINUX, "conda", {"backends": ("venv",)}, [
            ("impossible", "it does not support the conda backend"),
        ]),
        (LINUX, "venv", {"platforms": ("linux/arm64", "macos/arm64")}, [
            ("impossible", "it is for linux/arm64 and macos/arm64, but this host is linux/amd64"),
        ]),
        # An image for another platform can be built here; it is not for this host.
        (LINUX, "docker", {"platforms": ("linux/arm64", "macos/arm64")}, [
            ("no", "it is for linux/arm64, but this host is linux/amd64"),
        ]),
        (MAC, "docker", {"platforms": ("macos/arm64",)}, [
            ("impossible", "it is for macos/arm64, but containers here are linux/arm64"),
        ]),
        (MAC, "venv", {"platforms": ON_MACS}, [("note", "macOS 14.5")]),
        (changed(LINUX, machine="riscv64", platform=None), "venv", {}, [
            (
                "impossible",
                "it is for linux/amd64 and linux/arm64, but this host is linux on riscv64",
            ),
        ]),
        # What cannot be read does not exclude anything that the rest allows.
        (UNREAD, "venv", {}, [
            ("warning", "this machine's architecture could not be read"),
        ]),
        (UNREAD, "venv", {"platforms": ("macos/arm64",)}, [
            ("impossible", "it is for macos/arm64, but this host is linux on unknown"),
        ]),
        (Host(os="other", machine="x86_64"), "docker", {}, [
            ("no", "it is for linux/amd64 and linux/arm64, but this host is other on x86_64"),
        ]),
    ],
)  # fmt: skip
def test_the_platform_and_the_backend(
    host: Host, backend: str, changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    stated = {"requires": Requires(macos="14.0"), **changes}
    found = said(a_profile(**stated), host, backend)
    assert [(level, text) for level, _, text in found] == expected


def test_what_is_impossible_has_a_name() -> None:
    assert said(a_profile(backends=("venv",)), LINUX, "conda")[0][1] == "backend"
    assert said(a_profile(platforms=("linux/arm64",)), LINUX, "venv")[0][1] == "platform"
    assert said(a_profile(), UNREAD, "venv")[0][1] == "unread"


GLIBC_228 = lock_of(wheel("torch-2.14.1-cp312-cp312-manylinux_2_28_x86_64.whl"))
OLD = "is older than 2.28, which the wheels need"


@pytest.mark.parametrize(
    ("libc", "release", "expected"),
    [
        ("glibc 2.28", None, []),
        ("glibc 2.27", None, [("impossible", "system-old", f"glibc 2.27 {OLD}")]),
        (None, "Debian GNU/Linux 12 (bookworm)", []),
        (None, "Ubuntu 18.04.6 LTS", [("impossible", "system-old", f"glibc 2.27 {OLD}")]),
        (None, None, [("warning", "system-unread", "the version of glibc could not be read")]),
        ("musl 1.2.4", None, [(
            "impossible",
            "libc-other",
            "the C library is musl, but the wheels need glibc: use --backend docker",
        )]),
    ],
)  # fmt: skip
def test_the_c_library_that_the_wheels_need(
    libc: str | None, release: str | None, expected: Said
) -> None:
    host = changed(LINUX, libc=libc, os_version=release)
    assert said(a_profile(), host, "venv", GLIBC_228) == expected
    # An image brings its own, and wheels that name no version run with any.
    assert said(a_profile(), host, "docker", GLIBC_228) == []
    assert said(a_profile(), host, "venv", lock_of(wheel("torch-2.14.1-py3-none-any.whl"))) == []


@pytest.mark.parametrize(
    ("actual", "minimum", "expected"),
    [
        ("14.0", "14.0", [("note", "", "macOS 14.0")]),
        ("13.6", "14.0", [
            ("impossible", "system-old", "macOS 13.6 is older than 14.0, which the wheels need"),
        ]),
        (None, "14.0", [
            ("warning", "system-unread", "the version of macOS could not be read"),
        ]),
        ("13.6", "", []),
    ],
)  # fmt: skip
def test_the_version_of_macos(actual: str | None, minimum: str, expected: Said) -> None:
    host = changed(MAC, os_version=actual)
    stated = a_profile(platforms=ON_MACS, requires=Requires(macos=minimum))
    assert said(stated, host, "venv") == expected
    tag = f"macosx_{minimum.replace('.', '_')}_arm64" if minimum else "any"
    lock = lock_of(wheel(f"torch-2.14.1-cp312-cp312-{tag}.whl"), platform="macos/arm64")
    assert said(a_profile(platforms=ON_MACS), host, "venv", lock) == expected


@pytest.mark.parametrize(
    ("host", "backend", "expected"),
    [
        (changed(LINUX, rosetta=True), "venv", [
            ("warning", "rosetta-linux", ROSETTA),
        ]),
        (changed(MAC, rosetta=True), "venv", [
            (
                "no",
                "rosetta",
                "Python is x86_64 under Rosetta: run envbuilder with an arm64 Python",
            ),
        ]),
        (changed(MAC, rosetta=None), "venv", [
            ("warning", "unread", "whether Python runs under Rosetta could not be read"),
        ]),
        (changed(MAC, rosetta=True), "docker", []),
    ],
)  # fmt: skip
def test_translation(host: Host, backend: str, expected: Said) -> None:
    mine = a_profile(platforms=(*ON_MACS, "linux/arm64"))
    assert said(mine, host, backend) == expected


def flags(*has: str, **changes: Any) -> Host:
    """A host whose CPU has these flags, among those that every recent one has."""
    cpu = Cpu(flags=("sse2", *has), model_name="A CPU")
    return changed(LINUX, cpu=msgspec.structs.replace(cpu, **changes))


AVX512 = Requires(cpu_flags=("avx512f", "avx512_bf16"), without_cpu_flags="it is slow")


@pytest.mark.parametrize(
    ("host", "requires", "expected"),
    [
        (flags("avx512f", "avx512_bf16"), AVX512, []),
        (flags("avx2"), AVX512, [
            ("no", "cpu-flags", "A CPU has no AVX-512 (avx512f, avx512_bf16 missing): it is slow"),
        ]),
        (flags(generation="Zen 3"), Requires(cpu_flags=("sse4_1",)), [
            ("no", "cpu-flags", "Zen 3 has no SSE4.1 (sse4_1 missing)"),
        ]),
        # AVX2 implies SSE 4.1, and ARM's flags are not those of this processor.
        (flags("avx2"), Requires(cpu_flags=("sse4_1",)), []),
        (changed(ARM, cpu=flags("asimd").cpu), AVX512, []),
        (changed(ARM, cpu=flags().cpu), Requires(cpu_flags=("sve",)), [
            ("no", "cpu-flags", "A CPU has no sve (sve missing)"),
        ]),
        # Nothing unknown counts as working.
        (flags("avx2"), Requires(cpu_flags=("sse4a", "avx512f")), [
            ("warning", "unread", "whether the CPU has sse4a is not recorded"),
            ("no", "cpu-flags", "A CPU has no AVX-512 (avx512f missing)"),
        ]),
        (changed(LINUX, cpu=Cpu()), AVX512, [
            ("warning", "unread", "the CPU's flags could not be read"),
        ]),
        # What is only desirable is a warning if it is known to be missing, else nothing.
        (flags(), Requires(cpu_flags_wanted=("avx2",)), [
            ("warning", "cpu-flags", "A CPU has no avx2 (avx2 missing)"),
        ]),
        (flags(), Requires(cpu_flags=("avx2",), cpu_flags_wanted=("avx512f",)), [
            ("no", "cpu-flags", "A CPU has no avx2 (avx2 missing)"),
        ]),
    ],
)  # fmt: skip
def test_flags_of_the_cpu(host: Host, requires: Requires, expected: Said) -> None:
    assert said(a_profile(requires=requires), host, "venv") == expected
    assert said(a_profile(requires=requires), host, "docker") == expected


def test_an_extension_is_told_which_flag_it_uses() -> None:
    expects = Expects(device="cpu", version="2.13.0", extension="zentorch")
    uses = Requires(cpu_flags=("avx2", "avx512f", "avx512_bf16"))
    mine = a_profile(requires=uses, expects=expects)
    has = flags("avx512f", "avx512_bf16")
    assert said(mine, has, "venv") == [("note", "", "A CPU has avx512_bf16")]
    partly = a_profile(requires=Requires(cpu_flags=("avx512f", "sse4a")), expects=expects)
    assert [code for _, code, _ in said(partly, has, "venv")] == ["unread"]


def test_why_no_engine_runs_images() -> None:
    def found(*engines: Engine) -> Said:
        host = changed(LINUX, containers=Containers(engines=engines))
        return [(f.level, f.code, f.text) for f in fit.missing_engine(host)]

    refused = Engine(name="docker", socket="/run/a", state="present", detail="refused.")
    silent = Engine(name="podman", socket="/run/b", state="unknown", detail="silent")
    usable = Engine(name="podman", socket="/run/c", state="usable")
    assert found(refused, usable) == found(usable, refused) == []
    assert found() == [("warning", "engine", "no container engine answers")]
    text = "no container engine answers (/run/a: refused)"
    assert found(refused, silent) == [("warning", "engine", text)]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (LINUX, "linux/amd64"),
        (MAC, "linux/arm64"),
        (changed(LINUX, machine="riscv64"), None),
        (Host(os="other", machine="x86_64"), None),
    ],
)
def test_the_platform_of_containers(host: Host, expected: str | None) -> None:
    assert fit.docker_platform(host) == expected
