"""Read from a cluster through `kubectl`, which knows the user's contexts and logins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core import process
from envbuilder.core.errors import ToolError
from envbuilder.core.text import binary_size, printable
from envbuilder.fleet.kubernetes import log as logs
from envbuilder.fleet.kubernetes import objects, stated
from envbuilder.fleet.kubernetes.manifests import CONTAINER
from envbuilder.fleet.kubernetes.names import RUN

if TYPE_CHECKING:
    from envbuilder.fleet.kubernetes.objects import JobObject, PodObject
    from envbuilder.fleet.kubernetes.stated import Stated, StatedGroup

_SERVER_SECONDS, _SECONDS = 60, 90
"""How long one request to the server may take, and `kubectl` with its login around it."""
_LONGEST_PROBLEM = 300


class Cluster:
    """The jobs, pods and logs of one namespace. Each call is bounded in time and size."""

    def __init__(self, context: str | None, namespace: str | None) -> None:
        """Without them, those of the user's own configuration of `kubectl`."""
        self._options = (
            *((f"--context={context}",) if context else ()),
            *((f"--namespace={namespace}",) if namespace else ()),
            f"--request-timeout={_SERVER_SECONDS}s",
        )

    def stated(self, run: str) -> tuple[Stated | StatedGroup, ...]:
        """Return what the jobs of a run state, as far as the cluster still has them."""
        content = self._get("jobs", run)
        where = "kubectl get jobs"
        listed = objects.parse(content, stated.JobManifests, where)
        return tuple(stated.of(item, where) for item in listed.items)

    def jobs(self, run: str) -> tuple[JobObject, ...]:
        """Return the jobs of a run."""
        content = self._get("jobs", run)
        return objects.parse(content, objects.JobList, "kubectl get jobs").items

    def pods(self, run: str) -> tuple[PodObject, ...]:
        """Return the pods of a run."""
        content = self._get("pods", run)
        return objects.parse(content, objects.PodList, "kubectl get pods").items

    def log(self, pod: str) -> str:
        """Return the log of a pod's container, or its beginning if it is too long."""
        options = (f"--container={CONTAINER}", f"--limit-bytes={logs.LARGEST}")
        return self._kubectl("logs", pod, *options)

    def _get(self, kind: str, run: str) -> bytes:
        options = (f"--selector={RUN}={run}", "--output=json")
        content = self._kubectl("get", kind, *options).encode()
        if len(content) >= process.KEPT_BYTES:
            raise ToolError(
                f"kubectl get {kind}: the answer is larger than {binary_size(process.KEPT_BYTES)}",
                "Render the nodes as several runs: one has room for more than 1,000.",
            )
        return content

    def _kubectl(self, *arguments: str) -> str:
        done = process.run(["kubectl", *arguments, *self._options], timeout=_SECONDS)
        what = f"kubectl {' '.join(arguments[:2])}"
        if done.timed_out:
            raise ToolError(
                f"{what}: no answer within {_SECONDS} s",
                "Check the connection to the cluster: kubectl version",
            )
        if done.returncode != 0:
            lines = done.last_words.splitlines() or [f"exit code {done.returncode}"]
            raise ToolError(
                # Before the last line, there are warnings of kubectl's own libraries.
                f"{what}: {printable(lines[-1], _LONGEST_PROBLEM)}",
                "Check context, namespace and your rights: kubectl auth can-i list pods",
            )
        return done.stdout
