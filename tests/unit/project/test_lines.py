"""requirements.txt in pip's form: what counts, what is dropped, what is refused and where."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from envbuilder.project import lines
from envbuilder.project.environments import read
from envbuilder.project.lines import Listed
from tests.support.edited_text import edited
from tests.support.requirement_projects import DATA, outcome, places, refusal, texts, write

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
    write(tmp_path, {"requirements.txt": LEROBOT})
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
    assert listed == Listed(requirements=listed.requirements)


def test_versions_of_pip_compile_count_and_its_hashes_do_not(tmp_path: Path) -> None:
    write(tmp_path, {"requirements.txt": (DATA / "pip-compile.txt").read_text()})
    listed = read(tmp_path, "requirements.txt")
    assert "rich==15.0.0" in texts(listed.requirements)
    assert all("==" in text and "hash" not in text for text in texts(listed.requirements))
    assert listed.requirements[0].where == "requirements.txt:3"


def test_lines_that_go_on(tmp_path: Path) -> None:
    text = "rich\\\n>=13 \\\n  # a comment ends the line\nnumpy \\\n\npandas\\"
    write(tmp_path, {"requirements.txt": text})
    listed = read(tmp_path, "requirements.txt")
    assert list(zip(texts(listed.requirements), places(listed.requirements), strict=True)) == [
        ("rich>=13", "requirements.txt:1"),
        ("numpy", "requirements.txt:4"),
        ("pandas", "requirements.txt:6"),
    ]


def test_included_files_and_constraints(tmp_path: Path) -> None:
    write(
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
    write(tmp_path, {"requirements.txt": "\ufeffrich>=13\r\nnumpy\r\n"})
    assert texts(read(tmp_path, "requirements.txt").requirements) == ["rich>=13", "numpy"]


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        (f"--extra-index-url {PYTORCH_INDEX}", "the profile decides", "Delete the line."),
        (f"--index-url={PYTORCH_INDEX}", "the profile decides", "Delete the line."),
        (f"-i {PYTORCH_INDEX}", "the profile decides", "Delete the line."),
        (
            "-f https://download.pytorch.org/whl/torch_stable.html",
            "the profile decides",
            "Delete the line.",
        ),
        ("--extra-index-url https://pytorch.org.example.org/x", "where packages come", "set the"),
        ("-i https://example.org/simple", "where packages come", "pip config set"),
        ("-ihttps://example.org/simple", "where packages come", "pip config set"),
        ("--find-links wheels/", "where packages come", "pip config set"),
        ("--no-index", "where packages come", "Delete the line"),
        ("--pre", "--pre is not supported", "name>=2.0rc1"),
        ("--no-binary :all:", "--no-binary is not supported", "wheels"),
        ("--only-binary=:all:", "--only-binary is not supported", "wheels"),
        ("--trusted-host example.org", "--trusted-host", "pip or uv"),
        ("--use-feature=fast-deps", "--use-feature", "Delete"),
        ("-x", "-x is not supported", "Delete"),
        ("-", "is not supported", "Delete"),
        ("-e .", "the project itself", "pyproject.toml"),
        ("-e .[dev,test]", "the project itself", "pyproject.toml"),
        (".", "the project itself", "pyproject.toml"),
        ("--editable=./libs/common", "a local path", "released version"),
        ("-e git+https://github.com/huggingface/trl.git#egg=trl", "repository", "released"),
        ("git+ssh://git@github.com/owner/private.git@v1", "repository", "released"),
        ("trl @ git+https://github.com/huggingface/trl@main", "repository", "released"),
        ("./wheels/x-1.0-py3-none-any.whl", "a local path", "released"),
        ("../other", "a local path", "released"),
        ("/opt/x", "a local path", "released"),
        ("x-1.0.tar.gz", "a local path", "released"),
        ("x @ file:///opt/x.whl", "a local path", "released"),
        ("x[a] @ https://example.org/x.whl", "a URL", "name==1.0"),
        ("https://example.org/x.whl", "a URL", "name==1.0"),
        (
            "torch @ https://download.pytorch.org/whl/cu118/torch-2.1.0-cp311-linux_x86_64.whl",
            "the profile decides",
            "version only",
        ),
        ("git+https://github.com/pytorch/vision.git", "repository", "released"),
        ("rich>=${VERSION}", "variables are not expanded", "Write the value out."),
        ("rich --no-deps", "--no-deps is not supported", "Delete the option."),
        ("rich==1.0 --config-settings=x=y", "--config-settings is not", "Delete the option."),
        ("rich 13", "not a requirement", "rich>=13"),
        ("rich>=13;", "not a requirement", "PEP 508"),
        ("rich; os_name == '$HOME'", "character", "PEP 508"),
        ("rich; os_name == 'a\x1bb'", "\\x1b", "PEP 508"),
        (f"rich; {'(' * 1500}os_name == 'a'{')' * 1500}", "nested", "PEP 508"),
        (f"rich; os_name == '{'x' * 20_000}'", "longer than", "PEP 508"),
        ("r\u00edch", "not a requirement", "PEP 508"),
        ("-r", "expected the path of one file", "-r other.txt"),
        ("-r 'unclosed", "expected the path of one file", "-r other.txt"),
        ("-r https://example.org/r.txt", "a URL", "Save the file"),
        ("-r ../outside.txt", "leads out of the project", "Copy the file"),
        ("-r /etc/hostname", "leads out of the project", "Copy the file"),
        ("-r link.txt", "leads out of the project", "Copy the file"),
        ("-c missing.txt", "no such file", "requirements.txt"),
    ],
)
def test_a_refused_line(tmp_path: Path, line: str, what: str, hint: str) -> None:
    project = tmp_path / "project"
    write(tmp_path, {"outside.txt": "rich\n"})
    write(project, {"requirements.txt": f"numpy\n# comment\n{line}\n"})
    (project / "link.txt").symlink_to(tmp_path / "outside.txt")
    message, next_step = refusal(project, "requirements.txt")
    assert message.startswith("requirements.txt:3: ")
    assert what in message
    assert hint in next_step


@pytest.mark.parametrize(
    "line",
    [
        "-i https://user:secret@example.org/simple",
        "x @ git+https://user:secret@example.org/x",
        "https://user:secret@example.org/x.whl",
    ],
)
def test_credentials_are_not_repeated(tmp_path: Path, line: str) -> None:
    write(tmp_path, {"requirements.txt": f"{line}\n"})
    assert "secret" not in "".join(refusal(tmp_path, "requirements.txt"))


def test_a_refused_line_of_an_included_file(tmp_path: Path) -> None:
    write(tmp_path, {"requirements.txt": "-r sub/a.txt\n", "sub/a.txt": "\n-e .\n"})
    assert refusal(tmp_path, "requirements.txt")[0].startswith("sub/a.txt:2: -e .: ")


def test_files_that_include_each_other(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "rich\n-r b.txt\n", "b.txt": "-r a.txt\n"})
    message, _ = refusal(tmp_path, "a.txt")
    assert message == "b.txt:1: a.txt includes itself: a.txt → b.txt → a.txt"


def test_files_that_include_each_other_by_many_names(tmp_path: Path) -> None:
    write(tmp_path, {f"{n}.txt": f"-r {n + 1}.txt\n" for n in range(20)})
    message, _ = refusal(tmp_path, "0.txt")
    assert message.startswith("9.txt:1: 10.txt: files include each other more than 10 deep")


def test_a_file_of_many_lines(tmp_path: Path) -> None:
    write(tmp_path, {"requirements.txt": "a\n" * 20_001})
    assert "requirements.txt:20001: more than 20000" in refusal(tmp_path, "requirements.txt")[0]


def test_a_large_file(tmp_path: Path) -> None:
    write(tmp_path, {"requirements.txt": "#" * (2 << 20)})
    with pytest.raises(Exception, match="larger than 1 MiB"):
        read(tmp_path, "requirements.txt")


def test_utf16_as_powershell_writes_it(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes("rich\r\n".encode("utf-16"))
    message, hint = refusal(tmp_path, "requirements.txt")
    assert message == "requirements.txt:1: UTF-16 text, as PowerShell's > writes it"
    assert hint == "Save it as UTF-8."
    (tmp_path / "requirements.txt").write_bytes(b"rich\n\n\xe9\n")
    assert refusal(tmp_path, "requirements.txt")[0] == "requirements.txt:3: not UTF-8 text"


def test_lines_of_another_file(tmp_path: Path) -> None:
    write(tmp_path, {"env/more.txt": "tqdm\n"})
    pairs = [("environment.yml:7", "rich # pretty"), ("environment.yml:8", "-r more.txt")]
    listed = lines.read_lines(tmp_path, "env/environment.yml", pairs)
    assert texts(listed.requirements) == ["rich", "tqdm"]
    assert places(listed.requirements) == ["environment.yml:7", "env/more.txt:1"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
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
