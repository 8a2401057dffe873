"""requirements.txt in pip's form: what counts, what is dropped, what is refused and where."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from envbuilder.project.forms import read
from envbuilder.project.lines import Listed
from tests.support.edited_text import edited
from tests.support.repositories import lay
from tests.support.requirement_projects import DATA, outcome, places, refusal, texts

LEROBOT = """\
# Training
torch>=2.2.1,<2.8.0
torchvision>=0.21.0,<0.23.0
datasets>=2.19.0,<=3.6.0   # later ones need torchcodec
Diffusers >= 0.27.2
huggingface-hub[hf-transfer,cli]>=0.27.1 ; python_version < '4.0'

  av>=14.2.0
gym_aloha==0.1.*
jsonlines
"""
PYTORCH_INDEX = "https://download.pytorch.org/whl/cu121"


def test_a_projects_file(tmp_path: Path) -> None:
    lay(tmp_path, {"requirements.txt": LEROBOT})
    listed = read(tmp_path, "requirements.txt")
    assert texts(listed.requirements) == [
        "torch<2.8.0,>=2.2.1",
        "torchvision<0.23.0,>=0.21.0",
        "datasets<=3.6.0,>=2.19.0",
        "diffusers>=0.27.2",
        'huggingface-hub[cli,hf-transfer]>=0.27.1; python_version < "4.0"',
        "av>=14.2.0",
        "gym-aloha==0.1.*",
        "jsonlines",
    ]
    assert places(listed.requirements)[-3:] == [f"requirements.txt:{n}" for n in (8, 9, 10)]
    assert listed == Listed(requirements=listed.requirements, read_from=("requirements.txt",))


def test_lines_that_go_on(tmp_path: Path) -> None:
    text = "rich\\\n>=13 \\\n  # a comment ends the line\nnumpy \\\n\npandas\\"
    lay(tmp_path, {"requirements.txt": text})
    listed = read(tmp_path, "requirements.txt")
    assert list(zip(texts(listed.requirements), places(listed.requirements), strict=True)) == [
        ("rich>=13", "requirements.txt:1"),
        ("numpy", "requirements.txt:4"),
        ("pandas", "requirements.txt:6"),
    ]


def test_included_files_and_constraints(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "requirements/train.txt": "-r base.txt\n--requirement=../common.in\n-c pins.txt\n"
            "--require-hashes\nwandb\n",
            "requirements/base.txt": "rich\n-rmore.txt\n",
            "requirements/more.txt": "tqdm\n",
            "requirements/pins.txt": "urllib3<3\nRequests[socks]==2.32.3\n-r more.txt\n",
            "common.in": "numpy\n-r requirements/base.txt\n",
        },
    )
    listed = read(tmp_path, "requirements/train.txt")
    assert texts(listed.requirements) == ["rich", "tqdm", "numpy", "wandb"]
    assert places(listed.requirements)[:2] == ["requirements/base.txt:1", "requirements/more.txt:1"]
    assert texts(listed.constraints) == ["urllib3<3", "requests==2.32.3", "tqdm"]


def test_a_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    lay(tmp_path, {"requirements.txt": "\ufeffrich>=13\r\nnumpy\r\n"})
    assert texts(read(tmp_path, "requirements.txt").requirements) == ["rich>=13", "numpy"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (f"--extra-index-url {PYTORCH_INDEX}", "the profile decides where PyTorch comes from"),
        ("--extra-index-url https://pytorch.org.example.org/x", "settings of pip or uv"),
        ("-ihttps://example.org/simple", "pip config set"),
        ("--no-index", "settings of pip or uv"),
        ("--pre", "name>=2.0rc1"),
        ("--no-binary :all:", "build_from_source"),
        ("--only-binary=:all:", "from wheels anyway"),
        ("--trusted-host example.org", "which hosts it trusts"),
        ("--use-feature=fast-deps", "only concerns pip"),
    ],
)
def test_an_option_is_left_out_and_said(tmp_path: Path, line: str, why: str) -> None:
    lay(tmp_path, {"requirements.txt": f"numpy\n{line}\n"})
    listed = read(tmp_path, "requirements.txt")
    assert texts(listed.requirements) == ["numpy"]
    (note,) = listed.notes
    assert note.startswith(f"requirements.txt:2: {line}: left out")
    assert why in note


@pytest.mark.parametrize("option", ["-i", "--index-url=", "--extra-index-url"])
@pytest.mark.parametrize(("host", "end"), [("pypi", "simple"), ("pypi.python", "simple/")])
def test_the_public_index_is_the_one_that_pip_and_uv_are_set_up_with(
    tmp_path: Path, option: str, host: str, end: str
) -> None:
    url = f"https://{host}.org/{end}"
    lay(tmp_path, {"requirements.txt": f"{option} {url}\nnumpy\n"})
    assert read(tmp_path, "requirements.txt").notes == ()


@pytest.mark.parametrize(
    ("line", "text", "source", "note"),
    [
        ("torch==2.6.0+cu124", "torch==2.6.0", "", "the hardware determines the build cu124"),
        ("torch-scatter==2.1.2+pt24cu121", "torch-scatter==2.1.2", "", "pt24cu121"),
        ("own==1.0+acme", "own==1.0+acme", "", ""),
        ("rich --no-deps", "rich", "", "the option --no-deps is left out"),
        ("rich==1.0 --config-settings=x=y", "rich==1.0", "", "--config-settings is left out"),
        ("rich>=13;", "rich>=13", "", ""),
        ("rich==13.9 --hash=sha256:0 --hash sha256:1", "rich==13.9", "", ""),
        ("numpy=1.21", "numpy==1.21.*", "", "conda's spelling"),
        ("redis-py=4.5", "redis==4.5.*", "", "conda's spelling"),
        ("pywin32==304", 'pywin32==304; sys_platform == "win32"', "", "for Windows alone"),
        ("mkl_service==1", 'mkl-service==1; platform_machine == "x86_64"', "", "for x86-64 alone"),
        ("enum34", 'enum34; python_version < "3.8"', "", "left out, since Python has it itself"),
        ("numpy>=1.19.*,<2", "numpy<2,>=1.19", "", "only == and != allow a star"),
        ('"rich>=13",', "rich>=13", "", ""),
        ("sklearn==0.0", "scikit-learn", "", "taken as scikit-learn"),
        ("git+https://example.org/o/x#egg=yolo-v2-1.7.1dev", "yolo-v2",
         "git+https://example.org/o/x", ""),
        ("-e git+https://example.org/o/trl.git@v1#egg=trl", "trl",
         "git+https://example.org/o/trl.git@v1", ""),
        ("git+ssh://git@example.org/owner/Some_Name.git@v1", "some-name",
         "git+ssh://git@example.org/owner/Some_Name.git@v1", "taken as some-name, by its location"),
        ("git@example.org:o/name.git", "name", "git+ssh://git@example.org/o/name.git", "by"),
        ("x @ git+ssh://git@example.org:22/x", "x", "git+ssh://git@example.org:22/x", ""),
        ("x @ git+https://user:secret@example.org/x@v1", "x", "git+https://example.org/x@v1",
         "the login in its URL is left out"),
        ("git+https://secret@example.org/x", "x", "git+https://example.org/x", "the login"),
        ("git+git://example.org/o/n#subdirectory=bindings/torch", "n",
         "git+https://example.org/o/n#subdirectory=bindings/torch", "by its location"),
        ("trl[x]@git+https://example.org/trl@main ; python_version < '3.12'",
         'trl[x]; python_version < "3.12"', "git+https://example.org/trl@main", ""),
        ("https://example.org/x_y-1.0-py3-none-any.whl#sha256=0a&x=y", "x-y",
         "https://example.org/x_y-1.0-py3-none-any.whl#sha256=0a", ""),
        ("https://example.org/o/name/archive/main.zip", "name",
         "https://example.org/o/name/archive/main.zip", "by its location"),
        ("torch @ https://download.pytorch.org/whl/torch-2.1.0%2Bcu118-cp311-cp311-linux_x86_64.whl",
         "torch==2.1.0", "", "the profile decides"),
        ("https://download.pytorch.org/whl/xformers-0.0.20-cp311-cp311-linux_x86_64.whl",
         "xformers==0.0.20", "", "the profile decides"),
        ("x @ file:///opt/build/work", "x", "", "to another machine"),
        ("/opt/x-1.0-py3-none-any.whl", "x==1.0", "", "to another machine"),
        ("./wheels/x-1.0-py3-none-any.whl", "x", "./wheels/x-1.0-py3-none-any.whl", ""),
        ("--editable=./libs/common", "common", "./libs/common", ""),
        ("sub/stated[a]", "own-name[a]", "./sub/stated", ""),
        ("../other", 'other; python_version < "3"', "", "so other is left out"),
        ("-e sub/old", "older", "./sub/old", ""),
        ("-e sub/ini", "in-ini", "./sub/ini", ""),
        (f"-e sub/{'a' * 300}", "a" * 300, f"./sub/{'a' * 300}", "submodule update"),
    ],
)  # fmt: skip
def test_a_line_of_another_form(
    tmp_path: Path, line: str, text: str, source: str, note: str
) -> None:
    folders = {
        "sub/stated/pyproject.toml": '[[tool.x]]\nname = "y"\n[project]\nname = "Own_Name"\n',
        "libs/common/setup.py": "",
        "sub/old/setup.py": "setup(\n    name='older',\n)\n",
        "sub/ini/setup.cfg": "[metadata]\nname = in_ini\n",
    }
    lay(tmp_path, {"requirements.txt": f"{line}\n", **folders})
    listed = read(tmp_path, "requirements.txt")
    assert [(one.text, one.source) for one in listed.requirements] == [(text, source)]
    assert bool(note) == bool(listed.notes)
    assert note in "".join(listed.notes)


def test_a_line_for_python_limits_python(tmp_path: Path) -> None:
    lay(tmp_path, {"requirements.txt": "python>=3.8\nrich\n"})
    listed = read(tmp_path, "requirements.txt")
    assert texts(listed.requirements) == ["rich"]
    assert texts(listed.pythons) == [">=3.8"]


@pytest.mark.parametrize("line", ["-e .", ".[dev, test]", "-e file:.[dev]", "-e ./"])
def test_the_project_itself_brings_what_it_requires(tmp_path: Path, line: str) -> None:
    own = '[project]\nname = "p"\nrequires-python = ">=3.9"\ndependencies = ["rich"]\n'
    own += '[project.optional-dependencies]\ndev = ["pytest"]\ntest = ["tox"]\n'
    lay(tmp_path, {"requirements.txt": f"numpy\n{line}\n", "pyproject.toml": own})
    listed = read(tmp_path, "requirements.txt")
    more = [name for extra, name in (("dev", "pytest"), ("test", "tox")) if extra in line]
    assert texts(listed.requirements) == ["numpy", "rich", *more]
    assert texts(listed.pythons) == [">=3.9"]
    assert listed.read_from == ("pyproject.toml", "requirements.txt")
    assert "install_project: true" in listed.notes[0]
    (tmp_path / "pyproject.toml").unlink()
    assert texts(read(tmp_path, "requirements.txt").requirements) == ["numpy"]


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        ("-x", "-x is not supported", "Delete"),
        ("-", "is not supported", "Delete"),
        ("/opt/x", "does not name a package", "name @ URL"),
        ("https://example.org/", "does not name a package", "name @ URL"),
        ("https://[bad/x.whl", "does not name a package", "name @ URL"),
        ("hg+https://example.org/x#egg=x", "only git", "released"),
        ("x @ ftp://example.org/x.tar.gz", "not an https URL", "released"),
        ("x @ git+https://example.org/$HOME", "this location cannot be locked", "git+https"),
        (
            "rich>=${VERSION}",
            "variables are not expanded",
            "Write the value instead of the variable.",
        ),
        ("rich; os_name == '$HOME'", "character", "PEP 508"),
        ("rich; os_name == 'a\x1bb'", "\\x1b", "PEP 508"),
        (f"rich; {'(' * 1500}os_name == 'a'{')' * 1500}", "nested", "PEP 508"),
        (f"rich; os_name == '{'x' * 20_000}'", "longer than", "PEP 508"),
        ("r\u00edch", "not a requirement", "PEP 508"),
        ("-r", "expected the path of one file", "-r other.txt"),
        ("-r https://example.org/r.txt", "a URL", "Save the file"),
        ("-r /etc/hostname", "is outside the project", "Copy the file"),
        ("-r link.txt", "is outside the project", "Copy the file"),
        ("-c missing.txt", "no such file", "Write the path"),
    ],
)
def test_a_refused_line(tmp_path: Path, line: str, what: str, hint: str) -> None:
    project = tmp_path / "project"
    lay(tmp_path, {"outside.txt": "rich\n"})
    lay(project, {"requirements.txt": f"numpy\n# comment\n{line}\n"})
    (project / "link.txt").symlink_to(tmp_path / "outside.txt")
    message, next_step = refusal(project, "requirements.txt")
    assert message.startswith("requirements.txt:3: ")
    assert what in message
    assert hint in next_step


@pytest.mark.parametrize(
    "line",
    [
        "-i https://user:secret@example.org/simple",
        "https://user:secret@example.org/x.whl",
        "https://user:secret@download.pytorch.org/torch-1.0-py3-none-any.whl",
        "-e git+ssh://secret@example.org/x#egg=x",
    ],
)
def test_credentials_are_refused_and_not_repeated(tmp_path: Path, line: str) -> None:
    lay(tmp_path, {"requirements.txt": f"{line}\n"})
    message, hint = refusal(tmp_path, "requirements.txt")
    assert "credentials" in message
    assert "secret" not in message + hint


def test_files_that_include_each_other(tmp_path: Path) -> None:
    lay(tmp_path, {"a.txt": "rich\n-r b.txt\n", "b.txt": "-r a.txt\n"})
    message, _ = refusal(tmp_path, "a.txt")
    assert message == "b.txt:1: a.txt includes itself: a.txt → b.txt → a.txt"


def test_files_that_include_each_other_by_many_names(tmp_path: Path) -> None:
    lay(tmp_path, {f"{n}.txt": f"-r {n + 1}.txt\n" for n in range(20)})
    message, _ = refusal(tmp_path, "0.txt")
    assert message.startswith(
        "9.txt:1: 10.txt: files include other files to a depth of more than 10"
    )


def test_a_file_of_many_lines(tmp_path: Path) -> None:
    lay(tmp_path, {"requirements.txt": "a\n" * 20_001})
    assert "requirements.txt:20001: more than 20000" in refusal(tmp_path, "requirements.txt")[0]


def test_a_large_file(tmp_path: Path) -> None:
    lay(tmp_path, {"requirements.txt": "#" * (2 << 20)})
    with pytest.raises(Exception, match="larger than 1 MiB"):
        read(tmp_path, "requirements.txt")


def test_utf16_as_powershell_writes_it(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes("rich\r\nnumpy\r\n".encode("utf-16"))
    assert texts(read(tmp_path, "requirements.txt").requirements) == ["rich", "numpy"]
    (tmp_path / "requirements.txt").write_bytes(b"rich\n\n\xe9\n")
    assert refusal(tmp_path, "requirements.txt")[0] == "requirements.txt:3: not UTF-8 text"


def test_cog(tmp_path: Path) -> None:
    text = "build:\n  gpu: true\n  python_version: '3.11'\n  system_packages: [libgl1]\n"
    text += "  python_packages:\n    - torch==2.1.0+cu118\n    - rich\n"
    text += "  python_requirements: req/r.txt\n  run: [make]\npredict: p.py:P\n"
    lay(tmp_path, {"cog.yaml": text, "req/r.txt": "numpy\n"})
    listed = read(tmp_path, "cog.yaml")
    assert texts(listed.requirements) == ["torch==2.1.0", "rich", "numpy"]
    assert places(listed.requirements) == ["cog.yaml:6", "cog.yaml:7", "req/r.txt:1"]
    assert texts(listed.pythons) == ["==3.11.*"]
    assert listed.system == ("libgl1",)
    assert "cog.yaml:9: run: left out" in listed.notes[0]


@given(
    edited(
        [LEROBOT, (DATA / "pip-compile.txt").read_text()[:2000]],
        ["\\\n", "-r ", "-c x", "-e ", "--hash=", " @ ", "git+", "${A}", "[", ";", "'", "-r x.txt"],
    )
)
def test_any_text_is_read_or_refused(tmp_path: Path, text: str) -> None:
    listed = outcome(tmp_path, "x.txt", text)
    for line in listed.requirements if listed else ():
        # What was read is in a form that is read again as it is.
        again = outcome(tmp_path, "y.txt", line.text)
        assert again
        assert texts(again.requirements) == [line.text]


def test_a_command_of_pip_stands_for_what_it_installs(tmp_path: Path) -> None:
    text = (
        "pip install torch==1.13.0 'rich' --extra-index-url https://host.example/simple\n"
        "python3 -m pip install -U -r more.txt\n"
    ).replace("'", "")
    lay(tmp_path, {"requirements.txt": text, "more.txt": "tqdm\n"})
    listed = read(tmp_path, "requirements.txt")
    assert texts(listed.requirements) == ["torch==1.13.0", "rich", "tqdm"]
    assert [note for note in listed.notes if "--extra-index-url is left out" in note]


def test_the_name_of_a_folder_is_what_its_setup_call_says(tmp_path: Path) -> None:
    setup = (
        "NAME = 'mamba_ssm'\next = Extension(name='scan_cuda')\n"
        "setup(name=NAME, ext_modules=[ext])\n"
    )
    lay(tmp_path, {"requirements.txt": "./scan\n", "scan/setup.py": setup})
    assert [line.name for line in read(tmp_path, "requirements.txt").requirements] == ["mamba-ssm"]
