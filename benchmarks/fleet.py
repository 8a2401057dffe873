"""How long the results of many nodes take: reading and judging them, their page, and drawing it.

    python benchmarks/fleet.py [ROUNDS] [--report JSON] [--browser chromium]

Each node's result is a file made of a real report, with a faulty one now and then. Medians of the
rounds, in which the sizes alternate. `drawn` is the time from the start of loading until the
browser has painted the page, laid out as a whole. Each round has a new browser, which begins with
the largest. `a whole run` is the CPU time of `fleet verify` itself, from plan to table: its jobs
are submitted to a recorded scheduler, followed, collected and judged over some minutes of a clock
that does not wait. Goals for 1,000 nodes: read and judged within 2 s, drawn within 1 s; a whole run
20 ms a node.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from envbuilder.core import console, files  # noqa: E402
from envbuilder.fleet import (  # noqa: E402
    drift,
    folder as folders,
    judge,
    show,
)
from envbuilder.fleet.run import Run  # noqa: E402
from tests.support import fleets as recorded  # noqa: E402
from tests.support.browser import Browser  # noqa: E402
from tests.support.fleet_runs import RUN, Fleet, earlier, merged  # noqa: E402

SIZES = (100, 300, 1000)
DRAWN = """
new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => {
  document.documentElement.getBoundingClientRect();
  const loaded = performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd;
  done([loaded, performance.now()]);
})))
"""


class Nodes:
    """The files of a fleet's results in a folder."""

    def __init__(self, folder: Path, report: Path, count: int) -> None:
        self._fleet = Fleet(report, count)
        self.files = [(p, job, folder / f"{p.node}.json") for p, job, _ in self._fleet.results]
        folder.mkdir()
        for (_, _, file), (_, _, content) in zip(self.files, self._fleet.results, strict=True):
            file.write_bytes(content)
        self.bytes = sum(file.stat().st_size for _, _, file in self.files)
        self.page = folder / "fleet.html"
        self.earlier = earlier(*Fleet(report, count, seed=2).summary().entries)

    def measure(self) -> dict[str, float]:
        """Return the seconds of each step; the page is written at the end."""
        started = time.perf_counter()
        judged = [
            judge.examined(promise, RUN, job, files.read(file, judge.LARGEST))
            for promise, job, file in self.files
        ]
        summary = merged([*judged, *self._fleet.silent])
        judging = time.perf_counter()
        compared = drift.compare(self.earlier, summary)
        drifted = time.perf_counter()
        text = show.page(summary, compared)
        rendered = time.perf_counter()
        self.page.write_text(text, encoding="utf-8")
        return {
            "read and judged": judging - started,
            "compared": drifted - judging,
            "page": rendered - drifted,
        }


def whole_run(folder: Path, report: Path, count: int) -> float:
    """Return the seconds of CPU that a run of some nodes takes, without the nodes."""
    sent = json.loads(report.read_text())
    names = [f"n{number}" for number in range(count)]
    plan = recorded.plan(*(recorded.promise(name, sent["profile"]) for name in names))
    script = {
        name: {
            0: "PENDING",
            number % 60: "RUNNING",
            90 + number % 240: recorded.result(name, "JOB", sent),
            91 + number % 240: "COMPLETED",
        }
        for number, name in enumerate(names)
    }
    folder.mkdir()
    scheduler = recorded.RecordedScheduler(folder, script)
    started = time.process_time()
    folders.create(folder, plan, dict.fromkeys(names, "#!/bin/bash\n"))
    progress = console.PlainProgress(lambda line: None)
    Run(plan, folder, scheduler, progress, now=scheduler.now, wait=scheduler.wait).finish()
    seconds = time.process_time() - started
    shutil.rmtree(folder)
    return seconds


def drawing(browser: Browser, file: Path, width: int) -> dict[str, float]:
    """Return the seconds until the browser has drawn a page."""
    browser.show(file, width)
    answer = browser.call(
        "Runtime.evaluate", expression=DRAWN, returnByValue=True, awaitPromise=True
    )
    loaded, drawn = answer["result"]["value"]
    return {f"DOM loaded, {width} px": loaded / 1000, f"drawn, {width} px": drawn / 1000}


def main() -> None:
    """Print the medians as a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    reports = ROOT / "docs" / "evidence" / "reports"
    parser.add_argument("--report", type=Path, default=reports / "zendnn.json")
    parser.add_argument("--browser", default="chromium")
    given = parser.parse_args()
    program = shutil.which(given.browser)
    taken: dict[int, dict[str, list[float]]] = {size: {} for size in SIZES}
    with tempfile.TemporaryDirectory(prefix="fleet-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        fleets = {n: Nodes(folder / str(n), given.report, n) for n in SIZES}
        for _ in range(given.rounds):
            for size, fleet in fleets.items():
                for name, value in fleet.measure().items():
                    taken[size].setdefault(name, []).append(value)
                spent = whole_run(folder / "run", given.report, size)
                taken[size].setdefault("a whole run", []).append(spent)
        for _ in range(given.rounds if program else 0):
            browser = Browser(str(program), Path(tempfile.mkdtemp(dir=folder)))
            try:
                browser.start()
                for size, fleet in reversed(fleets.items()):
                    for width in (360, 1280):
                        for name, value in drawing(browser, fleet.page, width).items():
                            taken[size].setdefault(name, []).append(value)
            finally:
                browser.close()
        sizes = ", ".join(f"{n}: {f.bytes / 1e6:.1f} MB" for n, f in fleets.items())
        pages = ", ".join(f"{n}: {f.page.stat().st_size / 1e3:.0f} kB" for n, f in fleets.items())
    print(f"load {os.getloadavg()[0]:.1f}; results {sizes}; pages {pages}\n")
    print(f"| | {' | '.join(f'{size:,} nodes' for size in SIZES)} |")
    print(f"| --- |{' --- |' * len(SIZES)}")
    for name in taken[SIZES[-1]]:
        cells = [f"{1000 * statistics.median(taken[n][name]):.0f} ms" for n in SIZES]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
