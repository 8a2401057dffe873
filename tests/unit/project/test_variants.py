"""Variants of profiles for a project, and which framework a project is for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import Definition, Environment
from envbuilder.profiles import lock as profile_lock, profile as profiles
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.profile import Profile, Python
from envbuilder.project.environments import Contents
from envbuilder.project.lines import Line
from envbuilder.project.release import Decision
from envbuilder.project.variants import adapt, framework_of
from tests.support.shipped import FOLDERS, shipped_profile

PROFILES = tuple(shipped_profile(name) for name in profiles.names(FOLDERS))
CPU = shipped_profile("cpu")
CUDA = shipped_profile("cuda")
JAX_CPU = shipped_profile("jax-cpu")


def lines(*texts: str, file: str = "requirements.txt") -> tuple[Line, ...]:
    return tuple(Line(text, f"{file}:{number}") for number, text in enumerate(texts, 1))


def contents(*requirements: str, **changes: Any) -> Contents:
    environment = {
        key: changes.pop(key) for key in list(changes) if key in Environment.__struct_fields__
    }
    fields: dict[str, Any] = {
        "environment": Environment(**environment), "requirements": lines(*requirements),
        "constraints": (), "pythons": (), "conda": (), "channels": (), "notes": (),
    }  # fmt: skip
    return Contents(**{**fields, **changes})


LINUX = 'sys_platform == "linux"'
TRITON = (f"triton>=2.0; {LINUX}", "einops")


@pytest.mark.parametrize(
    ("name", "listed", "added", "limits"),
    [
        (
            "cpu",
            ("einops", "rich>=13; python_version > '3.8'", "einops"),
            ("einops", 'rich>=13; python_version > "3.8"'),
            (),
        ),
        # The framework is the hardware's, by any of its names and with its own extras.
        (
            "cpu",
            ("torch", "torch>=2.1", "Torch ==2.13.0", "torch<3", "torch~=2.1", "a"),
            ("a",),
            (),
        ),
        (
            "jax-cpu",
            ("jax[cuda12]", "jax[cuda12]>=0.4", "jax[tpu]==0.12.0.1", "flax"),
            ("flax",),
            (),
        ),
        (
            "jax-cpu",
            ("jax[cuda12-local, k8s]",),
            ('jax[k8s]; python_version >= "3.12"',),
            (),
        ),
        (
            "tensorflow-cpu",
            ("tensorflow>=2.15", "tensorflow-cpu", "tensorflow-gpu>=2.15", "tensorflow-datasets"),
            ("tensorflow-datasets",),
            (),
        ),
        # Under the name that the profile has for the machine.
        (
            "tensorflow-cpu",
            ("tensorflow[and-cuda,gcs-filesystem]",),
            (
                'tensorflow-cpu[gcs-filesystem]; platform_machine == "x86_64"',
                'tensorflow[gcs-filesystem]; platform_machine != "x86_64"',
            ),
            (),
        ),
        # Another framework is an ordinary package.
        ("jax-cpu", ("torch==2.5.1",), ("torch==2.5.1",), ()),
        # Triton is the one of the hardware.
        ("cuda", TRITON, TRITON, ()),
        *(
            (
                name,
                TRITON,
                ("einops",),
                (f"pytorch-triton-{name}>=2.0; {LINUX}", f"triton-{name}>=2.0; {LINUX}"),
            )
            for name in ("rocm", "xpu")
        ),
        *((name, TRITON, ("einops",), ()) for name in ("cpu", "mps")),
        *((name, ("triton-rocm",), ("triton-rocm",), ()) for name in ("rocm", "jax-cpu")),
        *((name, ("triton-rocm",), (), ()) for name in ("cuda", "xpu", "cpu", "mps")),
    ],
)
def test_what_lines_add_to_a_profile(
    name: str, listed: tuple[str, ...], added: tuple[str, ...], limits: tuple[str, ...]
) -> None:
    profile = shipped_profile(name)
    variant = adapt(profile, contents(*listed))
    assert variant.requirements == (*profile.requirements, *added)
    assert variant.constraints == (*profile.constraints, *limits)
    assert variant.name == name
    if added:
        assert profile_lock.inputs_digest(variant) != profile_lock.inputs_digest(profile)


@pytest.mark.parametrize(
    ("name", "line", "python", "words"),
    [
        *(
            ("cpu", line, "", f"{line}: profile 'cpu' has torch 2.13.0+cpu")
            for line in (
                "torch==2.5.1",
                "torch<2",
                # It counts where its marker holds on one of the targets.
                'torch==2.2.2; platform_machine == "aarch64"',
            )
        ),
        # What a profile pins is that of the environment's Python.
        ("jax-cpu", "jax>=0.11", "==3.11.*", "jax>=0.11: profile 'jax-cpu' has jax 0.10.2"),
        *(
            ("tensorflow-cpu", f"{name}<2.16", "", "<2.16: profile 'tensorflow-cpu' has tensorflow")
            for name in ("tensorflow", "tensorflow-cpu", "tensorflow-gpu")
        ),
        # No lock can hold it.
        (
            "cpu",
            "rich @ https://example.org/rich.whl",
            "",
            "a URL, but only packages from an index",
        ),
        *(
            ("cpu", line, "", "not a requirement")
            for line in ("--index-url https://example.org", "$(reboot)")
        ),
        *(
            ("cpu", line, "", "not a requirement: its marker cannot be evaluated")
            for line in ("rich; os_name ~= 'posix'", "rich; 'x' in extras")
        ),
    ],
)
def test_lines_that_a_profile_cannot_have(name: str, line: str, python: str, words: str) -> None:
    profile = shipped_profile(name)
    pythons = lines(python) if python else ()
    with pytest.raises(InvalidError, match=r"requirements.txt:2: ") as raised:
        adapt(profile, contents("einops", line, pythons=pythons))
    assert words in raised.value.message
    assert raised.value.hint
    assert ("profiles: [cpu, cuda]" in raised.value.hint) == ("profile '" in words)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.name)
def test_every_profile_can_have_a_project(profile: profiles.Profile) -> None:
    variant = adapt(profile, contents("einops"))
    assert variant.requirements == (*profile.requirements, "einops")
    assert {*variant.base} | {*variant.debian_base} <= {*variant.python.supported}
    assert variant.backends
    # What was derived is a profile that a file could state.
    assert msgspec.convert(msgspec.to_builtins(variant), profiles.Profile) == variant


@pytest.mark.parametrize(
    "line",
    [
        'torch==2.2.2; sys_platform == "darwin" and platform_machine == "x86_64"',
        'torch==1.13; python_version < "3.8"',
        'tensorflow==1.15; sys_platform == "win32"',
    ],
)
@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.name)
def test_a_framework_for_other_machines_does_not_count(
    profile: profiles.Profile, line: str
) -> None:
    variant = adapt(profile, contents(line))
    if line.partition("=")[0] in FRAMEWORKS[profile.framework].names:
        assert variant.requirements == profile.requirements


@pytest.mark.parametrize("line", ["torch<2.13", 'torch==2.4.0; os_name == "posix"'])
def test_a_constraint_on_the_framework_counts(line: str) -> None:
    with pytest.raises(InvalidError) as raised:
        adapt(CPU, contents(constraints=lines(line, file="constraints.txt")))
    assert raised.value.message == (
        f"constraints.txt:1: {line}: profile 'cpu' has torch 2.13.0+cpu"
    )
    met = adapt(CPU, contents(constraints=lines("torch>=2", 'torch==1; os_name == "nt"')))
    assert (met.requirements, met.constraints) == (CPU.requirements, CPU.constraints)
    assert adapt(JAX_CPU, contents(constraints=lines("jaxlib<1"))).constraints == ("jaxlib<1",)


def test_companions_come_from_the_index_of_the_profiles_pytorch() -> None:
    cpu, cuda = (adapt(p, contents("torchvision>=0.20", "torchaudio")) for p in (CPU, CUDA))
    assert cpu.requirements[-2:] == ("torchvision>=0.20", "torchaudio")
    assert {cpu.indexes[name] for name in FRAMEWORKS["torch"].builds} == {"pytorch-cpu"}
    # PyTorch for CUDA is PyPI's, and so are its companions.
    assert cuda.indexes == CUDA.indexes
    assert "torchvision" not in cuda.indexes


def test_locked_versions_are_kept_except_of_what_pytorch_brings() -> None:
    versions = tuple(msgspec.structs.replace(line, locked=True) for line in lines(
        "rich==13.9.4", "torch==2.5.1", "torchvision==0.20.1", "nvidia-cudnn-cu12==9.1.0.70",
        "triton==3.1.0", "numpy==2.1.0; python_version >= '3.10'", "mkl==2026.1.0",
        "nvidia-ml-py==12.0",
    ))  # fmt: skip
    variant = adapt(CPU, contents("rich", constraints=versions))
    assert variant.constraints == (
        "rich==13.9.4", 'numpy==2.1.0; python_version >= "3.10"', "nvidia-ml-py==12.0",
    )  # fmt: skip
    assert profile_lock.inputs_digest(variant) != profile_lock.inputs_digest(
        adapt(CPU, contents("rich"))
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((), ("3.11",)),
        ((">=3.12",), ("3.12",)),
        ((">=3.11.4",), ("3.11",)),
        (("<3.12", ">=3.9"), ("3.11",)),
    ],
)
def test_python_is_the_profiles_default_if_the_files_allow_it(
    limits: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    variant = adapt(CPU, contents(pythons=lines(*limits)))
    assert variant.python.supported == expected
    assert variant.python.default == expected[0]
    assert {*variant.base} == {*expected}


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (("<3.9",), "needs Python <3.9 (requirements.txt:1), but profile 'cpu' has 3.11, 3.12"),
        (("new",), "requirements.txt:1: Python 'new'"),
        # The profile has each, but not both at once.
        (
            ("==3.11.*", "==3.12.1"),
            "needs Python ==3.11.* (requirements.txt:1), ==3.12.1 (requirements.txt:2)",
        ),
    ],
)
def test_a_python_that_the_profile_has_not(limits: tuple[str, ...], words: str) -> None:
    with pytest.raises(InvalidError) as raised:
        adapt(CPU, contents(pythons=lines(*limits)))
    assert words in raised.value.message


def decision(profile: Profile, release: str, python: str) -> Decision:
    return Decision(chosen=profile.choices(release)[release], python=python)


def of_lock(profile: Profile) -> dict[str, tuple[str, str]]:
    """Python → base image and interpreter, where images get the lock's."""
    gets = {v: b for v, b in profile.base.items() if b.python_path.startswith("/opt/python/")}
    return {v: (b.ref, b.python_path) for v, b in gets.items()}


