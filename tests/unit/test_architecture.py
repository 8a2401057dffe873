"""Rules of the design that a reader could break without noticing."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

STARTERS = {"subprocess", "multiprocessing", "pty"}
ELSEWHERE = (
    "payload/",
    "containers/inside/guard.py",
    "packages/sources/inside.py",
    "builds/inside/",
)
"""Modules that run in other interpreters than envbuilder's."""
EXECUTORS = {
    "os.system",
    "os.popen",
    "os.fork",
    "os.execv",
    "os.execve",
    "os.execvp",
    "os.execvpe",
    "os.spawnv",
    "os.posix_spawn",
}


@functools.cache
def modules(repository: Path) -> tuple[tuple[str, ast.Module], ...]:
    package = repository / "envbuilder"
    return tuple(
        (path.relative_to(package).as_posix(), ast.parse(path.read_text()))
        for path in sorted(package.rglob("*.py"))
    )


@functools.cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Walk through a module once: several rules look at all nodes."""
    return tuple(ast.walk(tree))


@functools.cache
def imported(tree: ast.AST) -> set[str]:
    found = set()
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def spelling(node: ast.Attribute) -> str:
    """Return the spelling of an attribute of a name, such as `os.fork`."""
    return f"{getattr(node.value, 'id', '')}.{node.attr}"


def test_one_module_starts_programs(repository: Path) -> None:
    guilty = []
    for name, tree in modules(repository):
        if name == "core/process.py" or name.startswith(ELSEWHERE):
            continue
        if {i.split(".")[0] for i in imported(tree)} & STARTERS:
            guilty.append(name)
        spelled = {spelling(n) for n in nodes(tree) if isinstance(n, ast.Attribute)}
        if spelled & EXECUTORS:
            guilty.append(name)
    assert guilty == []


COMMANDS = (
    ("-m", "uv"),
    ("-m", "pip"),
    ("python", "find"),
    ("python", "install"),
    *((p, c) for p in ("pip", "pip3") for c in ("compile", "download", "install", "sync", "wheel")),
    *(("uv", c) for c in ("build", "pip", "python", "run", "sync", "tool", "venv")),
)
"""Pairs of words that stand side by side where uv or pip is started."""


def starts_of_uv(tree: ast.AST) -> set[int]:
    """Return the lines where uv or pip is found or started other than by `process.run_uv`."""
    isolated: set[int] = set()
    for node in nodes(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"process.run_uv", "RunUv"}:
            isolated |= {id(part) for part in ast.walk(node)}
    lines = set()
    for node in nodes(tree):
        if isinstance(node, ast.Tuple | ast.List | ast.Call) and id(node) not in isolated:
            parts = node.args if isinstance(node, ast.Call) else node.elts
            words = [p.value if isinstance(p, ast.Constant) else None for p in parts]
            found = any(pair in COMMANDS for pair in itertools.pairwise(words))
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if found or called in {"process.uv_path", "uv.find_uv_bin"}:
                lines.add(node.lineno)
    return lines


def test_one_module_starts_uv(repository: Path) -> None:
    """In a private folder: uv runs what settings of the folders above it name."""
    for name, tree in modules(repository):
        if name == "core/process.py":
            assert starts_of_uv(tree)
            continue
        assert not starts_of_uv(tree), name
        assert "uv" not in imported(tree), name


@pytest.mark.parametrize(
    "source",
    [
        "process.run([process.uv_path(), 'pip', 'compile'])",
        "run((sys.executable, '-m', 'uv', 'python', 'find', version))",
        "Run(what='x', argv=(*(uv, 'pip', 'install', '--quiet'), name))",
        "process.run(['uv', 'venv', folder])",
        "process.exec_program(['pip', 'install', name], {})",
        "program = uv.find_uv_bin()",
    ],
)
def test_the_rule_on_uv_sees(source: str) -> None:
    assert starts_of_uv(ast.parse(source))


def test_one_module_prints(repository: Path) -> None:
    """`ruff` refuses `print`; what else prints goes around what escapes outside text, too."""
    edges = {"core/console.py"}
    for name, tree in modules(repository):
        if name in edges or name.startswith(ELSEWHERE):
            continue
        assert not imported(tree) & {"rich.console", "rich.console.Console", "logging"}, name
        attributes = [node for node in nodes(tree) if isinstance(node, ast.Attribute)]
        streams = {id(node.value): node.attr for node in attributes}
        for node in attributes:
            spelled = spelling(node)
            assert spelled not in {"click.echo", "click.secho", "click.echo_via_pager"}, name
            if spelled in {"sys.stdout", "sys.stderr"}:
                assert name == "cli.py" or streams.get(id(node)) == "isatty", name


MSGSPEC = {
    "Meta",
    "Struct",
    "UNSET",
    "UnsetType",
    "field",
    "structs",
    "to_builtins",
    "DecodeError",
    "MsgspecError",
    "ValidationError",
    "json.encode",
    "json.format",
    "json.decode",
}
"""What all modules may use of msgspec; of `json.decode`, only calls without a type."""


def uses_of_msgspec(tree: ast.AST) -> set[str]:
    """Return what a module uses of msgspec; `json.decode, type` is `json.decode` with a type."""
    uses = {i.partition(".")[2] for i in imported(tree) if i.startswith("msgspec.")}
    for node in nodes(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "msgspec.json.decode":
            uses |= {"json.decode, type"} if node.keywords or len(node.args) != 1 else set()
        elif isinstance(node, ast.Attribute):
            used = re.fullmatch(r"msgspec\.((?:json\.)?\w+)", ast.unparse(node))
            uses |= {used[1]} if used and used[1] != "json" else set()
        elif isinstance(node, ast.Import):
            uses |= {f"as {a.asname}" for a in node.names if a.asname and a.name == "msgspec"}
    return {re.sub(r"^structs\..*", "structs", use) for use in uses}


def test_one_module_decodes_into_types(repository: Path) -> None:
    """msgspec alone ends the process where threads decode into a new type at once."""
    for name, tree in modules(repository):
        uses = uses_of_msgspec(tree)
        if name == "core/decoding.py":
            assert "convert" in uses
        else:
            assert uses <= MSGSPEC, f"{name}: {uses - MSGSPEC}: use core/decoding.py"


@pytest.mark.parametrize(
    "source",
    [
        "import msgspec; msgspec.convert(data, Kind)",
        "import msgspec; convert = msgspec.convert",
        "import msgspec; msgspec.json.decode(content, type=Kind).key",
        "import msgspec; msgspec.json.decode(content, **options)",
        "import msgspec; msgspec.json.Decoder(Kind)",
        "import msgspec; msgspec.yaml.decode(content)",
        "import msgspec as m; m.convert(data, Kind)",
        "import msgspec.json as j; j.decode(content, type=Kind)",
        "from msgspec import convert",
        "from msgspec import json",
        "from msgspec.json import decode",
    ],
)
def test_the_rule_on_decoding_sees(source: str) -> None:
    assert uses_of_msgspec(ast.parse(source)) - MSGSPEC


def test_pure_modules_do_not_reach_out(repository: Path) -> None:
    pure = {
        "builds/plan.py",
        "builds/render.py",
        "core/types.py",
        "profiles/lock.py",
        *(f"profiles/{name}.py" for name in ("fit", "choice", "needs")),
        *(f"host/{name}.py" for name in ("model_fit", "model", "gpus/accelerator")),
        *(f"doctor/{name}.py" for name in ("accelerators", "diagnosis")),
    }
    assert pure <= {name for name, _ in modules(repository)}
    edges = {"process", "fetch", "http", "engine", "execute"}
    for name, tree in modules(repository):
        if name in pure:
            assert not {i.rpartition(".")[2] for i in imported(tree)} & edges, name


def test_the_payload_imports_nothing_of_ours(repository: Path) -> None:
    allowed = set(sys.stdlib_module_names) | {
        "tensorflow",
        "torch",
        "zentorch",
        "intel_extension_for_pytorch",
        "__future__",
    }
    for name, tree in modules(repository):
        if not name.startswith("payload/"):
            continue
        for node in nodes(tree):
            if isinstance(node, ast.Import):
                assert {a.name.split(".")[0] for a in node.names} <= allowed, name
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert (node.module or "").split(".")[0] in allowed, name


HEAVY = {
    "docker",
    "torch",
    "requests",
    "urllib3",
    "rich",
    "uv",
    "packaging",
    "cyclonedx",
    "packageurl",
    "pynvml",
    "debian",
}
SLOW = {
    "concurrent",
    "ctypes",
    "email",
    "http",
    "logging",
    "socket",
    "ssl",
    "subprocess",
    "tarfile",
    "tomllib",
}
"""Modules of the standard library that take several milliseconds."""
LATE = {"jinja2", "yaml", "importlib.metadata", "random", "shutil", "tempfile"}
"""What most commands need at some time, and none at its start."""


UNUSED = {"ctypes", "jinja2", "secrets", "socket", "tarfile", "yaml", "zipfile"}
"""What a command in an environment that exists does not need at all."""


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("envbuilder.cli", HEAVY | SLOW | LATE | {"hashlib", "json", "msgspec", "pathlib"}),
        ("envbuilder.commands.render", HEAVY | SLOW | LATE),
        ("envbuilder.commands.lock", HEAVY),
        ("envbuilder.commands.detect", HEAVY | {"jinja2", "yaml"}),
        ("envbuilder.commands.check", (HEAVY - {"packaging"}) | {"jinja2", "yaml"}),
        (
            "envbuilder.commands.run",
            HEAVY | {"ctypes", "jinja2", "secrets", "socket", "tarfile", "yaml", "zipfile"},
        ),
        ("envbuilder.commands.sbom", HEAVY),
        ("envbuilder.builds.attestations", HEAVY),
    ],
)
def test_start_imports_nothing_heavy(module: str, forbidden: set[str], repository: Path) -> None:
    """Follows top-level imports of our own modules, without running anything."""
    trees = dict(modules(repository))
    seen: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        path = name.partition(".")[2].replace(".", "/")
        tree = trees.get(f"{path}.py") or trees.get(f"{path}/__init__.py".removeprefix("/"))
        for node in tree.body if tree else ():
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = imported(ast.Module(body=[node], type_ignores=[]))
                assert not {n.split(".")[0] for n in names} & forbidden, f"{name} imports {names}"
                todo += [n for n in names if n.startswith("envbuilder")]


def test_no_registry_host_is_named(repository: Path) -> None:
    """The default package index and Debian mirror are whatever pip, uv and apt are set up with."""
    hosts = [
        "//" + "py" + "pi.org",
        "files.py" + "thonhosted",
        "deb." + "debian.org",
        "registry.np" + "mjs",
    ]
    for folder in ("envbuilder", "profiles", "templates", "docs", "tests/golden"):
        for path in (repository / folder).rglob("*"):
            if path.is_file() and path.suffix not in {".gz", ".pyc"}:
                text = path.read_text(errors="replace")
                assert not [h for h in hosts if h in text], path


def test_unit_tests_mirror_the_rooms(repository: Path) -> None:
    """A test stands where the modules stand that it imports; the repository's own stand apart."""
    folder = repository / "tests/unit"
    lost = []
    for path in sorted(folder.rglob("test_*.py")):
        place = path.parent.relative_to(folder)
        if place.parts in {(), ("repository",)}:
            continue
        room = ".".join(("envbuilder", *place.parts))
        names = imported(ast.parse(path.read_text()))
        if (
            place.parts == ("commands",)
            and {"envbuilder.cli", "tests.support.command_line"} & names
        ):
            continue
        if not any(name == room or name.startswith(f"{room}.") for name in names):
            lost.append(f"{path.relative_to(folder)} imports nothing of {room}")
    assert lost == []


def test_integration_tests_stand_where_their_need_is_named(repository: Path) -> None:
    """Each folder of them is one that CI requires (and a marker, else collecting fails).

    There is no GPU in CI: `tools/on_gpu.sh` runs those.
    """
    text = (repository / ".ci/run").read_text()
    required = ",".join(re.findall(r"ENVBUILDER_REQUIRE\+?=(\S+)", text))
    folder = repository / "tests/integration"
    needs = {p.parent.relative_to(folder).as_posix() for p in folder.rglob("test_*.py")} - {"."}
    assert needs - {"gpu"} <= set(required.split(","))


def test_every_unit_test_is_collected(request: pytest.FixtureRequest, repository: Path) -> None:
    """pytest passes over folders of some names unless it is told not to."""
    ignored = request.config.getini("norecursedirs")
    folders = {p.parent.name for p in (repository / "tests").rglob("test_*.py")}
    assert not [f for f in folders if any(fnmatch(f, pattern) for pattern in ignored)]
