"""environment.yml: conda's packages, pip's, and those that are the profile's to choose."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from envbuilder.core.errors import InvalidError
from envbuilder.project import conda, lines
from envbuilder.project.forms import read
from envbuilder.project.lines import Line
from tests.support.repositories import lay
from tests.support.requirement_projects import places, refusal, texts

# As PyTorch's site had it for years, with what projects add.
PYTORCH = """\
name: sam
channels:
  - pytorch
  - nvidia
  - conda-forge
  - nodefaults
dependencies:
  - python=3.11
  - pip
  - pytorch::pytorch=2.1
  - torchvision==0.16.0
  - torchaudio
  - pytorch-cuda=12.1
  - pytorch-mutex=1.0=cuda
  - cudnn >=8
  - conda-forge::numpy=1.26
  - scipy >=1.10, <2
  - Pillow
  - pip:
      - opencv-python>=4.8  # headless has no windows
      - -r requirements.txt
prefix: /home/me/miniconda3/envs/sam
"""
# As `conda env export` writes it.
EXPORTED = """\
name: base
channels:
  - https://repo.anaconda.com/pkgs/main
  - https://conda.anaconda.org/bioconda/
  - https://example.org/own
  - conda-forge/label/dev
dependencies:
  - _libgcc_mutex=0.1=conda_forge
  - ca-certificates=2026.1.4=hbd8a1cb_0
  - jpeg=9e=h166bdaf_1
  - libgomp=13.2.0=h807b86a_2
  - setuptools=68.0.0=py311h06a4308_0
  - python=3.11.9=hb806964_0_cpython
  - pytorch=2.1.0=py3.11_cuda12.1_cudnn8.9.2_0
  - cudatoolkit=11.3.1=h2bc3f7f_2
  - opencv=4.5.1=py311_0
  - librosa=0.10.1=pyhd8ed1ab_0
  - tqdm=1.0_3=0
  - mamba-forge::hmmer==3.3.2=h1b792b2_1
  - ffmpeg=4.3=hf484d3e_0
  - r-ggplot2=3.4
  - pip:
      - torch-scatter==2.1.2+pt21cu121
variables:
  CUDA_HOME: /usr/local/cuda
