"""The environments of a project, the files that they name, and what is never read."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import Definition, Environment, RequirementFile, load as load_settings
from envbuilder.profiles.profile import Resolution, Source
from envbuilder.project import environments
from envbuilder.project.lines import Line
from tests.support.repositories import lay

TEXT = """\
python: "3.12"
requirements:
  - einops

  - rich>=13
environments:
  test:
    requirements:
      - pytest
"""
DEFINITION = Definition(
    python="3.12",
    requirements=("einops", "rich>=13"),
    requirements_from=("requirements.txt",),
    system_packages=("git",),
    environment={"A": "1", "B": "1"},
    files=("src",),
    python_path=("src", "lib"),
    command=("python", "serve.py"),
    ports=(8000,),
    volumes={"models": "/models", "./data": "/data"},
    environments={
        "test": Environment(
            requirements=("pytest",),
            requirements_from=(RequirementFile(file="pyproject.toml", groups=("dev",)),),
            system_packages=("git", "curl"),
            environment={"B": "2"},
            files=("tests", "src"),
            python_path=("tests", "src"),
            command=("pytest",),
            ports=(1, 8000),
            volumes={"models": "/m"},
        ),
        "old": Environment(python="3.11"),
    },
)


def test_another_environment_has_what_the_top_level_has_and_its_own() -> None:
    test = environments.merged(DEFINITION, "test")
    assert test == Environment(
        python="3.12",
        requirements=("einops", "rich>=13", "pytest"),
        requirements_from=("requirements.txt", *DEFINITION.environments["test"].requirements_from),
        system_packages=("git", "curl"),
        environment={"A": "1", "B": "2"},
        files=("src", "tests"),
        python_path=("src", "lib", "tests"),
        command=("pytest",),
        ports=(8000, 1),
        volumes={"models": "/m", "./data": "/data"},
    )
    assert environments.merged(DEFINITION, "old").python == "3.11"
    assert environments.merged(DEFINITION, "old").command == DEFINITION.command
    assert environments.merged(DEFINITION, "default") is DEFINITION
    assert environments.names(DEFINITION) == ("default", "test", "old")


def test_an_environment_that_there_is_not() -> None:
    with pytest.raises(InvalidError, match=r"envbuilder.yaml has no environment 'prod'") as raised:
        environments.merged(DEFINITION, "prod")
    assert raised.value.hint == "It has: default, test, old."


def test_the_contents_name_where_each_line_stands(tmp_path: Path) -> None:
    (tmp_path / "envbuilder.yaml").write_text(TEXT)
    environment = (
        "channels: [conda-forge, pytorch]\ndependencies: [ffmpeg, pip: [-r ../more.txt]]\n"
    )
    project = '[project]\nname = "x"\nrequires-python = ">=3.10"\n'
    lay(
        tmp_path,
        {
            "requirements.txt": "-r ./more.txt\n-c pins.txt\n",
            "more.txt": "rich\n",
            "pins.txt": "attrs==1\n",
            "conda/environment.yml": environment,
            "pyproject.toml": f'{project}[dependency-groups]\ndev = ["attrs"]\n',
        },
    )
    definition = replace(
        DEFINITION, requirements_from=("requirements.txt", "./conda/environment.yml")
    )
    found = environments.contents(definition, "test", tmp_path)
    assert found.requirements == (
        Line("einops", "envbuilder.yaml:3"),
        Line("rich>=13", "envbuilder.yaml:5"),
        Line("pytest", "envbuilder.yaml:9"),
        Line("rich", "more.txt:1"),
        Line("rich", "more.txt:1"),
        Line("attrs", "pyproject.toml:5"),
    )
    assert found.pythons == (Line("==3.12.*", "envbuilder.yaml:1"),)
    assert found.constraints == (Line("attrs==1", "pins.txt:1"),)
    assert found.conda == (Line("ffmpeg", "./conda/environment.yml:2"),)
    assert (found.channels, len(found.notes)) == (("conda-forge",), 2)
    assert found.read_from == (
        "conda/environment.yml",
        "more.txt",
        "pins.txt",
        "pyproject.toml",
        "requirements.txt",
    )


def test_a_source_keeps_its_marker_and_its_line(tmp_path: Path) -> None:
    """Of two that would count on one target, the second is refused."""
    one = "six @ ./one; sys_platform == 'linux'\n"
    files = {
        "envbuilder.yaml": "requirements_from: [a.txt, b.txt]\nexclude: [left]\n",
        "a.txt": f"attrs\n{one}left @ ./here\n",
        "b.txt": f"{one}six @ ./two; sys_platform == 'darwin'\nleft @ ./there\n",
    }
    assert stated(tmp_path, files).resolution.sources == (
        Source(name="six", location="./one", marker='sys_platform == "linux"', where="a.txt:2"),
        Source(name="six", location="./two", marker='sys_platform == "darwin"', where="b.txt:2"),
    )
    for other in ("", "; python_version > '3.9'"):
        files["b.txt"] = f"six @ ./two{other}\n"
        with pytest.raises(InvalidError) as caught:
            stated(tmp_path, files)
        assert caught.value.message == ("b.txt:1: six comes from ./two, but in a.txt:2 from ./one")


def stated(folder: Path, files: dict[str, str], name: str = "default") -> environments.Contents:
    """The contents of an environment of a project with these files."""
    lay(folder, files)
    definition = load_settings({}, folder).definition
    assert definition
    return environments.contents(definition, name, folder)


def test_names_in_the_projects_own_file_mean_what_they_mean_in_others(tmp_path: Path) -> None:
    lines = ["sklearn==0.0", "Rich<14,>=13", "PIL[xmp]; python_version < '3.12'"]
    meant = ("scikit-learn", "Rich<14,>=13", 'pillow[xmp]; python_version < "3.12"')
    contents = stated(tmp_path, {"envbuilder.yaml": f"requirements: {lines}\n"})
    assert tuple(line.text for line in contents.requirements) == meant
    assert contents.notes == (
        "envbuilder.yaml:1: sklearn==0.0: taken as scikit-learn in any version.",
        "envbuilder.yaml:1: PIL[xmp]; python_version < '3.12': taken as pillow.",
    )


def test_managed_says_nothing_of_the_version_unless_it_has_one(tmp_path: Path) -> None:
    text = "python: managed\nenvironments:\n  test: {}\n  old: {python: managed 3.9}\n"
    files = {"envbuilder.yaml": text + "  own: {python: '3.11'}\n"}
    found = {n: stated(tmp_path, files, n) for n in ("test", "old", "own")}
    assert found["test"].pythons == ()
    assert found["old"].pythons == (Line("==3.9.*", "envbuilder.yaml:4"),)
    managed = {name: each.environment.is_managed for name, each in found.items()}
    assert managed == {"test": True, "old": True, "own": False}


def test_a_managed_environment_has_the_version_of_the_top_level(tmp_path: Path) -> None:
    text = "python: '3.12'\nenvironments:\n  test: {python: managed}\n"
    contents = stated(tmp_path, {"envbuilder.yaml": text}, "test")
    assert contents.pythons == (Line("==3.12.*", "envbuilder.yaml:1"),)
    assert contents.environment.is_managed


def test_a_project_that_is_to_be_installed_must_be_a_package(tmp_path: Path) -> None:
    lay(tmp_path, {"envbuilder.yaml": "requirements: [rich]\ninstall_project: true\n"})
    definition = load_settings({}, tmp_path).definition
    assert definition
    with pytest.raises(
        InvalidError, match=r"^envbuilder\.yaml:2: install_project: .* must define a package"
    ):
        environments.require_parts(definition, "default", tmp_path)
    lay(tmp_path, {"setup.cfg": "[metadata]\nname = own\n"})
    environments.require_parts(definition, "default", tmp_path)


@pytest.mark.parametrize(("name", "expected"), [("test", ":1"), ("old", ":4")])
def test_the_stated_python_decides_and_a_note_names_what_a_file_says(
    tmp_path: Path, name: str, expected: str
) -> None:
    text = 'python: "3.12"\nenvironments:\n  test: {}\n  old: {python: "3.11"}\n'
    text += "requirements_from: [environment.yml]\n"
    files = {"envbuilder.yaml": text, "environment.yml": "dependencies: [python=3.8]\n"}
    version = "3.11" if name == "old" else "3.12"
    found = stated(tmp_path, files, name)
    assert found.pythons == (Line(f"=={version}.*", f"envbuilder.yaml{expected}"),)
    assert found.notes[0] == (
        f"environment.yml:1 asks for Python ==3.8.*, but envbuilder.yaml{expected} takes"
        f" precedence: {version}"
    )


def test_what_replaces_or_leaves_out_packages_holds_for_every_file(tmp_path: Path) -> None:
    text = (
        "as_of: 2022-03-01\nrequirements: [einops]\nrequirements_from: [requirements.txt]\n"
        "build_from_source: [Antlr4_runtime]\nexclude: [Triton]\n"
        "overrides:\n  opencv-python: opencv-python-headless>=4\n  numpy: numpy<2\n"
    )
    listed = "opencv-python==4.5\ntriton\nnumpy>=2\nrich\n"
    found = stated(tmp_path, {"envbuilder.yaml": text, "requirements.txt": listed})
    texts = [line.text for line in found.requirements]
    assert texts == ["einops", "rich", "opencv-python-headless>=4", "numpy<2"]
    assert found.requirements[-2].where == "envbuilder.yaml:7"
    assert found.resolution == Resolution(
        as_of="2022-03-01",
        build=("antlr4-runtime",),
        overrides=("numpy<2",),
        exclude=("opencv-python", "triton"),
    )


def test_what_replaces_packages_for_uv_does_so_here_unless_the_project_says_otherwise(
    tmp_path: Path,
) -> None:
    uv = (
        '[project]\nname = "x"\ndependencies = ["protobuf<3.20", "rich"]\n'
        '[tool.uv]\nconstraint-dependencies = ["idna<4"]\n'
        'override-dependencies = ["protobuf>=3.20,<6", "numpy<2", "torch==2.4", "attrs>23",'
        ' "anyio<4; sys_platform == \'linux\'", "h11 @ https://example.org/h.zip"]\n'
    )
    text = "requirements_from: [pyproject.toml]\noverrides: {numpy: numpy<1.27, attrs: cattrs}\n"
    found = stated(tmp_path, {"envbuilder.yaml": text, "pyproject.toml": uv})
    assert [line.text for line in found.requirements] == ["rich", "protobuf<6,>=3.20", "cattrs"]
    assert [line.text for line in found.constraints] == ["idna<4"]
    assert found.resolution.overrides == ("protobuf<6,>=3.20", "numpy<1.27")
    (note,) = found.notes
    assert note == (
        "pyproject.toml: tool.uv.override-dependencies is not used:"
        " anyio<4; sys_platform == 'linux', h11 @ https://example.org/h.zip."
    )


def test_a_replacement_for_one_place_leaves_the_lines_to_all_others(tmp_path: Path) -> None:
    text = (
        "requirements_from: [requirements.txt]\noverrides:\n"
        "  ray: \"ray[tune]==2; sys_platform == 'darwin'\"\n"
        "  free: \"free<2; platform_machine != 'arm64'\"\n"
    )
    listed = "ray[tune]<1.7\nray>=1; python_version > '3.8'\n"
    found = stated(tmp_path, {"envbuilder.yaml": text, "requirements.txt": listed})
    assert [line.text for line in found.requirements] == [
        'ray[tune]<1.7; sys_platform != "darwin"',
        'ray>=1; python_version > "3.8" and sys_platform != "darwin"',
        "ray[tune]==2; sys_platform == 'darwin'",
    ]
    # Whoever requires it, there.
    assert found.resolution.overrides == (
        "ray[tune]==2; sys_platform == 'darwin'",
        "free<2; platform_machine != 'arm64'",
    )
    assert found.notes == ()


def test_another_version_is_required_only_where_the_package_was(tmp_path: Path) -> None:
    text = "requirements_from: [requirements.txt]\noverrides: {mkl: mkl==2024.2, attrs: attrs<20}\n"
    listed = "mkl==1\nattrs==19; python_version < '3'\nattrs==18; python_version >= '3.1'\nattrs\n"
    found = stated(tmp_path, {"envbuilder.yaml": text, "requirements.txt": listed})
    assert [line.text for line in found.requirements] == [
        'mkl==2024.2; (platform_machine == "x86_64")',
        "attrs<20",
    ]
    assert found.resolution.overrides == ("mkl==2024.2", "attrs<20")


def test_another_package_for_one_place_is_not_left_out_of_all_others(tmp_path: Path) -> None:
    text = (
        "requirements_from: [requirements.txt]\nexclude: [wheel]\noverrides:\n"
        "  tqdm: \"einops; sys_platform == 'darwin'\"\n  rich: wheel\n  attrs: attrs<20\n"
        "  idna: \"attrs; sys_platform == 'linux'\"\n"
    )
    found = stated(tmp_path, {"envbuilder.yaml": text, "requirements.txt": "tqdm\nrich\n"})
    assert [line.text for line in found.requirements] == [
        'tqdm; sys_platform != "darwin"',
        "einops; sys_platform == 'darwin'",
    ]
    assert found.resolution == Resolution(overrides=("attrs<20",), exclude=("rich", "wheel"))
    (note,) = found.notes
    assert (
        note == "envbuilder.yaml:7: no file lists idna, so an override with a marker has no effect"
    )


def test_what_replaces_packages_holds_against_constraints_and_locks_of_other_tools(
    tmp_path: Path,
) -> None:
    text = (
        "requirements_from: [requirements.txt]\noverrides:\n  Einops: einops==0.8\n"
        "  rich: \"rich<13; sys_platform == 'darwin'\"\n"
    )
    listed = "-c limits.txt\neinops\nrich\n"
    limits = "einops<0.8\nrich>=13\nidna<4\n"
    files = {"envbuilder.yaml": text, "requirements.txt": listed, "limits.txt": limits}
    found = stated(tmp_path, files)
    assert [line.text for line in found.constraints] == [
        'rich>=13; sys_platform != "darwin"',
        "idna<4",
    ]


def test_of_packages_that_are_the_same_the_most_complete_is_taken(tmp_path: Path) -> None:
    listed = "opencv-python-headless==4.12\nrich\nopencv-python==4.12\n"
    text = "requirements_from: [requirements.txt]\n"
    found = stated(tmp_path, {"envbuilder.yaml": text, "requirements.txt": listed})
    assert [line.text for line in found.requirements] == ["rich", "opencv-python==4.12"]
    assert found.notes == (
        "opencv-python-headless is left out, because opencv-python contains all of it",
    )
