"""Origins of the code in this process: of every module and every mapped library.

A module or framework library from outside the environment is foreign: the environment under
verification then did not do the work. Drivers belong to the machine and are only listed. All
decisions are pure functions of what ``look`` observed.
"""

from __future__ import annotations

import ctypes
import os
import re
import site
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    Optional,
    Pattern,
    Sequence,
    Tuple,
)

from .machine.accelerators import ACCELERATORS
from .machine.threads import read_text
from .report import PASSED, WARNING, require_none
from .start import DRIVER_FOLDERS, Start, below, environment, guarded

FRAMEWORKS = frozenset(
    {
        "torch",
        "torchgen",
        "functorch",
        "torchvision",
        "torchaudio",
        "triton",
        "pytorch_triton",
        "intel_extension_for_pytorch",
        "zentorch",
        "numpy",
        "nvidia",
        "cuda",
        "pytorch_triton_xpu",
        # TensorFlow imports Keras whether it is used or not, and gets bfloat16 from ml_dtypes.
        "tensorflow",
        "keras",
        "ml_dtypes",
        "zentf",
    }
)
"""Modules that determine what a training does."""

FRAMEWORK_LIBRARY = re.compile(
    r"lib(torch|c10|caffe2|shm\.so|zentorch|zendnn|amdZenDNN|intel-ext-pt|onednn|dnnl|aoti_"
    r"|tensorflow|_pywrap_tensorflow|amdcpu_plugin)"
)
"""The framework's own libraries: never allowed from outside."""


def _with_accelerators(common: str, field: str) -> Pattern[str]:
    """Return a pattern that matches the common libraries and those of each accelerator.

    ``common`` is the pattern for the common libraries. ``field`` is the attribute of an accelerator
    that contains the pattern for its libraries.
    """
    own = [str(getattr(row, field)) for row in ACCELERATORS.values() if getattr(row, field)]
    return re.compile("lib({})".format("|".join([common, *own])))


RUNTIME_LIBRARY = _with_accelerators(
    r"gomp|iomp5|omp\.so|mkl_|tbb|mpi\.so|magma|openblas|tcmalloc|jemalloc|mimalloc", "runtimes"
)
"""Runtimes that a framework ships. The system may have its own (a compiler's OpenMP), but not in
place of the environment's."""

DRIVER = _with_accelerators(
    r"OpenCL\.|drm|dxcore|d3d12|vdpau|va(-drm)?\.so|mlx5|ibverbs|gdrapi", "drivers"
)
"""Libraries that come with a driver, whichever program uses them."""

SYSTEM_FOLDERS = (
    # ld.so(8): the trusted folders and their multiarch ones, then those of Debian's ld.so.conf.
    "/lib",
    "/lib64",
    "/lib32",
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib32",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/nix/store",
    "/gnu/store",
    "/run/current-system",
    "/opt/homebrew",
    "/usr/local/Cellar",
    "/System",
    "/Library/Apple",
)
"""Folders in which systems keep their libraries."""

PACKAGES = ("site-packages", "dist-packages")
"""Names of the folders of packages."""

WRITTEN = "_remote_module_non_scriptable"
"""A module of torch that no wheel has."""

LISTED = 40
"""Maximum number of files of one kind that a report lists."""