channel_priority: flexible
prefix: /home/me/miniconda3
"""


def test_a_typical_pytorch_environment(tmp_path: Path) -> None:
    lay(tmp_path, {"environment.yml": PYTORCH, "requirements.txt": "rich>=13\n-c pins.txt\n"})
    lay(tmp_path, {"pins.txt": "urllib3<3\n"})
    listed = read(tmp_path, "environment.yml")
    assert list(zip(texts(listed.requirements), places(listed.requirements), strict=True)) == [
        ("torch==2.1.*", "environment.yml:10"),
        ("torchvision==0.16.0", "environment.yml:11"),
        ("torchaudio", "environment.yml:12"),
        ("numpy==1.26.*", "environment.yml:16"),
        ("scipy<2,>=1.10", "environment.yml:17"),
        ("pillow", "environment.yml:18"),
        ("opencv-python>=4.8", "environment.yml:20"),
        ("rich>=13", "requirements.txt:1"),
    ]
    assert texts(listed.constraints) == ["urllib3<3"]
    assert texts(listed.conda) == ["numpy 1.26.*", "scipy >=1.10,<2", "pillow"]
    assert places(listed.conda)[0] == "environment.yml:16"
    assert listed.channels == ("conda-forge",)
    assert listed.pythons == (Line("==3.11.*", "environment.yml:8"),)
    renamed, cuda, channels = listed.notes
    assert "pytorch, torchvision, torchaudio: taken as requirements from PyPI" in renamed
    assert cuda.endswith("the profile decides on CUDA: pytorch-cuda, pytorch-mutex, cudnn.")
    assert channels.endswith("the channels pytorch, nvidia.")


def test_anacondas_own_channels_are_left_out(tmp_path: Path) -> None:
    text = "channels: [{}defaults]\ndependencies: [numpy, libcublas=12.4, cuda=12]\n"
    for first, instead in (("", "conda-forge"), ("bioconda, ", "bioconda")):
        lay(tmp_path, {"environment.yml": text.format(first)})
        listed = read(tmp_path, "environment.yml")
        assert "defaults" not in listed.channels
        assert texts(listed.conda) == ["numpy"]
        assert listed.notes[-1] == (
            "environment.yml: left out: the channel defaults, which requires a licence from"
            f" Anaconda. With the conda backend, its packages come from {instead}."
        )
    lay(tmp_path, {"environment.yml": "channels: [defaults]\ndependencies: [python=3.12]\n"})
    assert len(read(tmp_path, "environment.yml").notes) == 1


def test_an_exported_environment(tmp_path: Path) -> None:
    lay(tmp_path, {"env.yaml": EXPORTED})
    listed = read(tmp_path, "env.yaml")
    assert texts(listed.requirements) == [
        "torch==2.1.0",
        "opencv-python==4.5.1.*",
        "librosa==0.10.1",
        "tqdm",
        "torch-scatter==2.1.2",
    ]
    assert texts(listed.conda) == [
        "opencv ==4.5.1",
        "librosa ==0.10.1",
        "tqdm",
        "hmmer ==3.3.2",
        "ffmpeg ==4.3",
        "r-ggplot2 3.4.*",
    ]
    assert listed.channels == ("bioconda", "mamba-forge")
    assert listed.system == ("hmmer", "ffmpeg")
    assert texts(listed.pythons) == ["==3.11.9"]
    notes = "\n".join(listed.notes)
    for words in (
        "env.yaml:5: 'https://example.org/own': left out, since channels are listed by name",
        "env.yaml:6: 'conda-forge/label/dev': left out",
        "variables are not read: CUDA_HOME. Write the ones",
        "channel_priority: left out",
        "names on the package index: opencv as opencv-python",
        "in any version, since the index cannot have these versions: tqdm=1.0_3=0",
        "not Python packages: hmmer, ffmpeg. Use system_packages: [hmmer, ffmpeg], or --backend",
        "no Python package of this name: r-ggplot2. Use --backend conda",
        "such libraries: _libgcc_mutex, ca-certificates, jpeg, libgomp, setuptools.",
        "decides on CUDA: cudatoolkit",
        "since each is for one platform, and versions are kept: opencv, librosa",
    ):
        assert words in notes, words


def test_a_name_of_condas_is_a_package_of_the_index_only_if_a_table_says_so(tmp_path: Path) -> None:
    programs = "mpi=1.0=openmpi, gromacs=2025.4, plink, star, salmon, redis"
    python = "redis-py, typing-extensions, mkl_fft, libpysal, unrar, python-avro"
    lay(tmp_path, {"env.yml": f"dependencies: [{programs}, {python}, {{pip: [redis, mine]}}]\n"})
    listed = read(tmp_path, "env.yml")
    assert texts(listed.requirements) == ["redis", "typing-extensions", "libpysal", "redis", "mine"]
    needed = [str(note) for note in listed.notes if isinstance(note, lines.Needed)]
    (note,) = needed
    assert note == (
        "env.yml: no Python package of this name: mpi, gromacs, plink, star, salmon, redis and 1"
        " more. Use --backend conda or, if the package index has the same package, list it"
        " under requirements:."
    )
    lay(tmp_path, {"env.yml": "dependencies: [python-avro]\n"})
    (note,) = read(tmp_path, "env.yml").notes
    assert "of this name: python-avro (avro, avro-python3). Use" in note
    assert listed.system == ("unrar-free",)


def test_what_an_export_lists_twice_has_the_version_of_pip(tmp_path: Path) -> None:
    text = (
        "dependencies: [numpy=1.21.5=py38h7a, vc=14.2=h21, rich=13, {pip: [numpy==1.22.0, rich]}]"
    )
    lay(tmp_path, {"environment.yml": text})
    listed = read(tmp_path, "environment.yml")
    assert texts(listed.requirements) == ["rich==13.*", "numpy==1.22.0", "rich"]
    assert "the list for pip takes precedence, as it comes later: numpy." in "".join(listed.notes)


def test_a_list_that_conda_exported_as_text(tmp_path: Path) -> None:
    text = "# This file may be used to create an environment\n# platform: linux-64\n"
    text += "numpy=1.21.2=py38_0\nopenssl=1.1.1l=h7f\nrich=13.0.0=pypi_0\npython=3.8.12=h12_0\n"
    lay(tmp_path, {"requirements.txt": text})
    listed = read(tmp_path, "requirements.txt")
    assert texts(listed.requirements) == ["numpy==1.21.2", "rich==13.0.0"]
    assert places(listed.requirements) == ["requirements.txt:3", "requirements.txt:5"]
    assert texts(listed.pythons) == ["==3.8.12"]


@pytest.mark.parametrize(
    ("text", "place", "what", "hint"),
    [
        ("a: [\n", ":2", "not valid YAML", ""),
        ("- numpy\n", ":1", "expected a mapping", ""),
        ("dependencies: numpy\n", ":1", "dependencies: expected a list", ""),
        ("dependencies:\n- a\n- 3\n", ":3", "'3': expected a package", "numpy=1.26"),
        ("dependencies:\n- npm: [x]\n", ":2", "expected a package, or pip:", "numpy=1.26"),
        ("dependencies:\n- pip:\n  - 3\n", ":3", "'3': expected one package for pip", "- rich"),
        ("dependencies:\n- pip:\n  - a\n  - -x .\n", ":4", "-x is not supported", "Delete"),
        ("channels:\n- https://u:secret@example.org/x\n", ":2", "credentials", "each machine"),
        ("dependencies:\n- numpy=>x\n", ":2", "not a range of versions", "numpy=1.26"),
        ("dependencies:\n- 'numpy[version=1]'\n", ":2", "not a conda package", "numpy=1.26"),
        (f"dependencies:\n- numpy{' ' * 600}1\n", ":2", "not a conda package", "numpy=1.26"),
        ("dependencies:\n- numpy=a=b\n", ":2", "not a range of versions", "numpy=1.26"),
        ('dependencies:\n- "num\\e[2Jpy"\n', ":2", "num\\x1b[2Jpy is not a conda package", "numpy"),
    ],
)
def test_refusals(tmp_path: Path, text: str, place: str, what: str, hint: str) -> None:
    lay(tmp_path, {"environment.yml": text})
    message, next_step = refusal(tmp_path, "environment.yml")
    assert message.startswith(f"environment.yml{place}: ")
    assert what in message
    assert hint in next_step


PIXI = """\
[workspace]
channels = ["conda-forge", { channel = "pytorch", priority = 1 }, "https://example.org/c"]
[dependencies]
python = "3.11.*"
pytorch = ">=2.1,<3"
opencv = "4.8"
ffmpeg = { version = "6", channel = "own" }
libjpeg = "*"
[pypi-dependencies]
rich = ">=13"
own = { path = ".", editable = true, extras = ["dev"] }
tool = { git = "https://example.org/tool", rev = "abc" }
[target.linux-64.dependencies]
cuda-version = "12.*"
numba = "*"
[target.osx-arm64.pypi-dependencies]
mlx = "*"
[target.win-64.pypi-dependencies]
colorama = "*"
[feature.Test.dependencies]
pytest = ">=8"
"""


def test_pixi(tmp_path: Path) -> None:
    project = (
        '[project]\nname = "own"\ndependencies = ["tqdm"]\noptional-dependencies.dev = ["tox"]\n'
    )
    lay(tmp_path, {"pixi.toml": PIXI, "pyproject.toml": project})
    listed = read(tmp_path, "pixi.toml", (), ("test",))
    assert [(each.text, each.source) for each in listed.requirements] == [
        ("torch<3,>=2.1", ""),
        ("opencv-python==4.8.*", ""),
        ('numba; sys_platform == "linux"', ""),
        ("pytest>=8", ""),
        ("rich>=13", ""),
        ("tool", "git+https://example.org/tool@abc"),
        ('mlx; sys_platform == "darwin"', ""),
        ("tqdm", ""),
        ("tox", ""),
    ]
    assert places(listed.requirements)[:2] == ["pixi.toml:5", "pixi.toml:6"]
    assert texts(listed.pythons) == ["==3.11.*"]
    assert (listed.channels, listed.system) == (("conda-forge", "own"), ("ffmpeg",))
    assert "no feature" not in "".join(listed.notes)
    assert "no group gone" in refusal(tmp_path, "pixi.toml", (), ["gone"])[0]


@pytest.mark.parametrize(
    ("text", "spec", "specifier"),
    [
        ("numpy", "numpy", ""),
        ("numpy=1.26", "numpy 1.26.*", "==1.26.*"),
        ("numpy=1.26.*", "numpy 1.26.*", "==1.26.*"),
        ("numpy==1.26.4", "numpy ==1.26.4", "==1.26.4"),
        ("numpy==1.26.*", "numpy 1.26.*", "==1.26.*"),
        ("numpy 1.26.4", "numpy 1.26.4", "==1.26.4"),
        ("numpy >= 1.26 , <2", "numpy >=1.26,<2", ">=1.26,<2"),
        ("numpy!=1.26.*", "numpy !=1.26.*", "!=1.26.*"),
        ("numpy=*", "numpy", ""),
        ("numpy=1.26.4=py312_0", "numpy ==1.26.4", "==1.26.4"),
        ("numpy 1.26.4 py312_0", "numpy ==1.26.4", "==1.26.4"),
        ("numpy=1.26|1.27", "numpy =1.26|1.27", None),
        ("black=19.10b0", "black 19.10b0.*", "==19.10b0"),
        ("pytorch=*=*cuda*", "pytorch", ""),
    ],
)
def test_versions(text: str, spec: str, specifier: str | None) -> None:
    parsed = conda.parse(text, "x:1")
    assert parsed.text() == spec
    assert parsed.specifier() == specifier


@given(st.text(alphabet="ab1.*=<>!~,| :[]-_", max_size=20))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        spec = conda.parse(text, "x:1")
    except InvalidError as error:
        refused = error
    else:
        assert " " not in spec.versions
        return
    assert refused.message.startswith("x:1: ")
