"""How Slurm's programs are called, and what their failures are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.core import process
from envbuilder.core.errors import ToolError
from envbuilder.core.process import Completed
from envbuilder.fleet.scheduler import RefusedError
from envbuilder.fleet.slurm.client import Slurm, environment
from tests.support.fleets import RUN

if TYPE_CHECKING:
    from collections.abc import Sequence


class Programs:
    """Answers for each of Slurm's programs, and what they were asked."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], **options: Any) -> Completed:
        assert options["timeout"] == 60.0
        self.calls.append(tuple(argv))
        facts = {"returncode": 0, "stdout": "", "stderr": "", "seconds": 0.1}
        return Completed(argv=tuple(argv), **{**facts, **self.answers.get(argv[0], {})})


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    answering = Programs()
    monkeypatch.setattr(process, "run", answering.run)
    return answering


def test_a_refusal_is_in_slurms_words(programs: Programs) -> None:
    programs.answers["sbatch"] = {
        "returncode": 1,
        "stderr": "sbatch: error: Batch job submission failed: Invalid feature specification\n",
    }
    with pytest.raises(RefusedError) as caught:
        Slurm().submit(Path("x.sbatch"))
    assert str(caught.value) == "Batch job submission failed: Invalid feature specification"


def test_the_partition_is_asked_for_everywhere(programs: Programs) -> None:
    programs.answers["sbatch"] = {"stdout": "7\n"}
    slurm = Slurm("gpu")
    assert slurm.submit(Path("x.sbatch")) == "7"
    assert slurm.nodes() == ()
    assert all(" --partition gpu " in f"{' '.join(call)} " for call in programs.calls)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"returncode": 1, "stderr": "Unable to contact slurm controller"}, "Unable to contact"),
        ({"returncode": -9, "timed_out": True}, "no answer within 60 s"),
        ({"returncode": 1}, "exit code 1"),
    ],
)
def test_a_scheduler_that_does_not_answer(
    answer: dict[str, Any], message: str, programs: Programs
) -> None:
    programs.answers["squeue"] = answer
    with pytest.raises(ToolError, match=message):
        Slurm().jobs(RUN)


def test_many_jobs_are_cancelled_in_several_calls(programs: Programs) -> None:
    Slurm().cancel([str(number) for number in range(1001)])
    assert [len(call) - 1 for call in programs.calls] == [500, 500, 1]


def test_an_exit_code_that_is_forgotten_is_empty(programs: Programs) -> None:
    programs.answers["scontrol"] = {"returncode": 1, "stderr": "Invalid job id specified"}
    assert Slurm().exit_code("7") == ""
    programs.answers["scontrol"] = {"stdout": "JobId=7 JobState=FAILED ExitCode=3:0"}
    assert Slurm().exit_code("7") == "3"


def test_a_users_preferences_do_not_change_what_is_asked() -> None:
    mine = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SBATCH_ACCOUNT": "ml",
        "SBATCH_JOB_NAME": "mine",
        "SBATCH_EXPORT": "ALL",
        "SQUEUE_USERS": "somebody",
        "SINFO_PARTITION": "other",
    }
    assert set(environment(mine)) == {"PATH", "SLURM_CONF", "SBATCH_ACCOUNT"}
