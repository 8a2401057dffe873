"""The release of its framework that a project gets: its own choice, one for all hardware."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import load as load_settings
from envbuilder.profiles import fit, lock as profile_lock, profile as profiles
from envbuilder.profiles.profile import Profile
from envbuilder.profiles.releases import Build
from envbuilder.project import release as chosen_release, variants
from envbuilder.project.lines import Line
from envbuilder.project.variants import ProjectProfiles, ReleaseOptions
from tests.support import host_trees
from tests.support.shipped import FOLDERS, shipped_lock, shipped_profile

EVERY = ("cpu", "cuda", "cuda-legacy", "mps", "rocm", "xpu")


def project(folder: Path, text: str, choosing: ReleaseOptions = variants.ANY) -> ProjectProfiles:
    (folder / "envbuilder.yaml").write_text(text)
    settings = load_settings({"ENVBUILDER_CONFIG_DIR": str(folder / "config")}, folder)
    return variants.of_project(settings, choosing)


def of(variants: ProjectProfiles, name: str) -> Profile:
    return variants.of(shipped_profile(name))


def decided(variants: ProjectProfiles, names: Collection[str] = EVERY) -> dict[str, str]:
    """Profile → release, build and Python."""
    result = {}
    for name in names:
        profile = shipped_profile(name)
        try:
            decision = variants.decision(profile)
        except InvalidError:
            continue
        result[name] = f"{decision.chosen.title} {decision.python}"
    return result


def without(*indexes: str) -> ReleaseOptions:
    """ReleaseOptions where some indexes do not answer, and no claim helps."""

    def offered(build: Build) -> Collection[str]:
        return () if build.index.startswith(indexes) else build.pythons

    return ReleaseOptions(offered)


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ("torch==2.4.1", "2.4.1 (cu121) 3.11"),
        ("torch>=2,<2.4", "2.3.1 (cu121) 3.11"),
        ("torch>=2.0", "2.13.0 (cu130) 3.11"),
        ("torch>=2.14", "2.15.0 (cu132) 3.11"),
        ("torchvision==0.19.1", "2.4.1 (cu121) 3.11"),
        ("torch==2.4.1; sys_platform == 'darwin'", "2.13.0 (cu130) 3.11"),
        ("einops", "2.13.0 (cu130) 3.11"),
        ('framework_version: "2.7"', "2.7.1 (cu126) 3.11"),
    ],
)
def test_the_release_is_the_project_s(tmp_path: Path, wish: str, expected: str) -> None:
    stated = wish if ":" in wish else f'requirements: ["{wish}"]'
    variants = project(tmp_path, f"profiles: [cuda]\n{stated}\n")
    assert decided(variants, ["cuda"]) == {"cuda": expected}


def test_one_release_and_one_python_hold_on_all_hardware(tmp_path: Path) -> None:
    variants = project(tmp_path, "requirements: [torch==2.4.1]\n")
    assert decided(variants) == {
        "cpu": "2.4.1 (cpu) 3.11",
        "cuda": "2.4.1 (cu121) 3.11",
        "cuda-legacy": "2.4.1 (cu121) 3.11",
        "mps": "2.4.1 (macos) 3.11",
        "rocm": "2.4.1 (rocm6.1) 3.11",
    }
    cpu = of(variants, "cpu")
    # PyPI's wheel for ARM is the CPU's build, under another version.
    assert cpu.requirements == (
        "torch==2.4.1+cpu; platform_machine == 'x86_64'",
        "torch==2.4.1; platform_machine == 'aarch64'",
    )
    assert cpu.indexes["torch"] == "pytorch-cpu"
    assert not profiles.is_on_pypi(cpu, "linux/amd64")
    assert profiles.is_on_pypi(cpu, "linux/arm64")
    assert cpu.expects.version == "2.4.1"
    cuda = of(variants, "cuda")
    assert (cuda.requirements, cuda.expects.version) == (("torch==2.4.1",), "2.4.1+cu121")
    # PyPI's wheel for ARM is for the CPU: never for an accelerator.
    assert cuda.platforms == ("linux/amd64",)
    assert cuda.conda.virtual_packages["linux/amd64"]["__cuda"] == "12.1"
    rocm = of(variants, "rocm")
    assert rocm.requirements == ("torch==2.4.1+rocm6.1",)
    assert {rocm.indexes[n] for n in ("torch", "pytorch-triton-rocm")} == {"pytorch-rocm61"}
    assert "triton-rocm" not in rocm.indexes


@pytest.mark.parametrize(
    ("requirements", "cuda", "index"),
    [
        ("cupy-cuda13x", "2.13.0 (cu130) 3.11", None),
        ("cupy-cuda12x", "2.13.0 (cu129) 3.11", "pytorch-cu129"),
        ("cupy-cuda13x, cudf-cu12", "2.13.0 (cu130) 3.11", None),
        ("cupy-cuda12x, torch==2.10.0", "2.10.0 (cu128) 3.11", None),
        # No build of it is for that CUDA, and an older release is not taken for it.
        ("cupy-cuda12x, torch==2.15.0", "2.15.0 (cu132) 3.11", None),
        ("cupy-cuda11x", "2.13.0 (cu130) 3.11", None),
        ("nvidia-nccl-cu12", "2.13.0 (cu130) 3.11", None),
    ],
)
def test_the_build_is_for_the_cuda_that_packages_are_made_for(
    tmp_path: Path, requirements: str, cuda: str, index: str | None
) -> None:
    variants = project(tmp_path, f"requirements: [{requirements}]\n")
    assert decided(variants, ["cuda"]) == {"cuda": cuda}
    profile = of(variants, "cuda")
    assert profile.indexes.get("torch") == index
    assert profiles.is_on_pypi(profile, "linux/amd64") == (index is None)
    assert decided(variants, ["cpu"])["cpu"].startswith(cuda.partition(" ")[0])


def test_a_python_that_all_have_is_taken(tmp_path: Path) -> None:
    old = project(tmp_path, "requirements: [torch==1.13.1]\n")
    assert {d.rpartition(" ")[2] for d in decided(old).values()} == {"3.10"}
    stated = project(tmp_path, "python: '3.9'\nrequirements: [torch==2.4.1]\n")
    assert {d.rpartition(" ")[2] for d in decided(stated).values()} == {"3.9"}
    # Of the verified release, those that were.
    other = project(tmp_path, "python: '3.12'\n")
    assert of(other, "cpu").python.supported == ("3.12",)


def test_what_is_not_to_be_had_is_an_exception_with_its_reason(tmp_path: Path) -> None:
    variants = project(
        tmp_path,
        "requirements: [rich]\n",
        without("pytorch-rocm71", "pytorch-rocm72", "pytorch-xpu"),
    )
    assert decided(variants, ["cpu", "cuda"]) == {
        "cpu": "2.13.0 (cpu) 3.11",
        "cuda": "2.13.0 (cu130) 3.11",
    }
    variants = project(tmp_path, "requirements: ['torch>=2.6,<2.8']\n", without("pytorch-xpu"))
    xpu = variants.decision(shipped_profile("xpu"))
    assert xpu.chosen.release == "2.7.1"  # none is: the resolver says what is missing
    variants = project(tmp_path, "requirements: ['torch>=2.6']\n", without("pytorch-rocm7"))
    rocm = variants.decision(shipped_profile("rocm"))
    assert rocm.chosen.title == "2.9.1 (rocm6.4)"
    assert rocm.why == "no reachable index or public lock has a hash of 2.13.0 (rocm7.2)"


def lay_decision(tmp_path: Path, limits: tuple[str, ...], **fields: str) -> None:
    """Lay out a lock for CUDA that decided for PyTorch 2.7.0 and Python 3.10."""
    decided = profile_lock.Decided(release="2.7.0", python="3.10", limits=limits)
    lock = replace(shipped_lock("cuda"), decision=replace(decided, **fields))
    path = tmp_path / "envbuilder.lock/default.cuda.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(profile_lock.dump(lock))


BELOW = "requirements: ['torch>=2.4,<2.8']\n"


def test_what_was_decided_stays_while_what_decided_it_does(tmp_path: Path) -> None:
    lay_decision(tmp_path, ("torch>=2.4,<2.8",), why="a reason")
    # A profile without a lock joins those that have one.
    joined = project(tmp_path, BELOW)
    assert decided(joined, ["cuda", "mps"]) == {
        "cuda": "2.7.0 (cu126) 3.10",
        "mps": "2.7.0 (macos) 3.10",
    }
    assert joined.decision(shipped_profile("cuda")).why == "a reason"
    for keep in (ReleaseOptions(keep="none"), ReleaseOptions(upgraded=frozenset({"torch"}))):
        assert decided(project(tmp_path, BELOW, keep), ["cuda"]) == {"cuda": "2.7.1 (cu126) 3.11"}
    other = project(tmp_path, "requirements: ['torch>=2.4,<2.7']\n")
    assert decided(other, ["cuda"]) == {"cuda": "2.6.0 (cu124) 3.11"}
    for line in ("python: '3.11'", "as_of: 2025-09-01", "framework_version: '2.7'"):
        changed = project(tmp_path, f"{line}\n{BELOW}")
        assert decided(changed, ["cuda"]) == {"cuda": "2.7.1 (cu126) 3.11"}
    (tmp_path / "envbuilder.lock/default.cuda.json").write_text("{")
    assert decided(project(tmp_path, BELOW), ["cuda"]) == {"cuda": "2.7.1 (cu126) 3.11"}


def test_what_packages_needed_stays_while_these_do(tmp_path: Path) -> None:
    needing = project(tmp_path, "requirements: ['torch>=2.4,<2.8', rich]\n")
    lay_decision(tmp_path, ("torch>=2.4,<2.8",), packages=needing.limits.packages)
    assert decided(needing, ["cuda"]) == {"cuda": "2.7.0 (cu126) 3.10"}
    without = project(tmp_path, BELOW)
    assert decided(without, ["cuda"]) == {"cuda": "2.7.1 (cu126) 3.11"}


def test_what_was_tried_in_vain_is_tried_again_but_still_what_a_lock_is_for(tmp_path: Path) -> None:
    lay_decision(tmp_path, ("torch>=2.4,<2.8",))
    path = tmp_path / "envbuilder.lock/default.cuda.json"
    path.write_text(path.read_text().replace('"state": "locked"', '"state": "unlocked"'))
    assert decided(project(tmp_path, BELOW), ["cuda"]) == {"cuda": "2.7.0 (cu126) 3.10"}
    again = project(tmp_path, BELOW, ReleaseOptions(keep="usable"))
    assert decided(again, ["cuda"]) == {"cuda": "2.7.1 (cu126) 3.11"}


@pytest.mark.parametrize("listed", ["[rich]", "[rich, torch==2.4.0]"])
def test_what_replaces_the_framework_chooses_its_release_in_each_hardware_s_build(
    tmp_path: Path, listed: str
) -> None:
    text = f"requirements: {listed}\noverrides: {{Torch: 'torch>=2.5,<2.6', numpy: numpy<2}}\n"
    variants = project(tmp_path, text)
    assert decided(variants, ["cpu", "cuda"]) == {
        "cpu": "2.5.1 (cpu) 3.11",
        "cuda": "2.5.1 (cu124) 3.11",
    }
    assert of(variants, "cpu").resolution.overrides == (
        "numpy<2",
        "torch==2.5.1+cpu; platform_machine == 'x86_64'",
        "torch==2.5.1; platform_machine == 'aarch64'",
    )
    with pytest.raises(InvalidError, match=r"yaml:2: torch>=2.5,<2.6: profile 'zendnn' has torch"):
        of(variants, "zendnn")


@pytest.mark.parametrize("key", ["exclude: [rich, Torch]", "overrides: {torch: rich}"])
def test_the_framework_cannot_be_left_out(tmp_path: Path, key: str) -> None:
    with pytest.raises(InvalidError, match=r"envbuilder.yaml:2: torch cannot be excluded"):
        project(tmp_path, f"requirements: [torch]\n{key}\n").require_readable()


def test_what_the_wheels_need_without_stating_it_is_added(tmp_path: Path) -> None:
    newer = of(project(tmp_path, "requirements: [torch==2.2.2]\n"), "cuda")
    assert newer.requirements == ("torch==2.2.2",)
    assert "numpy<2" in newer.constraints
    older = of(project(tmp_path, "requirements: [torch==2.1.2, setuptools]\n"), "mps")
    assert older.requirements == ("torch==2.1.2", "setuptools<81", "setuptools")
    plain = of(project(tmp_path, "requirements: [torch==2.3.0]\n"), "cuda")
    assert (plain.requirements, plain.constraints) == (("torch==2.3.0",), ())


def test_profiles_that_would_be_the_same_are_one(tmp_path: Path) -> None:
    for release in ("2.4.1", "2.5.1"):  # of the latter cuda has one for ARM, too
        older = project(tmp_path, f"requirements: [torch=={release}]\n")
        assert "cuda" in older.names(FOLDERS)
        assert "cuda-legacy" not in older.names(FOLDERS)
    assert "cuda-legacy" in project(tmp_path, "requirements: [rich]\n").names(FOLDERS)
    listed = project(tmp_path, "profiles: [cuda-legacy]\nrequirements: [torch==2.4.1]\n")
    assert listed.names(FOLDERS) == ("cuda-legacy",)


_SECOND = "envbuilder.yaml:2:"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "xpu",
            "requirements: [torch==2.4.1]\n",
            "envbuilder.yaml:1: torch==2.4.1: profile 'xpu' has PyTorch 2.6.0 to 2.14.1",
        ),
        (
            "cuda",
            "requirements: [torch==2.4.1]\npython: '3.13'\n",
            (
                "envbuilder.yaml:2: Python ==3.13.*: profile 'cuda' has PyTorch 2.4.1 for Python"
                " 3.8, 3.9, 3.10, 3.11, 3.12"
            ),
        ),
        (
            "zendnn",
            "requirements: [torch==2.4.1]\n",
            "envbuilder.yaml:1: torch==2.4.1: profile 'zendnn' has torch 2.13.0+cpu",
        ),
        (
            "cpu",
            "requirements: [torch<1.12]\npython: '3.7'\n",
            f"{_SECOND} Python ==3.7.*: profile 'cpu' has PyTorch 1.11.0 for Python 3.8, 3.9, 3.10",
        ),
        (
            "zendnn",
            "requirements: [rich]\nexclude: [Zentorch]\n",
            (
                f"{_SECOND} zentorch cannot be excluded: it comes from profile 'zendnn', and all"
                " environments of this profile contain it"
            ),
        ),
        (
            "zendnn",
            "overrides:\n  zentorch: rich\n",
            (
                f"{_SECOND} zentorch cannot be excluded: it comes from profile 'zendnn', and all"
                " environments of this profile contain it"
            ),
        ),
    ],
)
def test_what_cannot_be_had_says_which_limit(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(InvalidError) as raised:
        of(project(tmp_path, text), name)
    assert raised.value.message == message
    assert "list them, for example profiles: [cpu, cuda]" in raised.value.hint


def test_a_profile_of_the_user_s_own_with_a_pin_keeps_it(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "mine.yaml").write_text(
        "extends: cuda\ndescription: mine\nrequirements: [torch==2.10.0]\n"
    )
    (folder / "more.yaml").write_text("extends: cuda\ndescription: m\nadd_requirements: [rich]\n")
    (folder / "index.yaml").write_text("extends: rocm\ndescription: m\nindexes: {torch: mine}\n")
    (folder / "any.yaml").write_text("extends: cuda\ndescription: m\nrequirements: [torch]\n")
    folders = [folder, *FOLDERS]
    mine = profiles.load("mine", folders)
    assert (mine.requirements, mine.expects.version, mine.builds) == (
        ("torch==2.10.0",),
        "2.10.0",
        (),
    )
    assert profiles.load("more", folders).requirements == ("torch==2.13.0", "rich")
    own = profiles.load("index", folders)
    assert (own.indexes["torch"], own.requirements) == ("mine", ("torch==2.14.0+rocm7.2",))
    assert profiles.load("any", folders).expects.version == ""
    variants = project(tmp_path, "requirements: [torch==2.4.1]\n")
    with pytest.raises(InvalidError, match=r"profile 'mine' has torch 2\.10\.0"):
        variants.of(mine)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "requirements: [torch==2.99.0]",
            {
                "cpu": "2.99.0 (cpu) 3.11 torch==2.99.0+cpu",
                "cuda": "2.99.0 (cuda) 3.11 torch==2.99.0",
                "cuda-legacy": "2.99.0 (cu126) 3.11 torch==2.99.0+cu126",
                "mps": "2.99.0 (macos) 3.11 torch==2.99.0",
                "rocm": "2.99.0 (rocm7.2) 3.11 torch==2.99.0+rocm7.2",
                "xpu": "2.99.0 (xpu) 3.11 torch==2.99.0+xpu",
            },
        ),
        (
            "requirements: [torch==2.99, torchvision==0.99.0]\npython: '3.12'",
            {"mps": "2.99.0 (macos) 3.12 torch==2.99.0"},
        ),
        (
            "requirements: [torch==2.0.0.post1]",
            {"cuda": "2.0.0.post1 (cuda) 3.10 torch==2.0.0.post1"},
        ),
        ('framework_version: "2.99.1"', {"mps": "2.99.1 (macos) 3.11 torch==2.99.1"}),
        (
            "requirements: [jax==0.99.0]",
            {"jax-cuda": "0.99.0 (cuda13) 3.12 jax[cuda13]==0.99.0"},
        ),
    ],
)
def test_a_pinned_release_that_no_table_has(
    tmp_path: Path, text: str, expected: dict[str, str]
) -> None:
    variants = project(tmp_path, f"{text}\n")
    locked = {name: of(variants, name).requirements for name in expected}
    assert {
        name: f"{line} {locked[name][0]}" for name, line in decided(variants, expected).items()
    } == expected
    for name in expected:
        profile = of(variants, name)
        assert profile.warnings == shipped_profile(name).warnings, "a finding says so, once"
        assert profile.expects.version.startswith(profile.release or "-")


def test_the_projects_own_file_decides_on_the_release_whatever_other_files_say(
    tmp_path: Path,
) -> None:
    listed = (
        "torch==1.6.0\ntorchvision[x]==0.7.0; python_version > '3.5'\nrich==13\ntriton==2.0.0\n"
    )
    (tmp_path / "requirements.txt").write_text(listed)
    text = 'framework_version: "2.4"\nrequirements_from: [requirements.txt]\n'
    variants = project(tmp_path, text)
    assert decided(variants, ("cuda",)) == {"cuda": "2.4.1 (cu121) 3.11"}
    adapted = of(variants, "cuda")
    assert "torchvision[x]; python_version > '3.5'" in [
        r.replace('"', "'") for r in adapted.requirements
    ]
    assert {"rich==13", "triton"} <= {*adapted.requirements}
    assert (
        "requirements.txt:1 asks for torch==1.6.0, but framework_version takes precedence"
        in adapted.warnings
    )


@pytest.mark.parametrize(
    ("day", "expected", "of"),
    [
        ("2024-03-01", "2.2.1 (cu121)", "2024-03-01"),
        ("2020-11-01", "1.13.1 (cu117)", "2022-12-15"),  # the oldest that is tested
    ],
)
def test_of_a_project_from_then_the_release_is_from_then_too(
    tmp_path: Path, day: str, expected: str, of: str
) -> None:
    variants = project(tmp_path, f"requirements: [rich]\nas_of: {day}\n")
    assert decided(variants, ("cuda",))["cuda"].startswith(expected)
    adapted = variants.of(shipped_profile("cuda"))
    assert adapted.resolution.as_of == of, "no package is older than what it has to run on"


def test_a_release_after_the_day_is_refused(tmp_path: Path) -> None:
    variants = project(tmp_path, "requirements: ['torch==2.6.0']\nas_of: 2024-03-01\n")
    with pytest.raises(InvalidError, match=r"envbuilder\.yaml:2: torch<=2\.2\.1"):
        of(variants, "cuda")


def test_of_a_locks_several_releases_the_one_for_the_most_pythons_is_preferred() -> None:
    texts = 'torch==2.5.1; python_version < "3.9"', 'torch==2.7.1; python_version >= "3.9"'
    every = [*(Line(text, "uv.lock", locked=True) for text in texts), Line("torch==2.6", "a.txt")]
    assert chosen_release.of_lock(every, {"torch"}) == "2.7.1"
    assert chosen_release.of_lock(every[2:], {"torch"}) == ""


def test_a_release_that_no_table_has_never_fits(tmp_path: Path) -> None:
    unknown = of(project(tmp_path, "requirements: [torch==2.99.0]\n"), "cuda")
    host = host_trees.recorded("gb10-dgx-spark")
    assert fit.judge(shipped_profile("cuda"), host, lock=shipped_lock("cuda")).verdict == "fits"
    assert fit.judge(unknown, host, lock=shipped_lock("cuda")).verdict != "fits"


@pytest.mark.parametrize("release", ["1.0.0", "9.9.9"])
def test_a_release_that_no_table_has_is_no_default(tmp_path: Path, release: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"extends: cuda\ndescription: d\nrelease: {release}\n")
    with pytest.raises(
        InvalidError, match=rf"release: unknown release {release} of PyTorch for the build cu132"
    ):
        profiles.load("mine", [tmp_path, *FOLDERS])


def test_with_a_wish_the_newest_that_most_have(tmp_path: Path) -> None:
    def offered(build: Build) -> Collection[str]:
        newest = build.release == "2.7.1" and build.build != "macos"
        return () if newest else build.pythons

    text = "requirements: ['torch>=2.5,<2.8']\nprofiles: [cpu, mps, xpu]\n"
    some = project(tmp_path, text, ReleaseOptions(offered))
    assert {line[:5] for line in decided(some, ["cpu", "mps", "xpu"]).values()} == {"2.7.0"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torchaudio==2.11.0", "2.13.0 (cpu) 3.11"),  # made for no release in particular
        ("torchaudio==2.11.*", "2.13.0 (cpu) 3.11"),
        ("torchaudio>=2.8", "2.13.0 (cpu) 3.11"),
        ("torchaudio<2.10", "2.9.1 (cpu) 3.11"),
        ("torchaudio==2.6.0", "2.6.0 (cpu) 3.11"),
        ("torchcodec==0.7.0", "2.8.0 (cpu) 3.11"),
        ("torchcodec==0.5", "2.7.1 (cpu) 3.11"),
        ("torchcodec==0.17.0", "2.13.0 (cpu) 3.11"),
        ("torchcodec", "2.13.0 (cpu) 3.11"),
        ("torchtext", "2.3.1 (cpu) 3.11"),  # the last one, which states no upper bound
        ("torchtext==0.6.0", "2.13.0 (cpu) 3.11"),  # Python alone
        ("torchtext', 'torch==2.1.0", "2.1.0 (cpu) 3.11"),
        ("intel-extension-for-pytorch", "2.8.0 (cpu) 3.11"),
    ],
)
def test_a_companion_goes_with_the_release_that_it_was_made_for(
    tmp_path: Path, line: str, expected: str
) -> None:
    variants = project(tmp_path, f"requirements: ['{line}']\n")
    assert decided(variants, ["cpu"]) == {"cpu": expected}


def test_a_companion_that_does_not_state_its_framework_is_limited(tmp_path: Path) -> None:
    older = of(project(tmp_path, "requirements: [torch==2.10.0, torchcodec]\n"), "cpu")
    assert "torchcodec>=0.10,<0.11" in older.constraints
