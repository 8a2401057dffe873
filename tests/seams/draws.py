"""Which steps are drawn, with which arguments."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.seams.edits import PLAIN
from tests.seams.forms import FORMS
from tests.seams.world import SECRET

Step = tuple[str, dict[str, Any]]
LINES = (
    "six",
    "six",
    "einops",
    "rich",
    "idna",
    "attrs",
    "six==1.15",
    "six>=1.16",
    "einops<0.8.2",
    "einops==0.8.1",
    "attrs; python_version < '3.12'",
    "idna==3.9; sys_platform == 'linux'",
    "idna; sys_platform == 'darwin'",
    "idna>=3.10; platform_machine == 'aarch64'",
    "torch>=2.11",
    "torchvision",
    "extras-of[more]",
    "missing-package",
    "six==99",
)
SOURCE_LINES = (
    "./ops",
    "g @ @GIT@@v1",
    "g @ @GIT@@main",
    "g @ @GIT@@v1; sys_platform == 'linux'",
    "g @ @GIT@@v2; sys_platform == 'darwin'",
    "-r more.txt",
)
LISTS = ("[six]", "[six, einops]", "[attrs, 'idna==3.9']", "[]", "[rich, 'einops<0.8.2']")
KEYS: dict[str, tuple[str | None, ...]] = {
    "profiles": (
        "[cpu]",
        "[cpu]",
        "[cpu, small]",
        "[mps]",
        "[cpu, rocm, xpu]",
        "[cpu, jax-cpu]",
        "",
        "cpu",
    ),
    "python": ("'3.11'", "'3.11'", "'3.12'", "managed 3.11", "'3.9'", "'3.7'", "3.11", "", None),
    "framework": ("torch", "jax", "", None, None),
    "framework_version": (
        "'2.12.1'",
        "'2.12.1'",
        "'2.12'",
        "'2.11'",
        "'2.7+cu118'",
        "'2.7.x'",
        "",
        None,
    ),
    "requirements": (
        *LISTS,
        "[six, missing-package]",
        "[torchvision]",
        "[sklearn]",
        "",
        "six",
        None,
    ),
    "requirements_from": (
        "[requirements.txt]",
        "[requirements.txt, more.txt]",
        "[pyproject.toml]",
        "[{file: pyproject.toml, extras: [train]}]",
        "[missing.txt]",
        "[setup.py, setup.cfg]",
        "",
        None,
    ),
    "as_of": ("'2026-06-30'", "'2020-01-01'", "'2026-08-01'", "2026-06-30", "", None, None),
    "exclude": ("[six]", "[torchvision]", "[zentorch]", "[torch]", "[nothing]", "", None),
    "overrides": (
        "{six: six==1.15}",
        "{six: six; einops: einops==0.8.0}",
        "{torch: torch==2.11.0}",
        "{}",
        None,
    ),
    "build_from_source": ("true", "[ops, g]", "[missing]", "", None),
    "install_project": ("true", "true", "false", "", None),
    "python_path": ("[src]", "[missing]", "[ops]", "", None),
    "files": ("[ops]", "[missing]", "[.]", "", None),
    "command": ("[python, -c, 'raise SystemExit(7)']", "[]", "", None),
    "environment": ("{MODE: offline}", "{PYTHONPATH: src}", "{PATH: ''}", "", None),
    "system_packages": ("[git]", "[no-such-package]", "", None),
    "environments": (
        "{test: {requirements: [attrs]}}",
        "{watch: {requirements: [attrs]}}",
        "{hook: {}}",
        "{test: {python: managed}}",
        "{test: {requirements: [jax]}}",
        "{test: {requirements: [missing-package]}}",
        "{test: }",
        "",
        None,
    ),
    "indexes": ("{pytorch-cpu: 'http://127.0.0.1:9/whl'}", "{nothing: x}", None, None),
    "ports": ("[8000]", "['x']", None),
    "signatures": ("{locks: [missing.pub]}", None),
    "profile": ("cpu", "cuda", "nothing", None),
    "frame_work": ("torch", None),
}
"""Key of envbuilder.yaml → raw values; None takes the key away."""
OWN_PROFILE = "extends: cpu\ndescription: Small\nsystem_packages: []\npreload: []\n"
_HEAD = "profiles: [cpu]\npython: '3.11'\nframework_version: '2.12.1'\n"
BASES = (
    PLAIN,
    f"{_HEAD}requirements_from: [requirements.txt]\nbuild_from_source: true\n",
    f"{_HEAD}requirements: [six]\ninstall_project: true\n",
    f"{_HEAD}requirements: [six]\nenvironments: {{watch: {{requirements: [attrs]}}}}\n",
    f"{_HEAD}requirements: [six]\nenvironments: {{test: {{python: managed}}}}\n",
    f"{_HEAD}requirements: [six, torchvision]\nexclude: [torchvision]\n",
    "profiles: [cpu]\npython: '3.11'\nrequirements: [einops]\nas_of: '2026-06-30'\n",
    "framework: jax\nframework_version: '0.11.0'\nrequirements: [six]\n",
    "profiles: [cpu, mps]\npython: '3.11'\nrequirements: [six]\n",
    f"{_HEAD.replace('cpu', 'small')}requirements: [six]\n",
)
OTHER_FILES = (
    ("profiles/small.yaml", OWN_PROFILE),
    ("profiles/slurm.yaml", "jobs: 4\npartition: gpu\n"),
    ("README.md", "# Thing\n\n    pip install -r requirements.txt\n"),
    ("Dockerfile", "FROM python:3.11\nRUN pip install torch==2.11.0\n"),
    ("common/utils.py", "VALUE = 1\n"),
    ("src/helper.py", "VALUE = 2\n"),
    ("train.py", "import utils\nimport torchvision\n"),
    ("json.py", "raise SystemExit('the project has a json.py')\n"),
    ("index.html", "<html>mine</html>\n"),
    ("config.yaml", "lr: 0.1\n"),
    ("envbuilder.lock/README.md", "Locks of envbuilder.\n"),
    (".env", f"HF_TOKEN={SECRET}\n"),
    ("envbuilder.yaml", ""),
)
USER_FILES = (
    ("~/.config/uv/uv.toml", 'index-url = "@INDEX@"\n'),
    ("~/.config/uv/uv.toml", 'exclude-newer = "2020-01-01T00:00:00Z"\n'),
    ("~/.config/uv/uv.toml", "no-binary = true\noffline = true\n"),
    ("~/.config/uv/uv.toml", "[[index]]\n"),
    ("~/.config/pip/pip.conf", "[global]\nextra-index-url = http://user:@SECRET@@127.0.0.1:9/x\n"),
    ("~/.config/pip/pip.conf", "[global]\nno-index = true\n"),
    ("~/config/config.yaml", "profile: cpu\n"),
    ("~/config/config.yaml", "profiles:\n"),
    ("~/config/profiles/small.yaml", OWN_PROFILE),
)
PROFILE = ("--profile", "cpu")
NATIVE = (*PROFILE, "--backend", "venv")
PYTHON = ("--", "python", "-c")
READ = (
    ("check",),
    ("check", "--json"),
    ("check", "cpu"),
    ("check", "cpu", "--json"),
    ("detect", "--json"),
    ("doctor",),
    ("doctor", "--json"),
    ("profiles", "--json"),
    ("profiles", "cpu"),
    ("ci", "--provider", "github", "--json"),
    ("ci", "--provider", "github", "--quick"),
    ("ci", "--provider", "gitlab", "-o", "ci.yml"),
    ("sbom", *PROFILE),
    ("sbom", *PROFILE, "--python-version", "3.12"),
    ("sbom", *PROFILE, "--output", "out.cdx.json"),
    ("sbom", *PROFILE, "--output", "index.html"),
    ("sbom", *PROFILE),
    ("render", *PROFILE),
    ("render", *PROFILE, "--target", "pylock", "-o", "rendered"),
    ("render", *PROFILE, "-o", "image"),
    ("render", *PROFILE, "--target", "compose", "-o", "."),
    ("render", *PROFILE, "--target", "requirements", "-o", "."),
    ("render", *PROFILE, "--target", "conda", "-o", "out"),
    ("build", *NATIVE, "--dry-run"),
    ("build", "--dry-run", "--json"),
    ("compare", "reports", "--json"),
    ("compare", "reports", "--format", "html"),
    ("clean", "--dry-run", "--json"),
    ("verify-signature", "envbuilder.lock/default.cpu.json"),
    ("init", "--json"),
    ("check", "--nothing"),
    ("chekc",),
)
LOCK = (
    ("lock",),
    ("lock",),
    ("lock", "--upgrade"),
    ("lock", "--profile", "cpu"),
    ("lock", "--profile", "cpu", "--upgrade"),
    ("lock", "--upgrade-package", "torch"),
    ("lock", "--upgrade-package", "six"),
    ("lock", "--as-of", "2026-06-30"),
    ("lock", "--output-dir", "elsewhere"),
    ("add", "einops"),
    ("add", "six"),
    ("add", "rich>=13"),
    ("add", "attrs; python_version < '3.12'"),
    ("add", "idna", "--environment", "test"),
    ("add", "cv2", "numpy=1.26"),
    ("add", "torch==2.11.0"),
    ("add", "missing-package"),
    ("remove", "six"),
    ("remove", "einops"),
    ("remove", "attrs"),
    ("init",),
    ("init", "--offline"),
)
BUILD = (
    ("build", *NATIVE),
    ("build", *NATIVE),
    ("build", *NATIVE, "--json"),
    ("build", *NATIVE, "--rebuild"),
    ("build", *NATIVE, "--environment", "test"),
    ("build", *NATIVE, "--environment", "watch"),
    ("build", *NATIVE, "--python-version", "3.12"),
    ("run", *NATIVE, *PYTHON, "import six"),
    ("run", *NATIVE, *PYTHON, "raise SystemExit(7)"),
    ("run", *NATIVE, "--locked", *PYTHON, "import six"),
    ("run", *NATIVE, "--environment", "hook", *PYTHON, "import torch"),
    ("run", *NATIVE, *PYTHON, "import torchvision"),
    ("run", *NATIVE, *PYTHON, "import utils"),
    ("run", *NATIVE, *PYTHON, "import torch"),
    ("run", *NATIVE, "--", "strangers-program"),
    ("run",),
    ("watch", *NATIVE, *PYTHON, "import six"),
    ("shell", *NATIVE),
    ("bundle", *PROFILE, "-o", "all.tar"),
    ("bundle", *PROFILE, "-o", "all.tar", "--json"),
    ("clean", "--json"),
    ("clean",),
    ("clean", "--profile", "cpu", "--yes"),
    ("clean", "--store", "--yes"),
)
_ACTING = (*LOCK[:6], *LOCK[10:13], *BUILD[:5], *BUILD[7:9], ("check",), ("clean", "--yes"))
PLANTS = ("git", "uv", "python", "sh", "sitecustomize.py", "ldconfig", "six.py", "nvidia-smi")
STDLIB = ("typing.py", "platform.py", "logging.py")


NOTHING: Step = ("nothing", {})


def drawn(steps: st.SearchStrategy[Step]) -> st.SearchStrategy[Step]:
    """Return steps that are nothing where Hypothesis draws the simplest.

    It ends many walks with what is simplest, again and again: that must cost nothing.
    """
    pairs = st.tuples(st.integers(0, 2000), steps)
    return pairs.map(lambda pair: pair[1] if pair[0] else NOTHING)


def _step(kind: str, /, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(kind), st.fixed_dictionaries(dict(arguments)))


def _words(table: tuple[tuple[str, ...], ...]) -> st.SearchStrategy[list[str]]:
    return st.sampled_from(table).map(list)


def _pairs(name: str, table: tuple[tuple[str, str], ...]) -> st.SearchStrategy[Step]:
    return st.sampled_from(table).map(lambda p: (name, {"name": p[0], "text": p[1]}))


def _key(pair: tuple[str, str | None]) -> Step:
    return "set_key", {"key": pair[0], "raw": pair[1]}


KEY = st.sampled_from([*KEYS]).flatmap(
    lambda key: st.sampled_from(KEYS[key]).map(lambda raw: _key((key, raw)))
)
LIST = _step(
    "write_list",
    form=st.sampled_from([*FORMS]),
    lines=st.lists(st.sampled_from((*LINES, *SOURCE_LINES)), min_size=1, max_size=3, unique=True),
    named=st.sampled_from([True, True, True, False]),
)
PACKAGE = _step(
    "write_package",
    folder=st.just("ops"),
    name=st.sampled_from(["ops", "ops", "ops", "my-ops"]),
    version=st.sampled_from(["0.9", "0.9", "1.0"]),
    value=st.sampled_from(["third", "fourth", "fifth"]),
)
SOURCE = st.one_of(
    PACKAGE,
    PACKAGE,
    _step("ignored_secret", folder=st.just("ops")),
    _step("commit"),
    _step("commit"),
    _step("git_host"),
    _step("write_own_package", value=st.sampled_from(["third", "fourth"])),
    _step("repository_of_project"),
)
EDIT = st.one_of(KEY, LIST, SOURCE, _pairs("other_file", OTHER_FILES))
_PACKAGES = st.sampled_from(["six", "einops", "idna", "attrs", "filelock"])
ELSEWHERE = st.one_of(
    _step("git_host"),
    _step("index_away", away=st.booleans()),
    _step("release", name=_PACKAGES, version=st.sampled_from(["30.0", "40.0"])),
    _step("change_wheel", name=st.just("six"), version=st.sampled_from(["1.17", "1.15"])),
    _step("withdraw", name=st.just("six"), version=st.sampled_from(["1.17", "1.15"])),
    _pairs("user_file", USER_FILES),
    _step("move"),
)
LOCK_HARM = _step(
    "change_lock",
    how=st.sampled_from(
        ["newer schema", "older schema", "conflict", "empty", "half", "hash", "removed"]
    ),
)
DAMAGE = st.one_of(
    _step(
        "damage",
        what=st.sampled_from(["python", "package", "framework", "environment", "manifest"]),
    ),
    _step(
        "remove_file",
        name=st.sampled_from(["requirements.txt", "envbuilder.yaml", "ops", ".envbuilder"]),
    ),
)
SHARED = _step(
    "shared",
    how=st.sampled_from(
        ["add einops", "remove six", "twin", "changed", "changed, removed", "unshared, removed"]
    ),
)
PLANT = st.one_of(
    _step(
        "plant",
        place=st.sampled_from([".envbuilder", ".envbuilder", "hook", "data", "cache", "tmp"]),
        name=st.sampled_from(PLANTS),
    ),
    _step("plant", place=st.just("project"), name=st.sampled_from(("git", "uv", "sh", *STDLIB))),
)
COMMAND = st.one_of(
    _step("command", words=_words(LOCK)),
    _step("command", words=_words(BUILD)),
    _step("command", words=_words(READ)),
    _step(
        "command",
        words=_words(BUILD),
        variables=st.sampled_from(
            [{"PATH": ""}, {"PYTHONPATH": "src"}, {"HOME": ""}, {"LANG": "C"}, {"CI": "true"}]
        ),
    ),
    _step("command", words=_words(READ), cwd=st.just("ops")),
)
HARD = st.one_of(
    _step("interrupted", words=_words(_ACTING), seconds=st.sampled_from([0.4, 0.8, 1.2, 2.0, 3.0])),
    _step(
        "stopped",
        words=_words(_ACTING),
        number=st.sampled_from([2, 15, 1]),
        seconds=st.sampled_from([0.5, 1.0, 2.0]),
    ),
    _step("together", first=_words(_ACTING), second=_words(_ACTING)),
    _step(
        "full_disk",
        words=_words(_ACTING),
        place=st.sampled_from(["data", "cache", "tmp", "locks"]),
        kilobytes=st.sampled_from([0, 16, 400, 20_000]),
    ),
)
_OPTIONS = st.sampled_from([[], [], ["-e", "PYTHONPATH=src"], ["-e", "PATH="]])
_SETTLED = _step("settled", words=_words(((), (), ("--upgrade",))))
_INSIDE = st.one_of(
    _step("inside"),
    _step("inside", by=st.just("watch")),
    _step("inside", options=_OPTIONS),
    _step("inside", environment=st.just("another")),
)
_WORKS = _step("works", words=_words((("run",), ("run",), ("watch",))))
_AGREE = st.one_of(
    _step("agree"),
    _step("agree", environment=st.just("another")),
    _step("agree", profile=st.sampled_from(["small", "jax-cpu", "mps"])),
)
_TRIP = _step("bundle_trip", options=st.just([]))
_WRITTEN = _step("command", words=_words(READ[13:28]))
LOOK = st.one_of(
    _SETTLED,
    _SETTLED,
    _AGREE,
    _INSIDE,
    _WORKS,
    _TRIP,
    _WRITTEN,
    _step("history_does_not_matter"),
    _step("clone"),
    _step("rendered"),
)
SOURCE_LOOK = st.one_of(
    _SETTLED, _INSIDE, _TRIP, _WRITTEN, _step("clone"), _step("command", words=_words(LOCK))
)
ELSEWHERE_LOOK = st.one_of(
    _SETTLED,
    _INSIDE,
    _WORKS,
    _step("rendered"),
    _step("command", words=_words(LOCK)),
    _step("upgrade_one", name=st.sampled_from(["six", "torch", "einops"])),
    _step("history_does_not_matter"),
)
LOCK_LOOK = st.one_of(_step("command", words=_words((*LOCK, *READ[:3], *BUILD[:8]))), _SETTLED)
DAMAGE_LOOK = st.one_of(_WORKS, _INSIDE, _step("command", words=_words(BUILD)))
PLANT_LOOK = st.one_of(_INSIDE, _step("command", words=_words((*BUILD, *READ[:6]))))
DECIDE = st.one_of(KEY, KEY, LIST, LIST, PACKAGE).map(
    lambda s: ("decides", {"name": s[0], "arguments": s[1]})
)
_LOCK: Step = ("command", {"words": ["lock"]})
_BUILD: Step = ("command", {"words": ["build", *NATIVE]})
_FIRST: tuple[tuple[Step, ...], ...] = ((), (), (_LOCK,), (_LOCK, _BUILD))
_LINES = st.lists(st.sampled_from((*LINES[:14], *SOURCE_LINES[:5])), min_size=1, max_size=3)
EDITS = st.lists(EDIT, min_size=1, max_size=3)
"""What is changed before one look."""


@st.composite
def beginnings(draw: st.DrawFn) -> list[Step]:
    """Draw what a walk begins with: a project, mostly one that can be locked."""
    own = draw(st.sampled_from(["first", "second"]))
    steps: list[Step] = [
        ("write_definition", {"text": draw(st.sampled_from(BASES))}),
        ("write_list", {"form": "plain", "lines": draw(_LINES), "named": False}),
        ("write_package", {"folder": "ops", "name": "ops", "version": "0.9", "value": own}),
        ("write_own_package", {"value": own}),
        ("other_file", {"name": "profiles/small.yaml", "text": OWN_PROFILE}),
    ]
    if draw(st.booleans()):
        steps += draw(EDITS)
    return [*steps, *draw(st.sampled_from(_FIRST))]
