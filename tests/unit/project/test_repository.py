"""What a repository has and what its texts show, however odd or large it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuilder.project import code, repository
from tests.support.repositories import lay


def test_files_from_the_top_downwards_without_what_is_hidden_installed_or_elsewhere(
    tmp_path: Path,
) -> None:
    project = tmp_path / "project"
    kept = ["Dockerfile", "README", "requirements.txt", "env/gpu.yml", "a/b/c.py"]
    others = [".git/config.toml", "venv/pyvenv.cfg", "venv/x.py", "node_modules/x.py", "data.bin"]
    deep = "/".join("abcdefgh") + "/x.py"
    lay(project, dict.fromkeys([*kept, *others, deep, "a\nb.py", "x\x1b[2J.txt", "$(id).sh"], ""))
    lay(tmp_path, {"outside/x.py": ""})
    (project / "link").symlink_to(tmp_path / "outside")
    (project / "circle").symlink_to(project)
    (project / "dangling.txt").symlink_to("nothing")
    (project / "device.txt").symlink_to("/dev/zero")
    os.mkfifo(project / "pipe.txt")
    assert [*repository.files(project)] == kept


def test_a_large_folder_is_looked_through_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "_MOST_ENTRIES", 300)
    for number in range(500):
        (tmp_path / f"{number}.py").touch()
    assert len([*repository.files(tmp_path)]) < 300


README = """\
# Thing
Install with `pip install thing-runtime`:

```bash
$ conda env create -f env/gpu.yml
conda install -c pytorch "pytorch=1.6.0" opencv graphviz gromacs
sudo apt-get install -y libgl1 ffmpeg
cd sub && python3 -m pip install -U \\
    einops 'rich[jupyter]>=13' --extra-index-url https://host.example/simple
uv pip install -r requirements/base.txt; pip install -e ".[dev]"
python -m thing.train --lr 0.1
CUDA_VISIBLE_DEVICES=0 python train.py
```
Then pip install whatever you like. You may pip install it twice.
    pip install -rmore.txt git+https://host.example/x.git  # from source
    pip install path/to/wheel_file.whl ./path/to/this/
"""


def test_commands_of_a_readme(tmp_path: Path) -> None:
    lay(tmp_path, {"README.md": README, "Dockerfile": "RUN apt-get update && pip install nltk\n"})
    shown = repository.install_hints(tmp_path, [*repository.files(tmp_path)])
    assert shown.itself == "README.md:10"
    assert [*shown.files] == ["env/gpu.yml", "requirements/base.txt", "more.txt"]
    assert shown.requirements == {
        "thing-runtime": "README.md:2",
        **dict.fromkeys(["torch==1.6.0", "opencv-python"], "README.md:6"),
        **dict.fromkeys(["einops", "rich[jupyter]>=13"], "README.md:8"),
        "git+https://host.example/x.git": "README.md:15",
        "nltk": "Dockerfile:1",
    }
    assert {*shown.recipe} == {
        "thing-runtime",
        "einops",
        "rich[jupyter]>=13",
        "git+https://host.example/x.git",
        *(f"-r {file}" for file in shown.files),
        *(f"conda::{spec}" for spec in ("pytorch=1.6.0", "opencv", "graphviz", "gromacs")),
    }
    assert shown.chosen == {"dev": "README.md:10"}
    assert [*shown.system] == ["libgl1", "ffmpeg"]
    assert shown.programs == [("-m", "thing.train"), ("train.py",)]


@pytest.mark.parametrize(
    "option",
    [
        "--index-strategy unsafe-best-match",
        "--upgrade-strategy=eager",
        "--no-binary tiny",
        "--python-version 3.11",
        "--exclude-newer 2024-01-01",
        "--no-build-isolation --no-cache-dir -U --prefer-binary",
        "--default-index https://index.example/simple",
        "-P tiny",
    ],
)
def test_a_value_of_an_option_is_no_package(tmp_path: Path, option: str) -> None:
    text = f"uv pip install {option} einops\n"
    lay(tmp_path, {"README.md": text})
    assert [*repository.install_hints(tmp_path, ["README.md"]).requirements] == ["einops"]


def test_what_makes_a_folder_a_package_is_no_program(tmp_path: Path) -> None:
    lay(tmp_path, {"__init__.py": "", "README.md": "python __init__.py\n"})
    assert code.program_arguments(tmp_path, ["__init__.py"], [("__init__.py",)]) == ()
    files = ["__init__.py", "play.py"]
    assert code.program_arguments(tmp_path, files, ()) == ("play.py",)


SPLATTING = """\
# Test-time Splats on Windows
## Installation
```
git clone https://host.example/me/renamed && cd renamed
conda create -n splat python=3.10
pip install torch==2.4.1 torchvision==0.19.1 --index-url https://host.example/cu121
pip install -r requirements.txt
pip install submodules/knn --no-build-isolation
cd submodules/raster; pip install .[all]; cd ../..
git clone -b v2 https://host.example/other/ssim.git
cd ssim; python setup.py install; cd ..
pip install ./ssim/sub
```
(Optional) A faster viewer:
```
pip install viser
```
If you log, `pip install wandb`
    # pip install required packages
