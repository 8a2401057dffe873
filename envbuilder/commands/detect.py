"""`envbuilder detect`: show this machine's hardware and the profile that fits it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from envbuilder.commands.options import (
    FOLDER,
    json_option,
    load_settings,
    require_one_host,
    root_option,
    target_host_option,
)
from envbuilder.core import console, types
from envbuilder.core.errors import Hint
from envbuilder.core.text import bandwidth, gibibytes
from envbuilder.host import model_fit, probe, record as recorder
from envbuilder.host.accelerators import ACCELERATORS
from envbuilder.profiles import fit
from envbuilder.profiles.choice import Choice, choose_best, grouped, unserved, workarounds
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.library import Library
from envbuilder.profiles.releases import Build, ranges
from envbuilder.project import variants

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envbuilder.host.gpus.accelerator import Level
    from envbuilder.host.model import Containers, Cpu, Gpu, Host, Memory
    from envbuilder.profiles.profile import Profile

_MARKS = {"fits": ("✓", "green"), "warnings": ("!", "yellow"), "no": ("✗", "dim")}


@click.command("detect")
@click.option("--full", is_flag=True, help="Also run commands and slow queries.")
@root_option
@target_host_option
@click.option(
    "--model",
    metavar="SIZE",
    help="Also report whether a language model of this size would fit, such as 70B.",
)
@click.option(
    "--quant", metavar="NAME", default="q4", help="Weight format of that model.  [default: q4]"
)
@click.option(
    "--record",
    type=FOLDER,
    metavar="DIR",
    help=(
        "Record everything that detection reads, without personal data, to replay with --root"
        " elsewhere."
    ),
)
@click.option(
    "--framework",
    type=click.Choice(types.FRAMEWORKS),
    help="Choose among the profiles of this framework. Without it: the project's, or torch.",
)
@json_option
def command(
    full: bool,
    root: Path,
    target_host: Path | None,
    record: Path | None,
    model: str | None,
    quant: str,
    framework: types.Framework | None,
    as_json: bool,
) -> None:
    """Show this machine's hardware, the profile chosen for it, and why the others are not.

    Only reads system files, without any framework or vendor tool; starts no program without --full.

    \b
    Examples:
      envbuilder detect
      envbuilder detect --framework jax
      envbuilder detect --model 70B --quant q4
      envbuilder detect --json > machine.json
      envbuilder detect --target-host machine.json
      envbuilder detect --record machine && tar czf machine.tar.gz machine
    """
    if record is not None:
        if root != Path("/") or target_host is not None or model is not None:
            raise click.UsageError(
                "--record records only this machine and cannot be combined with --root,"
                " --target-host or --model"
            )
        _record(record, full=full, as_json=as_json)
        return
    require_one_host(root, target_host)
    requested = model_fit.parse_model(model) if model is not None else None
    model_fit.bits_of(quant)
    library = variants.library(load_settings())
    if framework not in {None, library.framework[0]}:
        # The project's profiles are variants for its own framework alone.
        library = Library(library.folders)
    if root != Path("/"):
        host = probe.host(root, full=full)
    else:
        host = probe.target(target_host, full=full)
    candidates = library.candidates(framework)
    choice = choose_best(candidates, host, locks=library.locks(candidates))
    chosen = next((p for p in candidates if p.name == choice.profile), None)
    pools = model_fit.pools(host, ACCELERATORS[chosen.accelerator].vendor if chosen else None)
    estimate = model_fit.estimate(requested, quant, pools) if requested else None
    if as_json:
        releases: dict[str, list[dict[str, str]]] = {}
        for name, rated in _served(host, candidates):
            releases[name] = []
            for build, level in rated:
                releases[name].append(
                    {"release": build.release, "build": build.build, "fits": fit.VERDICTS[level]}
                )
        console.data(
            {
                "schema": 1,
                "host": msgspec.to_builtins(host),
                "framework": framework or library.framework[0],
                "profile": choice.profile,
                "reason": choice.reason,
                "fits": msgspec.to_builtins(choice.fits),
                "releases": releases,
                "memory": msgspec.to_builtins(pools),
                "model": msgspec.to_builtins(estimate),
            }
        )
        return
    memory, *largest = _room(pools)
    advice = filter(None, (library.advice(p, host) for p in unserved(candidates, host, choice)))
    opt_in = {p.name for p in candidates if p.opt_in}
    models = (memory, *(model_fit.sentences(estimate) if estimate else largest))
    used = framework or library.framework[0]
    lines = (*advice, _frameworks(library, framework), *_releases(used, host, candidates), *models)
    _print(host, choice, opt_in, lines)


def _frameworks(library: Library, requested: types.Framework | None) -> str:
    """Return a line that names the framework in use and says how to select another one."""
    name, says_so = library.framework
    reason = f", because {says_so}" if says_so else ""
    if requested:
        name = requested
        reason = ""
    others = ", ".join(f"`--framework {other}`" for other in types.FRAMEWORKS if other != name)
    return f"framework: {name}{reason}; others: {others}"


def _served(
    host: Host, candidates: Sequence[Profile]
) -> Iterator[tuple[str, tuple[tuple[Build, Level], ...]]]:
    """Yield each kind of GPU in the host, together with the framework's builds for that kind.

    Each build is paired with a level that says how well the build fits.
    """
    for name, row in ACCELERATORS.items():
        profile = next((p for p in candidates if p.accelerator == name), None)
        if profile and row.vendor and any(gpu.vendor == row.vendor for gpu in host.gpus):
            yield name, fit.serving(profile, host)


def _releases(
    framework: types.Framework, host: Host, candidates: Sequence[Profile]
) -> Iterator[str]:
    """Yield a line for each kind of GPU in the host that lists the releases with a build for it."""
    for name, rated in _served(host, candidates):
        works = [build.release for build, level in rated if level == "note"]
        may = [build.release for build, level in rated if level in {"note", "warning"}]
        verb = "work" if works else "may work"
        if may:
            title = FRAMEWORKS[framework].title
            words = ranges(framework, works or may)
            yield f"releases of {title} that {verb} here ({name}): {words}"


def _record(folder: Path, *, full: bool, as_json: bool) -> None:
    """Record everything that detection reads on this machine as files in `folder`.

    Then print how many files were recorded.
    """
    files = recorder.write(folder, probe.fetch(Path("/"), full=full), recorder.this_machine())
    if as_json:
        console.data({"schema": 1, "recording": str(folder), "files": files})
        return
    console.result(f"{folder}: recorded {files} files of /proc, /sys, /dev and drivers' answers")
    console.result(
        "Left out or replaced: serial numbers, UUIDs, MAC addresses, names of the machine and of"
        " users. Check the files before you send them."
    )
    console.hints([Hint("To decide from the recording", ("detect", "--root", str(folder)))])


def _room(pools: tuple[model_fit.Pool, ...]) -> tuple[str, ...]:
    """Return lines about the memory for models: its size, its speed, and how large a model fits.

    This is the memory of the accelerators or, if the host has none, the main memory.
    """
    first = [pool for pool in pools if pool.kind == pools[0].kind]
    counts = Counter(pool.name for pool in first)
    names = " and ".join(f"{n} × {name}" if n > 1 else name for name, n in counts.items())
    sizes = [pool.usable_bytes for pool in first if pool.usable_bytes]
    if len(sizes) < len(first):
        return (f"memory for models: size unknown ({names})",)
    largest = [
        f"{8 * sum(sizes) / model_fit.bits_of(quant) / 1e9:.1f}B at {quant}"
        for quant in ("bf16", "q4")
    ]
    rates = [pool.bandwidth for pool in first if pool.bandwidth]
    speed = bandwidth(min(rates)) if len(rates) == len(first) else "speed unknown"
    suffix = " each" if len(first) > 1 and len(rates) == len(first) else ""
    return (
        f"memory for models: {_gib(sum(sizes))}, {speed}{suffix} ({names})",
        f"  weights of up to {largest[0]} or {largest[1]}; more with --model SIZE",
    )


def _print(host: Host, choice: Choice, opt_in: set[str], lines: tuple[str, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    out: Any = console.rich_console()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    for label, value in facts(host):
        table.add_row(label, Text(value))
    out.print(table)
    out.print()
    fits = Table.grid(padding=(0, 2))
    aside = [f for f in choice.fits if f.impossible or (f.verdict == "no" and f.profile in opt_in)]
    shown = [fit for fit in choice.fits if fit not in aside]
    against = grouped(fit for fit in shown if fit.verdict != "fits")
    for group in sorted(
        [*against, *([one] for one in shown if one.verdict == "fits")],
        key=lambda group: shown.index(group[0]),
    ):
        mark, style = _MARKS[group[0].verdict]
        names = ", ".join(fit.profile for fit in group)
        fits.add_row(Text(mark, style=style), names, Text("; ".join(group[0].reasons) or "fits"))
    if aside:
        names = ", ".join(fit.profile for fit in aside)
        mark, style = _MARKS["no"]
        fits.add_row(Text(mark, style=style), names, Text("not for this machine (see --json)"))
    out.print(fits)
    out.print()
    chosen = f"profile {choice.profile}" if choice.profile else "no profile"
    out.print(Text(f"→ {chosen}: {choice.reason}", style="bold"))
    for line in workarounds(choice):
        out.print(Text(f"  {line}"))
    for line in lines:
        out.print(Text(line))


# A host in words


_UNKNOWN = "unknown"
_SETS = {
    "AMX": ("amx_tile",),
    "AVX-512": ("avx512f",),
    "VNNI": ("avx512_vnni", "avx_vnni"),
    "bf16": ("avx512_bf16", "bf16", "svebf16", "amx_bf16"),
    "fp16": ("avx512_fp16", "asimdhp"),
    "AVX2": ("avx2",),
    "SVE2": ("sve2",),
    "SVE": ("sve",),
    "NEON": ("asimd",),
}


def facts(host: Host) -> Iterator[tuple[str, str]]:
    """Yield pairs of a label and a value that describe a host, the most often needed ones first."""
    yield "system", _system(host)
    yield "processor", _processor(host.cpu)
    yield "cores", _cores(host.cpu)
    yield "memory", _memory(host.memory)
    for number, gpu in enumerate(host.gpus):
        yield f"GPU {number}", _gpu(gpu)
    if not host.gpus:
        yield "GPU", "none found"
    yield "containers", _containers(host.containers)
    for note in host.notes:
        yield "note", note


def _system(host: Host) -> str:
    surroundings = []
    if host.wsl:
        surroundings.append("WSL")
    if host.container:
        surroundings.append("container")
    if host.rosetta:
        surroundings.append("Python under Rosetta")
    name = host.os_version or _UNKNOWN
    if host.os == "macos":
        name = f"macOS {name}"
    kernel = host.kernel and f"kernel {host.kernel}"
    text = ", ".join(filter(None, (name, host.machine, kernel, host.libc)))
    if surroundings:
        text += f" ({', '.join(surroundings)})"
    return text


def _processor(cpu: Cpu) -> str:
    text = cpu.model_name or cpu.vendor or _UNKNOWN
    if cpu.generation and cpu.generation not in text:
        text += f" ({cpu.generation})"
    if cpu.flags is None:
        return f"{text}; instructions {_UNKNOWN}"
    sets = [label for label, flags in _SETS.items() if set(flags) & set(cpu.flags)]
    if sets:
        text += f"; {', '.join(sets)}"
    return text


def _cores(cpu: Cpu) -> str:
    counts = [_counted(cpu.physical, "core"), _counted(cpu.logical, "CPU")]
    if (cpu.sockets or 1) > 1:
        counts.append(f"{cpu.sockets} sockets")
    if (cpu.numa_nodes or 1) > 1:
        counts.append(f"{cpu.numa_nodes} NUMA nodes")
    if cpu.l3_bytes:
        counts.append(f"{cpu.l3_bytes / 2**20:.0f} MiB L3")
    usable = ""
    if cpu.affinity:  # macOS has none
        quota = cpu.quota and f", quota {cpu.quota:g}"
        usable = f"{cpu.affinity} usable{quota or ''} "
    return f"{', '.join(counts)}; {usable}→ {_counted(cpu.threads, 'thread')}"


def _counted(number: int | None, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    return f"{number or _UNKNOWN} {what}s"


def _memory(memory: Memory) -> str:
    parts = [_gib(memory.total_bytes)]
    if memory.limit_bytes is not None:
        parts.append(f"{_gib(memory.limit_bytes)} allowed here")
    if memory.kind:
        speed = memory.speed and f"-{memory.speed}"
        parts.append(f"{memory.kind}{speed or ''}")
    if memory.channels:
        of = memory.channels_available and f" of {memory.channels_available}"
        parts.append(f"{memory.channels}{of or ''} channels")
    if memory.bandwidth:
        parts.append(bandwidth(memory.bandwidth))
    else:
        detail = memory.detail and f" ({memory.detail.rstrip('.')})"
        parts.append(f"speed {_UNKNOWN}{detail}")
    return ", ".join(parts)


def _gpu(gpu: Gpu) -> str:
    parts = [f"{gpu.name}: {gpu.state}"]
    if gpu.vendor == "unknown":
        parts = [_UNKNOWN]
    if gpu.memory_kind == "shared":
        parts.append("shares main memory")
        if gpu.state == "usable":
            parts.append(f"{_gib(gpu.usable_bytes)} usable")
    elif gpu.memory_kind == "dedicated" or gpu.memory_bytes:
        parts.append(_gib(gpu.memory_bytes))
    if gpu.bandwidth:
        parts.append(bandwidth(gpu.bandwidth))
    if gpu.sm:
        parts.append(f"SM {gpu.sm}")
    if gpu.driver_version:
        parts.append(f"driver {gpu.driver_version}")
    if gpu.mig:
        parts.append("MIG")
    text = ", ".join(parts)
    if gpu.detail:
        text += f" – {gpu.detail}"
    return text


def _containers(containers: Containers) -> str:
    parts = []
    for engine in containers.engines:
        name = engine.name if engine.name != _UNKNOWN else engine.socket
        status = engine.version or ""
        if engine.state != "usable":
            status = f"({engine.detail or _UNKNOWN})"
        parts.append(f"{name} {status}".strip())
    if containers.buildx:
        parts.append(f"buildx {containers.buildx_version or ''}".strip())
    parts += containers.runtimes
    return ", ".join(parts) or "no engine found"


def _gib(size: int | None) -> str:
    """Format a number of bytes in GiB, or return "unknown" if the number is None."""
    if size is not None:
        return gibibytes(size)
    return _UNKNOWN
