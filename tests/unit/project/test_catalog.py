"""The profiles and locks of a command: in a project, variants whose framework is the hardware's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from envbuilder.core import resources
from envbuilder.core.errors import InvalidError
from envbuilder.core.project_file import Definition, Environment
from envbuilder.core.settings import load as load_settings
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.project import catalog
from envbuilder.project.catalog import adapt, framework_of
from envbuilder.project.environments import Contents
from envbuilder.project.lines import Line

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.profiles.library import Library


SHIPPED = resources.profiles_dir() / "locks" / "cpu.json"


def library(folder: Path, text: str, environment: str = "default") -> Library:
    (folder / "envbuilder.yaml").write_text(text)
    return catalog.library(
        load_settings({"ENVBUILDER_CONFIG_DIR": str(folder / "config")}, folder,
                           environment=environment)
    )  # fmt: skip


def test_outside_of_a_project_profiles_are_as_they_are(tmp_path: Path) -> None:
    plain = library(tmp_path, "profile: cpu\n")
    assert not any("einops" in r for r in plain.profile("cpu").requirements)
    assert plain.usable_lock(plain.profile("cpu")).profile == "cpu"
    with pytest.raises(InvalidError, match=r"there is no environment 'test'") as raised:
        library(tmp_path, "", "test")
    assert "envbuilder.yaml" in raised.value.hint


def test_in_a_project_profiles_are_its_variants(tmp_path: Path) -> None:
    project = library(tmp_path, "requirements: [einops]\nenvironments: {test: {python: '3.12'}}\n")
    assert "einops" in project.profile("cpu").requirements
    assert {p.name for p in project.profiles()} >= {"cpu", "cuda", "rocm", "xpu", "mps"}
    test = library(tmp_path, (tmp_path / "envbuilder.yaml").read_text(), "test")
    assert test.profile("cpu").python.default == "3.12"
    with pytest.raises(InvalidError, match=r"no environment 'nope'"):
        library(tmp_path, (tmp_path / "envbuilder.yaml").read_text(), "nope")


def test_a_project_can_list_its_profiles(tmp_path: Path) -> None:
    project = library(tmp_path, "profiles: [cuda, cpu]\n")
    assert [p.name for p in project.profiles()] == ["cpu", "cuda"]
    with pytest.raises(InvalidError, match=r"the project does not support profile 'mps'") as raised:
        project.profile("mps")
    assert "which has cuda, cpu" in raised.value.hint


def test_its_locks_are_its_own_and_hosts_are_judged_by_the_profiles_until_then(
    tmp_path: Path,
) -> None:
    project = library(tmp_path, "requirements: [einops]\n")
    judged = project.lock("cpu")
    assert judged is not None
    assert judged == profile_lock.load(SHIPPED)
    with pytest.raises(InvalidError, match=r"profile 'cpu' has no lock"):
        project.usable_lock(project.profile("cpu"))
    locks = tmp_path / "envbuilder.lock"
    locks.mkdir()
    (locks / "default.cpu.json").write_text(SHIPPED.read_text())
    again = library(tmp_path, "requirements: [einops]\n")
    with pytest.raises(InvalidError, match=r"the lock of 'cpu' is stale"):
        again.usable_lock(again.profile("cpu"))


def test_profiles_that_do_not_fit_are_left_out_unless_none_does(tmp_path: Path) -> None:
    some = library(tmp_path, "requirements: ['torch==2.13.0']\n")
    names = {p.name for p in some.profiles()}
    assert "cpu" in names
    assert "cuda" not in names
    none = library(tmp_path, "requirements: ['torch==1.0']\n")
    with pytest.raises(InvalidError, match=r"torch==1.0: profile"):
        none.profiles()


def test_a_project_is_for_one_framework(tmp_path: Path) -> None:
    plain = library(tmp_path, "requirements: [einops]\n")
    assert plain.framework == ("torch", "")
    shown = library(tmp_path, "requirements: ['jax[cuda12]>=0.4', flax]\n")
    assert shown.framework == ("jax", "envbuilder.yaml:1 requires jax")
    stated = library(tmp_path, "framework: tensorflow\nrequirements: [einops]\n")
    assert stated.framework == ("tensorflow", "envbuilder.yaml says so")
    for each in (plain, shown, stated):
        assert {p.framework for p in each.profiles()} == {each.framework[0]}
        assert each.candidates() == each.profiles()


def test_a_profile_with_another_framework_is_refused(tmp_path: Path) -> None:
    project = library(tmp_path, "requirements: ['jax>=0.4']\n")
    with pytest.raises(InvalidError) as raised:
        project.profile("cpu")
    assert raised.value.message == (
        "profile 'cpu' has PyTorch, and the project is for JAX (envbuilder.yaml:1 requires jax)"
    )
    assert "write framework: torch into envbuilder.yaml" in raised.value.hint


def test_what_is_wrong_with_every_profile_is_said_of_the_projects_framework(tmp_path: Path) -> None:
    project = library(tmp_path, "requirements: ['jax==0.1']\n")
    with pytest.raises(InvalidError, match=r"jax==0.1: profile 'jax-cpu' has jax 0\.12"):
        project.profiles()


def test_outside_of_a_project_candidates_have_pytorch_unless_asked(tmp_path: Path) -> None:
    plain = library(tmp_path, "")
    assert {p.framework for p in plain.candidates()} == {"torch"}
    assert "jax-cpu" in {p.name for p in plain.candidates("jax")}


# Variants

FOLDERS = (resources.profiles_dir(),)
PROFILES = tuple(profiles.load(name, FOLDERS) for name in profiles.names(FOLDERS))
CPU = profiles.load("cpu", FOLDERS)
CUDA = profiles.load("cuda", FOLDERS)


def lines(*texts: str, file: str = "requirements.txt") -> tuple[Line, ...]:
    return tuple(Line(text, f"{file}:{number}") for number, text in enumerate(texts, 1))


def contents(*requirements: str, **changes: Any) -> Contents:
    environment = {
        key: changes.pop(key) for key in list(changes) if key in Environment.__struct_fields__
    }
    fields: dict[str, Any] = {
        "stated": Environment(**environment), "requirements": lines(*requirements),
        "constraints": (), "pythons": (), "conda": (), "channels": (), "notes": (),
    }  # fmt: skip
    return Contents(**{**fields, **changes})


def test_packages_are_added_to_those_of_the_profile() -> None:
    variant = adapt(CPU, contents("einops", "rich>=13; python_version > '3.8'", "einops"))
    added = variant.requirements[len(CPU.requirements) :]
    assert variant.requirements[: len(CPU.requirements)] == CPU.requirements
    assert added == ("einops", 'rich>=13; python_version > "3.8"')
    assert variant.name == "cpu"
    assert profile_lock.inputs_digest(variant) != profile_lock.inputs_digest(CPU)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.name)
def test_every_profile_can_have_a_project(profile: profiles.Profile) -> None:
    variant = adapt(profile, contents("einops"))
    assert variant.requirements == (*profile.requirements, "einops")
    assert {*variant.base} | {*variant.debian_base} <= {*variant.python.supported}
    assert variant.backends
    # What was derived is a profile that a file could state.
    again = msgspec.convert(msgspec.to_builtins(variant), profiles.Profile)
    assert again == variant


@pytest.mark.parametrize("line", ["torch", "torch>=2.1", "Torch ==2.13.0", "torch<3", "torch~=2.1"])
def test_pytorch_is_the_profiles(line: str) -> None:
    variant = adapt(CPU, contents(line, "einops"))
    assert variant.requirements == (*CPU.requirements, "einops")


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


def test_a_framework_counts_where_its_marker_holds_on_one_of_the_targets() -> None:
    on_arm = 'torch==2.2.2; platform_machine == "aarch64"'
    with pytest.raises(InvalidError, match=r"profile 'cpu' has torch 2.13.0\+cpu"):
        adapt(CPU, contents(on_arm))
    zendnn = profiles.load("zendnn", FOLDERS)  # x86-64 alone
    assert adapt(zendnn, contents(on_arm)).requirements == zendnn.requirements


def test_extras_are_kept_but_not_those_that_choose_a_build() -> None:
    assert adapt(CPU, contents("torch[optree]>=2")).requirements == (
        *CPU.requirements, "torch[optree]",
    )  # fmt: skip
    jax = profiles.load("jax-cpu", FOLDERS)
    assert adapt(jax, contents("jax[cuda12]", "jax[tpu]>=0.4")).requirements == jax.requirements
    added = adapt(jax, contents("jax[cuda12-local, k8s]")).requirements[len(jax.requirements) :]
    assert added == ('jax[k8s]; python_version >= "3.12"',)
    # Under the name that the profile has for the machine.
    tensorflow = profiles.load("tensorflow-cpu", FOLDERS)
    added = adapt(tensorflow, contents("tensorflow[and-cuda,gcs-filesystem]")).requirements[2:]
    assert added == (
        'tensorflow-cpu[gcs-filesystem]; platform_machine == "x86_64"',
        'tensorflow[gcs-filesystem]; platform_machine != "x86_64"',
    )


@pytest.mark.parametrize("stated", ["torch==2.13.*", "torch>=2.1", "torch>=2.1,<3", "torch"])
def test_a_profile_of_the_users_own_that_pins_no_version(stated: str) -> None:
    mine = msgspec.structs.replace(CPU, requirements=(stated,))
    assert adapt(mine, contents("torch<2.14")).requirements == (stated, "torch<2.14")
    assert adapt(mine, contents(constraints=lines("torch==2.13.0"))).constraints == (
        "torch==2.13.0",
    )
    tensorflow = msgspec.structs.replace(
        profiles.load("tensorflow-cuda", FOLDERS), requirements=("tensorflow[and-cuda]>=2.20",)
    )
    # Another name of it would bring a second build.
    assert adapt(tensorflow, contents("tensorflow-gpu>=2.21")).requirements[1:] == (
        "tensorflow>=2.21",
    )


@pytest.mark.parametrize("line", ["torch==2.4.0", "torch<2.13", 'torch==2.4.0; os_name == "posix"'])
def test_a_constraint_on_the_framework_counts(line: str) -> None:
    with pytest.raises(InvalidError) as raised:
        adapt(CPU, contents(constraints=lines(line, file="constraints.txt")))
    assert raised.value.message == (
        f"constraints.txt:1: {line}: profile 'cpu' has torch 2.13.0+cpu"
    )
    met = adapt(CPU, contents(constraints=lines("torch>=2", 'torch==1; os_name == "nt"')))
    assert (met.requirements, met.constraints) == (CPU.requirements, CPU.constraints)
    jax = profiles.load("jax-cpu", FOLDERS)
    assert adapt(jax, contents(constraints=lines("jaxlib<1"))).constraints == ("jaxlib<1",)


@pytest.mark.parametrize("line", ["torch==2.5.1", "torch<2", "torch==2.13.0+cu126", "torch>=2.14"])
def test_another_pytorch_is_an_error_that_names_both(line: str) -> None:
    with pytest.raises(InvalidError) as raised:
        adapt(CPU, contents("einops", line))
    assert raised.value.message == (
        f"requirements.txt:2: {line}: profile 'cpu' has torch 2.13.0+cpu"
    )
    assert "profiles: [NAME, …]" in raised.value.hint
    assert adapt(CPU, contents("torch==2.13.0")).requirements == CPU.requirements


def test_companions_come_from_the_index_of_the_profiles_pytorch() -> None:
    cpu, cuda = (adapt(p, contents("torchvision>=0.20", "torchaudio")) for p in (CPU, CUDA))
    assert cpu.requirements[-2:] == ("torchvision>=0.20", "torchaudio")
    assert {cpu.indexes[name] for name in FRAMEWORKS["torch"].builds} == {"pytorch-cpu"}
    # PyTorch for CUDA is PyPI's, and so are its companions.
    assert cuda.indexes == CUDA.indexes
    assert "torchvision" not in cuda.indexes


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rich @ https://example.org/rich.whl", "a URL; only packages from an index"),
        ("rich @ git+https://example.org/rich", "a version control repository; only"),
        ("--index-url https://example.org", "not a requirement"),
        ("rich >= ", "not a requirement"),
        ("$(reboot)", "not a requirement"),
        ("rich; os_name ~= 'posix'", "not a requirement: its marker cannot be evaluated"),
        ("rich; 'x' in extras", "not a requirement: its marker cannot be evaluated"),
    ],
)
def test_a_line_that_no_lock_can_hold(line: str, words: str) -> None:
    with pytest.raises(InvalidError, match=r"requirements.txt:1: ") as raised:
        adapt(CPU, contents(line))
    assert words in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize(
    ("name", "kept", "limits"),
    [
        ("cuda", ("triton>=2.0; marker",), ()),
        ("rocm", (), ("pytorch-triton-rocm>=2.0; marker", "triton-rocm>=2.0; marker")),
        ("xpu", (), ("pytorch-triton-xpu>=2.0; marker", "triton-xpu>=2.0; marker")),
        ("cpu", (), ()),
        ("mps", (), ()),
        ("jax-cpu", ("triton>=2.0; marker",), ()),
    ],
)
def test_triton_is_the_one_of_the_hardware(
    name: str, kept: tuple[str, ...], limits: tuple[str, ...]
) -> None:
    profile = profiles.load(name, FOLDERS)
    variant = adapt(profile, contents('triton>=2.0; sys_platform == "linux"', "einops"))
    marker = 'sys_platform == "linux"'
    added = variant.requirements[len(profile.requirements) :]
    assert added == (*(text.replace("marker", marker) for text in kept), "einops")
    assert variant.constraints == tuple(text.replace("marker", marker) for text in limits)
    of_rocm = adapt(profile, contents("triton-rocm")).requirements[len(profile.requirements) :]
    assert bool(of_rocm) == (name in {"rocm", "jax-cpu"})


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
        ((">=3.10",), ("3.11",)),
        ((">=3.12",), ("3.12",)),
        ((">=3.11.4",), ("3.11",)),
        (("==3.12.7",), ("3.12",)),
        (("<3.12", ">=3.9"), ("3.11",)),
        (("~=3.12.0",), ("3.12",)),
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
        (("<3.9",), "needs Python <3.9 (requirements.txt:1); profile 'cpu' has 3.11, 3.12"),
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


def test_a_second_python_for_images_if_the_default_has_no_base() -> None:
    xpu = profiles.load("xpu", FOLDERS)
    variant = adapt(xpu, contents())
    assert variant.python.default == xpu.python.default
    assert variant.image_python in variant.base
    stated = adapt(xpu, contents(pythons=lines(f"=={xpu.python.default}.*")))
    assert "docker" not in stated.backends
    assert "venv" in stated.backends


def test_no_backend_is_left() -> None:
    only_image = msgspec.structs.replace(profiles.load("xpu", FOLDERS), backends=("docker",))
    with pytest.raises(InvalidError, match=r"no base image with Python 3.11 is known"):
        adapt(only_image, contents(pythons=lines("==3.11.*")))


def test_variables_and_system_packages_are_added() -> None:
    variant = adapt(
        CPU,
        contents(
            system_packages=("libsndfile1", *CPU.system_packages), environment={"A": "b"},
            notes=("pytorch is left out",),
        ),
    )  # fmt: skip
    assert variant.system_packages == (*CPU.system_packages, "libsndfile1")
    assert not variant.unpack_packages, "their scripts may have to run"
    assert variant.environment == {**CPU.environment, "A": "b"}
    assert variant.warnings == (*CPU.warnings, "pytorch is left out")
    assert adapt(CPU, contents()).unpack_packages == CPU.unpack_packages


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.name)
def test_every_profile_with_images_can_have_system_packages(profile: profiles.Profile) -> None:
    variant = adapt(profile, contents(system_packages=("sqlite3",)))
    assert "sqlite3" in variant.system_packages
    assert bool(variant.debian_suite) == bool(profile.base or profile.debian_base)
    nameless = msgspec.structs.replace(profile, debian_suite="")
    if profile.base:
        with pytest.raises(InvalidError, match="does not say which Debian suite"):
            adapt(nameless, contents(system_packages=("sqlite3",)))


def test_conda_packages_leave_the_conda_backend_alone() -> None:
    variant = adapt(CPU, contents(conda=lines("ffmpeg 6.*"), channels=("bioconda", "conda-forge")))
    assert variant.backends == ("conda",)
    assert variant.conda.packages == (*CPU.conda.packages, "ffmpeg 6.*")
    assert variant.conda.channels == ("bioconda", "conda-forge")
    no_conda = msgspec.structs.replace(CPU, backends=("docker", "venv"))
    with pytest.raises(InvalidError, match=r"requirements.txt:1 needs conda packages"):
        adapt(no_conda, contents(conda=lines("ffmpeg")))


def test_versions_of_conda_packages_hold_for_wheels() -> None:
    listed = lines("numpy 1.26.*", "scipy >=1.10,<2", "tzdata ==2024a", "_libgcc_mutex ==0.1",
                   "mkl 2024.*", "pillow", "x265 1.*|2.*", file="environment.yml")  # fmt: skip
    variant = adapt(CPU, contents("rich", conda=listed))
    assert variant.constraints == (*CPU.constraints, "numpy==1.26.*", "scipy<2,>=1.10")
    assert profile_lock.inputs_digest(variant) != profile_lock.inputs_digest(
        adapt(CPU, contents("rich"))
    )


def test_a_package_of_both_is_requested_once() -> None:
    zendnn = profiles.load("zendnn", FOLDERS)
    variant = adapt(zendnn, contents(conda=lines("gxx", "cmake")))
    assert variant.conda.packages == ("gxx", "cmake")


def test_an_environment_without_wheels_has_no_packages_for_pip() -> None:
    conda = msgspec.structs.replace(CPU.conda, framework="conda", packages=("pytorch 2.13.*",))
    no_wheels = msgspec.structs.replace(CPU, conda=conda)
    # It would lack them without a word.
    assert adapt(no_wheels, contents("rich")).backends == ("docker", "venv")
    assert adapt(no_wheels, contents("torch", conda=lines("ffmpeg"))).backends == ("conda",)
    with pytest.raises(InvalidError) as raised:
        adapt(no_wheels, contents("rich", conda=lines("ffmpeg", file="environment.yml")))
    assert raised.value.message == (
        "profile 'cpu' has no backend for this project: environment.yml:1 needs conda packages; its"
        " conda environments hold no wheels, and requirements.txt:1 needs rich"
    )


def test_notes_end_as_warnings_of_profiles_do() -> None:
    assert adapt(CPU, contents(notes=("a: left out.",))).warnings[-1] == "a: left out"


JAX_CPU = profiles.load("jax-cpu", FOLDERS)
TENSORFLOW_CPU = profiles.load("tensorflow-cpu", FOLDERS)


@pytest.mark.parametrize("line", ["jax", "jax[cuda12]>=0.4", "jax[tpu]==0.12.0.1"])
def test_jax_is_the_hardwares_build(line: str) -> None:
    variant = adapt(JAX_CPU, contents(line, "flax"))
    assert variant.requirements == (*JAX_CPU.requirements, "flax")


def test_parts_of_jax_are_never_added_but_their_versions_count() -> None:
    variant = adapt(JAX_CPU, contents("jax-cuda12-plugin[with-cuda]", "jaxlib>=0.5"))
    assert variant.requirements == JAX_CPU.requirements
    assert variant.constraints == ("jaxlib>=0.5",)


def test_what_a_profile_pins_is_that_of_the_environments_python() -> None:
    with pytest.raises(InvalidError, match=r"jax<0\.11: profile 'jax-cpu' has jax 0\.12\.0\.1"):
        adapt(JAX_CPU, contents("jax<0.11"))
    older = adapt(JAX_CPU, contents("jax<0.11", pythons=lines("==3.11.*")))
    assert older.python.supported == ("3.11",)
    with pytest.raises(InvalidError, match=r"jax>=0\.11: profile 'jax-cpu' has jax 0\.10\.2"):
        adapt(JAX_CPU, contents("jax>=0.11", pythons=lines("==3.11.*")))


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu", "tensorflow-gpu"])
def test_tensorflow_by_any_name_is_the_hardwares_build(name: str) -> None:
    variant = adapt(TENSORFLOW_CPU, contents(f"{name}>=2.15", "tensorflow-datasets"))
    assert variant.requirements == (*TENSORFLOW_CPU.requirements, "tensorflow-datasets")
    with pytest.raises(InvalidError, match=r"<2\.16: profile 'tensorflow-cpu' has tensorflow"):
        adapt(TENSORFLOW_CPU, contents(f"{name}<2.16"))


def test_another_framework_is_an_ordinary_package() -> None:
    variant = adapt(JAX_CPU, contents("torch==2.5.1"))
    assert variant.requirements == (*JAX_CPU.requirements, "torch==2.5.1")
    assert variant.indexes == {}


# Which framework a project is for


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([], ("torch", "")),
        (["einops", "rich>=13"], ("torch", "")),
        (["torch>=2", "rich"], ("torch", "requirements.txt:1 requires torch")),
        (["rich", "jax[cuda12]>=0.4"], ("jax", "requirements.txt:2 requires jax")),
        (["flax", "optax"], ("jax", "requirements.txt:1 requires flax")),
        (["tensorflow-gpu"], ("tensorflow", "requirements.txt:1 requires tensorflow-gpu")),
        (["keras>=3"], ("tensorflow", "requirements.txt:1 requires keras")),
        # What is required counts before what packages are made for: keras has several backends.
        (["keras", "jax"], ("jax", "requirements.txt:2 requires jax")),
        (["keras", "torch"], ("torch", "requirements.txt:2 requires torch")),
        # Nor does what is for machines that no profile is for.
        (['jax; sys_platform == "win32"', "torch"], ("torch", "requirements.txt:2 requires torch")),
        (
            ['tensorflow<2; python_version < "3.8"', "flax"],
            ("jax", "requirements.txt:2 requires flax"),
        ),
        (['jax; platform_machine == "arm64"'], ("jax", "requirements.txt:1 requires jax")),
    ],
)
def test_requirements_show_the_framework(listed: list[str], expected: tuple[str, str]) -> None:
    assert framework_of(Definition(), lines(*listed)) == expected


def test_what_the_project_states_decides() -> None:
    stated = Definition(framework="jax")
    assert framework_of(stated, lines("torch", "tensorflow")) == (
        "jax",
        "envbuilder.yaml says so",
    )


@pytest.mark.parametrize("listed", [["torch", "jax"], ["flax", "torchvision"], ["keras", "optax"]])
def test_two_frameworks_are_a_question(listed: list[str]) -> None:
    with pytest.raises(InvalidError, match="and a profile has one framework") as caught:
        framework_of(Definition(), lines(*listed))
    for number, name in enumerate(listed, 1):
        assert f"{name}, requirements.txt:{number}" in caught.value.message
    assert "framework: " in caught.value.hint