### Shards (experimental)
    pip install deepspeed
### In Docker
    pip install nltk
## Evaluation
    pip install lpips
"""


def test_the_part_of_a_readme_that_installs_is_one_recipe_in_order(tmp_path: Path) -> None:
    lay(tmp_path, dict.fromkeys(["submodules/knn/setup.py", "submodules/raster/setup.py"], ""))
    lay(tmp_path, {"README.md": SPLATTING, "sub/README.md": "pip install -r more.txt einops"})
    shown = repository.install_hints(tmp_path, [*repository.files(tmp_path)])
    assert shown.recipe == {
        "conda::python=3.10": "README.md:5",
        "torch==2.4.1": "README.md:6",
        "torchvision==0.19.1": "README.md:6",
        "-r requirements.txt": "README.md:7",
        "./submodules/knn": "README.md:8",
        "./submodules/raster[all]": "README.md:9",
        "git+https://host.example/other/ssim.git@v2": "README.md:11",
        "git+https://host.example/other/ssim.git@v2#subdirectory=sub": "README.md:12",
    }
    assert not shown.itself
    assert shown.requirements.keys().isdisjoint(["required", "packages"])
    assert {"viser", "wandb", "deepspeed", "nltk", "lpips", "einops"} <= shown.requirements.keys()


@pytest.mark.parametrize(
    ("command", "chosen"),
    [
        ("pip install -e '.[all,dev]'", ["all", "dev"]),
        ("uv sync --extra x --group y --frozen --python 3.11", ["x", "y"]),
        ("uv sync --all-extras --no-dev", ["--all-extras"]),
        ('poetry install --with a,b -E "c d" --without e', ["a", "b", "c", "d"]),
        ("python setup.py develop", []),
        ("pip install -U thing[cuda]>=2; pip install thing[all]", ["cuda"]),
        ("uv sync --extra optional", ["optional"]),
        ("git clone https://host.example/x/thing; cd thing; pip3 install .", []),
    ],
)
def test_extras_and_groups_of_the_repository_itself(
    tmp_path: Path, command: str, chosen: list[str]
) -> None:
    others = "## Tests\n    pip install .[test]\n"
    lay(tmp_path, {"README.md": f"# Thing\n## Setup\n\n    {command}\n{others}"})
    lay(tmp_path, {"setup.cfg": "[metadata]\nname = Thing\n", "thing/__init__.py": ""})
    shown = repository.install_hints(tmp_path, ["README.md"])
    assert shown.itself == "README.md:4"
    assert [*shown.chosen] == chosen


def test_the_first_command_that_installs_the_repository_chooses_its_extras(tmp_path: Path) -> None:
    lines = "pip install ./sub .\npip install .[dev]  # for developers too\nuv sync --extra doc\n"
    lay(tmp_path, {"README.md": f"# Thing\n## Setup\n```\n{lines}```\n"})
    shown = repository.install_hints(tmp_path, ["README.md"])
    assert shown.itself == "README.md:4"
    assert not shown.chosen


def test_what_a_quick_start_installs_under_headings_of_its_own_is_not_for_everybody(
    tmp_path: Path,
) -> None:
    text = (
        "# Thing\n## Quickstart\n`pip install einops`\n### Requirements\n`pip install rich`\n"
        "### Download\n`pip install modelscope`\n"
    )
    lay(tmp_path, {"README.md": text})
    shown = repository.install_hints(tmp_path, ["README.md"])
    assert [*shown.recipe] == ["einops", "rich"]
    assert [*shown.requirements] == ["einops", "rich", "modelscope"]


@pytest.mark.parametrize(
    "text",
    [
        "`" * 200_000,
        "pip install " * 50_000,
        "$ " * 100_000 + "pip install x",
        "- " * 3000 + "\n" * 100_000,
        "pip install 'x\x00\x1b[2J\n" * 1000,
        "pip install -r " + "../" * 5000 + "etc/passwd",
    ],
)
def test_hostile_texts_are_read_in_no_time(tmp_path: Path, text: str) -> None:
    lay(tmp_path, {"README.md": text})
    assert len(repository.install_hints(tmp_path, ["README.md"]).requirements) < 3


def test_a_text_that_is_too_large_or_no_text_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(b"pip install x\n" + b"\0" * (2 << 20))
    (tmp_path / "Dockerfile").write_bytes(b"RUN pip install y\xff\n")
    shown = repository.install_hints(tmp_path, ["README.md", "Dockerfile"])
    assert not (shown.requirements)
    assert not (shown.recipe)


def test_a_script_that_the_recipe_runs_is_part_of_it(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "README.md": "# Thing\n## Install\n```\ngit clone https://host.example/a/thing\n"
            "cd parts\nbash setup_env.sh\n# bash setup_other.sh\n```\n## Use\nsh train.sh\n",
            "setup_env.sh": "# pip install nltk\npip install torch==2.2.0\nbash setup_other.sh\n"
            "git clone https://host.example/b/knn && pip install ./knn/cuda\n"
            "cd cpu && pip install -r requirements.txt && cd ..\npip install ./gone\n",
            "setup_other.sh": "pip install einops\n",
            "train.sh": "pip install rich\n",
            "parts/cpu/requirements.txt": "",
        },
    )
    hints = repository.install_hints(tmp_path, [*repository.files(tmp_path)])
    assert hints.recipe == {
        "torch==2.2.0": "setup_env.sh:2",
        "git+https://host.example/b/knn#subdirectory=cuda": "setup_env.sh:4",
        "-r parts/cpu/requirements.txt": "setup_env.sh:5",
        "./gone": "setup_env.sh:6",
    }
    assert "rich" not in hints.requirements


def test_of_several_environments_the_first_is_the_recipe(tmp_path: Path) -> None:
    create = "conda create -y {} python=3.10\npip install -r requirements.txt {}\n"
    text = create.format("-n a", "rich") + create.format("--name b", "skrl")
    lay(tmp_path, {"README.md": f"# Thing\n## Install\n{text}"})
    hints = repository.install_hints(tmp_path, ["README.md"])
    assert [*hints.recipe] == ["conda::python=3.10", "-r requirements.txt", "rich"]
    assert "skrl" in hints.requirements


def test_programs_are_named_from_the_top_whatever_starts_them(tmp_path: Path) -> None:
    text = (
        "```\ncd seg\npython train.py\ntorchrun --nproc-per-node 4 \\\n pre.py --x a.py\n"
        "accelerate launch -m lib.go\nuv run --no-sync pre.py\n```\n"
    )
    lay(tmp_path, {"README.md": text, "seg/train.py": "", "pre.py": ""})
    hints = repository.install_hints(tmp_path, ["README.md"])
    assert hints.programs == [
        ("seg/train.py",),
        ("pre.py",),
        ("-m", "lib.go"),
        ("pre.py",),
    ]


def test_texts_of_other_projects_below_say_nothing_of_this_one(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "requirements.txt": "torch\n",
            "own/README.md": "pip install rich\n",
            "other/README.md": "pip install einops\n",
            "other/pyproject.toml": "",
            "x.egg-info/requires.txt": "torch\n",
        },
    )
    files = [*repository.files(tmp_path)]
    assert [*repository.install_hints(tmp_path, files).requirements] == ["rich"]
    assert "x.egg-info/requires.txt" not in files