def test_an_image_gets_the_locks_interpreter_where_no_base_has_that_python() -> None:
    decided = decision(CPU, "2.4.1", "3.10")
    variant = adapt(CPU, contents(pythons=lines("==3.10.*")), decided)
    assert variant.python == Python(default="3.10", supported=("3.10",))
    assert "docker" in variant.backends
    assert of_lock(variant) == {"3.10": (CPU.base["3.11"].ref, "/opt/python/bin/python3.10")}
    usual = adapt(CPU, contents(), decision(CPU, "2.4.1", "3.12"))
    assert (usual.base, of_lock(usual)) == ({"3.12": CPU.base["3.12"]}, {})


def test_managed_is_the_locks_interpreter_everywhere() -> None:
    wish = contents(python="managed")
    pinned = shipped_profile("zendnn")
    for profile, decided in ((CPU, decision(CPU, "2.4.1", "3.12")), (pinned, None)):
        variant = adapt(profile, wish, decided)
        assert variant.python.managed
        python = variant.python.default
        path = f"/opt/python/bin/python{python}"
        assert of_lock(variant) == {python: (profile.base[python].ref, path)}
        plain = adapt(profile, contents(), decided)
        digests = {profile_lock.inputs_digest(p) for p in (variant, plain)}
        assert len(digests) == 2, "a lock of before is stale"
    # Of these, Python is a Debian package.
    debian = adapt(shipped_profile("cpu-debian"), wish, decision(CPU, "2.4.1", "3.11"))
    assert [*debian.debian_base] == ["3.11"]


