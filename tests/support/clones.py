"""Small repositories in the forms that research code has, each with a training of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from msgspec import Struct

from tests.support import repositories

NET = """\
from einops.layers.torch import Rearrange
from torch import nn


def net(width):
    return nn.Sequential(
        Rearrange("n (h w) -> n 1 h w", h=8),
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(width * 16, 4),
    )
"""
TRAIN = """\
import argparse
import os

import numpy as np
import torch
import yaml
from torch.nn import functional as F
from tqdm import tqdm

from {module} import net


def batch(generator, size):
    labels = generator.integers(0, 4, size)
    images = generator.normal(0, 0.5, (size, 8, 8)).astype(np.float32)
    for image, label in zip(images, labels):
        image[4 * (label // 2):4 * (label // 2) + 4, 4 * (label % 2):4 * (label % 2) + 4] += 1
    return torch.from_numpy(images.reshape(size, 64)), torch.from_numpy(labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(os.path.dirname(__file__), "config.yaml"))
    with open(parser.parse_args().config) as file:
        config = yaml.safe_load(file)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    model = net(config["width"]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    print(f"device {{device}}, torch {{torch.__version__}}")
    for epoch in range(config["epochs"]):
        losses = []
        for _ in tqdm(range(config["steps"]), disable=None):
            images, labels = (each.to(device) for each in batch(generator, 64))
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {{epoch}} loss {{np.mean(losses):.4f}}")


if __name__ == "__main__":
    main()
"""
CONFIG = "width: 8\nlr: 3.0e-3\nepochs: 3\nsteps: 40\n"
PINNED = """\
einops==0.8.1
numpy==2.2.6
PyYAML==6.0.2
tqdm==4.67.1
"""


class Clone(Struct, frozen=True):
    """A repository's files, and the program that its README starts."""

    files: dict[str, str]
    program: str = "python train.py"


def readme(*commands: str) -> str:
    """Return a README that shows commands."""
    return "\n".join(("# Corners\n\n```sh", *commands, "```\n"))


def script(files: dict[str, str]) -> Clone:
    """Return a repository of scripts at the top."""
    code = {
        "train.py": TRAIN.format(module="models.net"),
        "models/net.py": NET,
        "config.yaml": CONFIG,
    }
    return Clone(code | files)


def package(folder: str, program: str, files: dict[str, str]) -> Clone:
    """Return a repository that is the package `corners` in a folder."""
    code = {
        f"{folder}/__init__.py": "",
        f"{folder}/net.py": NET,
        f"{folder}/train.py": TRAIN.format(module="corners.net"),
        f"{folder}/config.yaml": CONFIG,
        "scripts/train.py": "from corners.train import main\n\nmain()\n",
    }
    return Clone(code | files, program)


CLONES = {
    "requirements": script(
        {
            "requirements.txt": "--extra-index-url https://download.pytorch.org/whl/cu118\n"
            f"torch==2.13.0+cu118\n{PINNED}",
            "README.md": readme("pip install -r requirements.txt", "python train.py"),
        }
    ),
    "poetry": script(
        {
            "pyproject.toml": """\
[tool.poetry]
name = "corners"
version = "0.1.0"
description = "Corners of images"
authors = ["Somebody <somebody@lab.example>"]
package-mode = false

[tool.poetry.dependencies]
python = ">=3.10,<3.13"
torch = { version = "^2.13.0", source = "pytorch-cu118" }
einops = "^0.8"
numpy = "~2.2.6"
pyyaml = "*"
tqdm = { version = "^4.60" }

[tool.poetry.group.dev.dependencies]
black = "^24.0"

[[tool.poetry.source]]
name = "pytorch-cu118"
url = "https://download.pytorch.org/whl/cu118"
priority = "explicit"

[build-system]
requires = ["poetry-core"]
build-backend = "poetry.core.masonry.api"
""",
            "README.md": readme("poetry install", "poetry run python train.py"),
        }
    ),
    "pep621": package(
        "src/corners",
        "corners-train",
        {
            "pyproject.toml": """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "corners"
dynamic = ["version"]
requires-python = ">=3.9"
dependencies = ["torch>=2.0", "einops==0.8.1", "numpy==2.2.6", "PyYAML==6.0.2", "tqdm==4.67.1"]

[project.optional-dependencies]
dev = ["pytest", "ruff"]

[project.scripts]
corners-train = "corners.train:main"

[tool.hatch.version]
path = "src/corners/__init__.py"
""",
            "README.md": readme("pip install -e '.[dev]'", "corners-train"),
        },
    ),
    "setup.py": package(
        "corners",
        "python scripts/train.py",
        {
            "setup.py": """\
from pathlib import Path
from setuptools import setup, find_packages

exec(open("corners/version.py").read())

setup(
    name="corners",
    version=__version__,
    long_description=Path("README.md").read_text(),
    packages=find_packages(exclude=["scripts"]),
    install_requires=["torch>=1.10", "einops", "numpy>=1.20", "pyyaml", "tqdm"],
    extras_require={"dev": ["pytest"]},
)
""",
            "README.md": readme("python setup.py develop", "python scripts/train.py"),
        },
    ),
    "setup.cfg": package(
        "src/corners",
        "corners-train",
        {
            "setup.py": "from setuptools import setup\n\nsetup()\n",
            "setup.cfg": """\
[metadata]
name = corners
version = attr: corners.__version__

[options]
packages = find:
package_dir =
    = src
python_requires = >=3.8
install_requires =
    torch >= 1.9
    einops
    numpy
    pyyaml
    tqdm
    dataclasses; python_version < "3.7"

[options.packages.find]
where = src

[options.entry_points]
console_scripts =
    corners-train = corners.train:main

[flake8]
max-line-length = 120
""",
            "README.rst": "Corners\n=======\n\n::\n\n    pip install -e .\n    corners-train\n",
        },
    ),
    "conda": script(
        {
            "environment.yml": """\
name: corners
channels:
  - pytorch
  - nvidia
  - https://conda.channel.example/pkgs/main
  - defaults
dependencies:
  - _libgcc_mutex=0.1=main
  - blas=1.0=mkl
  - ca-certificates=2023.05.30=h06a4308_0
  - cudatoolkit=11.8.0=h6a678d5_0
  - ld_impl_linux-64=2.38=h1181459_1
  - libffi=3.4.4=h6a678d5_0
  - mkl=2023.1.0=h213fc3f_46343
  - ncurses=6.4=h6a678d5_0
  - numpy=2.2.6=py311h5f9d8c6_0
  - openssl=3.0.10=h7f8727e_2
  - pip=23.2.1=py311h06a4308_0
  - python=3.11.4=h955ad1f_0
  - pytorch=2.13.0=py3.11_cuda11.8_cudnn8.7.0_0
  - pytorch-cuda=11.8=h7e8668a_5
  - pytorch-mutex=1.0=cuda
  - pyyaml=6.0.2=py311h5eee18b_0
  - setuptools=68.0.0=py311h06a4308_0
  - sqlite=3.41.2=h5eee18b_0
  - tk=8.6.12=h1ccaba5_0
  - wheel=0.38.4=py311h06a4308_0
  - xz=5.4.2=h5eee18b_0
  - zlib=1.2.13=h5eee18b_0
  - pip:
      - einops==0.8.1
      - tqdm==4.67.1
prefix: /home/somebody/miniconda3/envs/corners
""",
            "README.md": readme("conda env create -f environment.yml", "conda activate corners"),
        }
    ),
    "pixi": script(
        {
            "pixi.toml": """\
[project]
name = "corners"
version = "0.1.0"
channels = ["conda-forge"]
platforms = ["linux-64", "osx-arm64", "win-64"]

[tasks]
train = "python train.py"

[dependencies]
python = ">=3.10,<3.13"
pytorch = ">=2.5"
numpy = "*"
pyyaml = ">=6.0,<7"
ffmpeg = "*"

[pypi-dependencies]
einops = ">=0.8"
tqdm = "*"

[feature.test.dependencies]
pytest = "*"

[environments]
test = ["test"]
""",
            "README.md": readme("pixi run train"),
        }
    ),
    "pipfile": script(
        {
            "Pipfile": """\
[[source]]
url = "https://download.pytorch.org/whl/cpu"
verify_ssl = true
name = "pytorch"

[packages]
torch = {version = "*", index = "pytorch"}
einops = "*"
numpy = ">=1.20"
pyyaml = "*"
tqdm = "~=4.60"

[dev-packages]
pytest = "*"

[requires]
python_version = "3.11"
""",
            "README.md": readme("pipenv install", "pipenv run python train.py"),
        }
    ),
    "cog": script(
        {
            "cog.yaml": """\
# Configuration for Cog
build:
  gpu: true
  cuda: "11.8"
  python_version: "3.11"
  system_packages:
    - "libgl1-mesa-glx"
    - "libglib2.0-0"
  python_packages:
    - "torch==2.13.0"
    - "einops==0.8.1"
    - "numpy==2.2.6"
    - "PyYAML==6.0.2"
    - "tqdm==4.67.1"
  run:
    - echo done

predict: "predict.py:Predictor"
""",
            "predict.py": "import cog\n\n\nclass Predictor(cog.BasePredictor):\n    pass\n",
        }
    ),
    "imports": script(
        {
            "README.md": "Tested with Python 3.8, PyTorch 1.12.\n" + readme("python train.py"),
        }
    ),
    "subfolder": script(
        {
            "env/requirements_gpu.txt": f"# CUDA 11.8\ntorch>=2.0.1\n{PINNED}",
            "docs/requirements.txt": "sphinx\n",
            "README.md": readme("pip install -r env/requirements_gpu.txt", "python train.py"),
        }
    ),
}
"""Each form, by name."""


def commit(clone: Clone, folder: Path) -> str:
    """Make a repository in a folder, and return the URL to clone it from."""
    repositories.lay(folder, clone.files)
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@y.example")
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "x")):
        subprocess.run((*git, *arguments), cwd=folder, env=environment, check=True)
    return folder.as_uri()
