"""Which checks of a verification see which planted fault, and which of them alone?

    python benchmarks/checks.py PREFIX FRAMEWORK [FAULT …] >> benchmarks/checks.csv

PREFIX is a native environment (`build --profile cpu --backend venv`), FRAMEWORK torch, jax or
tensorflow. Each fault of `tests/integration/FRAMEWORK/sabotage` is planted into a copy of it, which
is verified on an epoch of the subset, or two. All checks judge, whatever another one found: those
of the payload, and outside of the environment the report's consistency, its times, the blind test,
the repeated steps and the repeated answers. A row names those that failed. A check is needed if a
row has no other.

Not here: faults of which a payload dies or is replaced, of files changed after the build, of
extensions and of compile backends; one check each sees them.
"""

from __future__ import annotations

import atexit
import csv
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
SABOTAGES = CHECKOUT / "tests/integration"
FOUND = "ENVBUILDER_CHECKS_FOUND"
"""The variable with the file that receives the names of the checks that failed."""
CPU = {"torch": "cpu", "jax": "jax-cpu", "tensorflow": "tensorflow-cpu"}
IMPORTED = {"torch": "torch", "jax": "jax.numpy, jax.profiler", "tensorflow": "tensorflow, keras"}
OTHER_PROFILES = {
    ("torch", "asked_for_the_cpu"): "cuda",
    ("torch", "cuda_that_is_not_there"): "cuda",
    ("torch", "device_that_fails_at_first_use"): "mps",
    ("torch", "device_that_is_the_cpu"): "mps",
    ("jax", "device_that_is_the_cpu"): "jax-cuda",
    ("jax", "gpu_that_is_named_so"): "jax-cuda",
    ("jax", "gpu_that_is_not_there"): "jax-cuda",
    ("tensorflow", "cuda_that_is_not_there"): "tensorflow-cuda",
    ("tensorflow", "device_that_is_the_cpu"): "tensorflow-cuda",
    ("tensorflow", "gpu_that_does_not_compute"): "tensorflow-cuda",
}
OTHER_TESTS = {
    "arrays_that_come_back_changed",
    "arrays_that_numpy_cannot_read",
    "crashed",
    "exit_code_that_lies",
    "forged_report",
    "hanging",
    "hip_that_is_not_there",
    "inductor_with_wrong_gradients",
    "kfd_that_is_null",
    "killed",
    "out_of_memory",
    "wall_clock_jumps",
}


def judge_all() -> None:
    """Run envbuilder with all checks judging; write the names of those that failed."""
    from envbuilder.core.errors import VerifyError
    from envbuilder.verify import blind_test, run, step
    from envbuilder.verify.report import consistency
    from tests.support import warm

    failed: list[str] = []
    follow = run.follow

    def followed(*arguments: Any) -> Any:
        done, report, hint = follow(*arguments)
        checks = report["checks"]
        if report["training"] is None:
            return done, report, hint  # it ended at the check that failed
        failed.extend(check["name"] for check in checks if check["status"] == "failed")
        for check in checks:
            check["status"] = "passed"
        used = {**report["device"], "used": report["device"]["requested"]}
        return done, {**report, "device": used, "status": "passed", "reasons": []}, hint

    def noted(name: str, judge: Callable[..., Any], otherwise: Any) -> Callable[..., Any]:
        def judged(*arguments: Any) -> Any:
            try:
                found = judge(*arguments)
            except VerifyError as error:
                found = error
            if found:
                failed.append(name)
            return otherwise

        return judged

    def proved(*arguments: Any) -> step.Proof:
        proof = prove(*arguments)
        of_answers = proof.problem.startswith("the blind test")
        if proof.problem and not of_answers:
            failed.append("step")
        if of_answers or not proof.answers_error <= step.LIMITS["cpu"].answers:
            failed.append("answers")
        return proof

    prove = step.prove
    contradictions = noted("consistency", consistency.contradictions, [])
    for place, name, judge in (
        (run, "follow", followed),
        (run, "require_agreement", lambda *_: None),
        (consistency, "contradictions", contradictions),
        (run.Timeline, "problems", noted("times", run.Timeline.problems, [])),
        (blind_test, "problem", noted("blind test", blind_test.problem, "")),
        (step, "prove", proved),
    ):
        setattr(place, name, judge)
    # envbuilder ends its process without a way back.
    atexit.register(lambda: Path(os.environ[FOUND]).write_text(json.dumps(failed)))
    warm.main()


def plant(prefix: Path, framework: str, fault: str, kept: Path) -> list[str]:
    """Plant a fault, verify, and return the names of the checks that failed."""
    from tests.support.overlays import Bench
    from tests.support.sabotages import CLOCKS, STEPS

    at_start = {"asked_for_the_cpu", *(clock.name for clock in CLOCKS)}
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        place = Path(folder)
        modules = SABOTAGES / framework / "sabotage"
        bench = Bench(place, prefix, {FOUND: str(place / "found")}, kept, modules)
        overlay = bench.overlay
        if fault in at_start:
            overlay.at_start(fault)
        elif fault:
            overlay.after(framework, fault)
        profile = OTHER_PROFILES.get((framework, fault), CPU[framework])
        command = (sys.executable, Path(__file__).resolve(), "--judge-all")
        epochs = "1"
        if fault in {step.name for step in STEPS}:
            epochs = "2"
        verdict = bench.verify(
            overlay, "--force", "--epochs", epochs, profile=profile, command=command
        )
        failed = json.loads((place / "found").read_text())
        # What is wrong with the repeated steps and answers is in `found`.
        checks = (check for check in verdict.report["checks"] if check["name"] != "step")
        failed += [check["name"] for check in checks if check["status"] == "failed"]
        return list(dict.fromkeys(failed))


def main() -> None:
    """Write a row for each fault."""
    from tests.support import warm

    prefix, framework, *chosen = sys.argv[1:]
    modules = (SABOTAGES / framework / "sabotage").glob("*.py")
    names = sorted(module.stem for module in modules)
    faults = [name for name in names if name not in OTHER_TESTS and "extension" not in name]
    rows = csv.writer(sys.stdout, lineterminator="\n")
    with tempfile.TemporaryDirectory(dir=Path(prefix).parent, prefix=".checks-") as folder:
        kept = Path(folder) / "kept"
        warm.keep(Path(prefix), IMPORTED[framework], kept)
        for fault in chosen or ["", *faults]:
            failed = plant(Path(prefix), framework, fault, kept)
            rows.writerow([framework, fault or "none", ", ".join(failed)])
            sys.stdout.flush()


if __name__ == "__main__":
    sys.path[0] = str(CHECKOUT)
    if "--judge-all" in sys.argv:
        sys.argv.remove("--judge-all")
        judge_all()
    else:
        os.nice(10)
        main()