def test_variables_and_system_packages_are_added() -> None:
    variant = adapt(
        CPU,
        contents(
            system_packages=("libsndfile1", *CPU.system_packages), environment={"A": "b"},
            notes=("pytorch is left out.",),
        ),
    )  # fmt: skip
    assert variant.system_packages == (*CPU.system_packages, "libsndfile1")
    assert not variant.unpack_packages, "their scripts may have to run"
    assert variant.environment == {**CPU.environment, "A": "b"}
    assert variant.warnings == (*CPU.warnings, "pytorch is left out")
    assert adapt(CPU, contents()).unpack_packages == CPU.unpack_packages


def test_what_a_profile_of_the_users_own_leaves_open() -> None:
    mine = msgspec.structs.replace(CPU, requirements=("torch",), debian_suite="")
    assert adapt(mine, contents("torch<2.14")).requirements == ("torch", "torch<2.14")
    with pytest.raises(InvalidError, match="does not name the Debian suite"):
        adapt(mine, contents(system_packages=("sqlite3",)))
    on_arm = contents('torch==2.2.2; platform_machine == "aarch64"')
    assert adapt(shipped_profile("zendnn"), on_arm).requirements[0].startswith("torch==2.13")


def test_a_second_python_for_images_if_the_default_has_no_base() -> None:
    xpu = msgspec.structs.replace(shipped_profile("xpu"), builds=())
    variant = adapt(xpu, contents())
    assert variant.python.default == xpu.python.default
    assert variant.image_python in variant.base