@dataclass(frozen=True)
class Loaded:
    """The code that a process has loaded, and the folders from which it may be loaded.

    ``libraries`` are the files whose code is mapped, or None if the system does not list them. The
    kernel's suffix " (deleted)" is kept.

    ``modules`` maps names to files. ``linked`` contains the packages whose files are links out of
    the environment. It maps their names to the real file and, if that file is in another
    environment, to that environment's folder. ``roots`` are the folders of the environment and of
    the interpreter's library. ``closed`` are folders within the roots that the interpreter does not
    use. ``base`` contains the interpreter's own libraries. ``preloaded`` is the content of
    ``/etc/ld.so.preload``.
    """

    modules: Mapping[str, str]
    libraries: Optional[Sequence[str]]
    roots: Sequence[str]
    closed: Sequence[str] = ()
    base: Sequence[str] = ()
    preloaded: str = ""
    linked: Mapping[str, Tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """Problems, drivers in use, and outside code that is not a problem."""

    problems: List[str]
    drivers: List[str]
    outside: List[str]


def check(start: Start, run: Dict[str, Any], framework: str, cache: str = "") -> Tuple[str, str]:
    """Evaluate the origins of all loaded code, and return the check's status and detail.

    The report's ``origins`` are added to ``run``. ``cache`` is the folder of code that this process
    compiled itself, or empty if it compiled none.
    """
    loaded = look(cache)
    judged = judge(loaded, _own_libraries)
    run.update(
        as_found=start.as_found,
        isolated=bool(sys.flags.isolated),
        prefix=sys.prefix,
        base_prefix=sys.base_prefix,
        executable=sys.executable,
        framework=loaded.modules.get(framework),
        drivers=judged.drivers[:LISTED],
        outside=judged.outside[:LISTED],
    )
    if start.as_found:
        run.update(variables=guarded(environment()), foreign=judged.problems[:LISTED])
        named = "; ".join(judged.problems[:3]) or "everything lies below the interpreter's prefix"
        return WARNING, f"as found, not judged: {named}"
    require_none(judged.problems[:5])
    text = f"{len(loaded.modules)} modules, all of {sys.prefix} or the interpreter's library"
    if loaded.libraries is None:
        return PASSED, f"{text}; libraries were not checked: this system does not list them"
    text += f"; {len(loaded.libraries)} libraries"
    if judged.drivers:
        text += f"; drivers: {', '.join(judged.drivers)}"
    if judged.outside:
        return WARNING, f"from outside the environment and the system: {'; '.join(judged.outside)}"
    return PASSED, text


def require(start: Start, cache: str = "") -> None:
    """Raise CheckError if this process runs foreign code, unless it is taken as found.

    This is used in processes that do not write a report.
    """
    if not start.as_found:
        require_none(judge(look(cache), _own_libraries).problems[:5])


def failing(start: Start) -> bool:
    """Return whether any code loaded so far is foreign, which makes training pointless.

    A process that is taken as found never fails.
    """
    return not start.as_found and bool(judge(look(), _own_libraries).problems)


def judge(loaded: Loaded, names: Callable[[], Iterable[str]]) -> Judgement:
    """Return the problems, the drivers and the harmless outside code in what was loaded.

    ``names`` returns the names of the environment's own libraries. It is called only if needed.
    """
    problems = _foreign_modules(loaded)
    drivers = []
    outside = []
    for name, (_, owner) in loaded.linked.items():
        if owner:
            problems.append(f"{name} is that of another environment, {owner}")
    stored = [file for file, owner in loaded.linked.values() if not owner]
    stores = [os.path.dirname(f) for f in stored if f.endswith("/__init__.py")]  # noqa: PTH120
    if stored:
        outside.append(f"{len(stored)} packages by links, such as {stored[0]}")
    stems: Optional[FrozenSet[str]] = None
    for path in loaded.libraries or ():
        name = Path(path).name
        if _inside(path, (*loaded.roots, *loaded.base, *stores)):
            continue
        system = _inside(path, SYSTEM_FOLDERS)
        if FRAMEWORK_LIBRARY.match(name):
            problems.append(f"{path}: the framework's library is not the environment's")
        elif RUNTIME_LIBRARY.match(name):
            stems = frozenset(map(stem, names())) if stems is None else stems
            if stem(name) in stems:
                problems.append(f"{path}: loaded in place of the environment's own {stem(name)}")
            elif not system:
                problems.append(f"{path}: a runtime of the framework from outside the environment")
        elif DRIVER.match(name) or _inside(path, DRIVER_FOLDERS):
            drivers.append(path)
        elif not system:
            outside.append(path)
    preloaded = filter(None, re.split(r"[:\s]+", loaded.preloaded))
    outside += [f"{entry} (/etc/ld.so.preload)" for entry in preloaded]
    return Judgement(problems, drivers, outside)


def _foreign_modules(loaded: Loaded) -> List[str]:
    """Return a sentence for each foreign module, with the framework's modules first.

    The modules of a foreign package are not listed separately.
    """
    foreign = {
        name: file
        for name, file in loaded.modules.items()
        if not _inside(file, loaded.roots) or _inside(file, loaded.closed)
    }
    ordered = sorted(foreign, key=lambda name: (name.partition(".")[0] not in FRAMEWORKS, name))
    return [
        f"{name} was imported from {foreign[name]}, which is not part of the environment"
        for name in ordered
        if "." not in name or name.partition(".")[0] not in foreign
    ]


def _inside(path: str, roots: Iterable[str]) -> bool:
    return any(below(path, root) for root in roots)


def stem(name: str) -> str:
    """Return a library's name up to the first part of its version, such as "libgomp.so.1"."""
    match = re.match(r"(.+?\.so(?:\.[0-9]+)?)", name)
    return match.group(1) if match else name


def look(cache: str = "") -> Loaded:
    """Return what this process has loaded. Code compiled into ``cache`` is not foreign."""
    roots, closed = _places(cache)
    modules = dict(_modules())
    return Loaded(
        modules,
        _libraries(),
        roots,
        closed,
        () if _shared(sys.base_prefix) else (sys.base_prefix,),
        re.sub("#.*", "", read_text(Path("/etc/ld.so.preload"))),
        dict(_linked(modules, (sys.prefix, sys.base_prefix, *roots))),
    )


def _linked(
    modules: Mapping[str, str], roots: Sequence[str]
) -> Iterable[Tuple[str, Tuple[str, str]]]:
    """Yield each package whose file is a link to a place outside the environment.

    Such a place may be a package manager's store. The package's name is yielded with the real file
    and the environment that contains this file, or "" if no environment does. Package folders do
    not count as roots, because they may be links themselves.
    """
    real_roots = [os.path.realpath(root) for root in roots if Path(root).name not in PACKAGES]
    for name, file in modules.items():
        if "." in name:
            continue
        real = os.path.realpath(file)
        if real != file and not any(below(real, root) for root in real_roots):
            above = (str(folder) for folder in Path(real).parents)
            yield name, (real, next(filter(_is_environment, above), ""))


def _is_environment(folder: str) -> bool:
    return any(os.path.exists(f"{folder}/{name}") for name in ("pyvenv.cfg", "conda-meta"))  # noqa: PTH110


def _modules() -> Iterable[Tuple[str, str]]:
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            file = getattr(spec, "origin", None) if getattr(spec, "has_location", False) else None
        # torch.ops and the like have a bare name as their ``__file__``; no file defines them.
        if isinstance(file, str) and (Path(file).is_absolute() or spec is not None):
            yield name, str(Path(file).absolute())


def _libraries() -> Optional[List[str]]:
    if sys.platform == "darwin":
        return _dyld_libraries()
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    return parse_maps(text)


def parse_maps(text: str) -> List[str]:
    """Return the files in ``/proc/self/maps`` from which code is mapped, in order and once each."""
    mapped = r"^\S+ \S*x\S* \S+ \S+ \S+ +(?!/memfd:|/dev/|/SYSV)(/.*)$"
    names = dict.fromkeys(re.findall(mapped, text, re.MULTILINE))
    # The kernel escapes a line feed in a name as \012.
    return [name.replace("\\012", "\n") for name in names]


def _dyld_libraries() -> Optional[List[str]]:
    # dyld(3): the images of this process, starting with the program itself.
    try:
        system = ctypes.CDLL(None)
        name = system._dyld_get_image_name
        name.restype = ctypes.c_char_p
        paths = [*map(name, range(system._dyld_image_count()))]
    except (OSError, AttributeError):
        return None
    return [os.fsdecode(path) for path in paths if path]


def _places(cache: str) -> Tuple[List[str], List[str]]:
    """Return the folders that code may be loaded from, and the closed folders within them.

    The former are those of the environment, the interpreter and the payload. The interpreter does
    not use the closed folders. ``cache`` is trusted, unlike a cache that one of the caller's
    variables specifies.
    """
    library = Path(os.__file__).parent
    on_path = {*map(os.path.normpath, sys.path)}
    # Package folders of a system interpreter: only those that it uses when isolated.
    packages = [folder for folder in site.getsitepackages() if os.path.normpath(folder) in on_path]
    below_it = [str(library / name) for name in PACKAGES]
    program = Path(sys.argv[0] if sys.argv[0].endswith(".pyz") else __file__)
    roots = [
        *([] if _shared(sys.prefix) else [sys.prefix]),
        str(library),
        str(library / "lib-dynload"),
        *packages,
        os.path.realpath(sys.executable),
        str(program.absolute() if program.suffix == ".pyz" else program.parent),
        *([cache] if cache else []),
        *_written_by_torch(),
    ]
    return roots, [folder for folder in below_it if os.path.normpath(folder) not in on_path]


def _written_by_torch() -> List[str]:
    """Return the file of a module that versions of torch up to 2.9 write and import themselves.

    torch writes it while being imported, to a folder that it has just made for this process alone,
    so only that file counts as the environment's. The list is empty if there is no such module.
    """
    writer = sys.modules.get("torch.distributed.nn.jit.instantiator")
    folder = getattr(writer, "INSTANTIATED_TEMPLATE_DIR_PATH", "")
    return [str(Path(folder, f"{WRITTEN}.py"))] if folder else []


def _shared(prefix: str) -> bool:
    """Return whether a prefix is the system's, which contains far more than one environment."""
    return os.path.realpath(prefix) in {"/", "/usr", "/usr/local", "/opt/homebrew"}


def _own_libraries() -> List[str]:
    """Return the names of all shared libraries below the environment's prefix."""
    names: List[str] = []
    for _, _, files in os.walk(sys.prefix):
        names += [name for name in files if ".so" in name or ".dylib" in name]
    return names