def test_conda_packages_leave_the_conda_backend_alone() -> None:
    variant = adapt(CPU, contents(conda=lines("ffmpeg 6.*"), channels=("bioconda", "conda-forge")))
    assert variant.backends == ("conda",)
    assert variant.conda.packages == (*CPU.conda.packages, "ffmpeg 6.*")
    assert variant.conda.channels == ("bioconda", "conda-forge")


def test_conda_packages_with_a_wheel_or_a_debian_package_fit_every_backend() -> None:
    listed = lines("numpy 1.26.*", "gxx", "opencv", file="environment.yml")
    wheels = ("numpy==1.26.*", "opencv-python")
    variant = adapt(CPU, contents(*wheels, conda=listed, system_packages=("g++",)))
    assert variant.backends == CPU.backends
    assert {*wheels} <= {*variant.requirements}
    assert variant.conda.packages[-3:] == ("numpy 1.26.*", "gxx", "opencv")
    # Without one of them, such as by exclude:, only conda is left.
    for left in (contents(*wheels, conda=listed), contents("numpy", conda=listed)):
        assert adapt(CPU, left).backends == ("conda",)


# Which framework a project is for


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([], ("torch", "")),
        (["torch>=2", "rich"], ("torch", "requirements.txt:1 requires torch")),
        (["rich", "jax[cuda12]>=0.4"], ("jax", "requirements.txt:2 requires jax")),
        (["flax", "optax"], ("jax", "requirements.txt:1 requires flax")),
        (["tensorflow-gpu"], ("tensorflow", "requirements.txt:1 requires tensorflow-gpu")),
        # What is required counts before what packages are made for: keras has several backends.
        (["keras", "jax"], ("jax", "requirements.txt:2 requires jax")),
        # Nor does what is for machines that no profile is for.
        (['jax; sys_platform == "win32"', "torch"], ("torch", "requirements.txt:2 requires torch")),
        (
            ['tensorflow<2; python_version < "3.8"', "flax"],
            ("jax", "requirements.txt:2 requires flax"),
        ),
    ],
)
def test_requirements_show_the_framework(listed: list[str], expected: tuple[str, str]) -> None:
    assert framework_of(Definition(), lines(*listed)) == expected


@pytest.mark.parametrize("listed", [["torch", "jax"], ["keras", "optax"]])
def test_two_frameworks_are_a_question(listed: list[str]) -> None:
    with pytest.raises(InvalidError, match="but a profile has only one framework") as caught:
        framework_of(Definition(), lines(*listed))
    for number, name in enumerate(listed, 1):
        assert f"{name}, requirements.txt:{number}" in caught.value.message
    assert "framework: " in caught.value.hint
