"""A dockerd of a test's own, beside the one that is there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

_START_SECONDS = 60.0
_STOP_SECONDS = 30.0


def unsupported() -> str:
    """Return why none can be started here; empty if one can."""
    if os.geteuid() != 0:
        return "only root can start a dockerd"
    missing = [n for n in ("dockerd", "containerd", "docker", "unshare") if not shutil.which(n)]
    return f"{missing[0]} is not installed" if missing else ""


class Dockerd:
    """A dockerd with its data below a folder, in a network namespace of its own.

    With `--bridge none` dockerd removes docker0 of its namespace. That one has no interface, and
    ends with the process, as does the namespace of mounts, of which dockerd leaves some.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.socket = folder / "docker.sock"
        self.log = folder / "dockerd.log"
        config = folder / "daemon.json"
        config.write_text(json.dumps({"features": {"containerd-snapshotter": True}}))
        # A containerd that the machine has is used, but in namespaces apart from others.
        space = f"envbuilder-test-{os.getpid()}-{folder.name}"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "unshare",
                    "--net",
                    "--mount",
                    "dockerd",
                    "--config-file",
                    str(config),
                    "--data-root",
                    str(folder / "data"),
                    "--exec-root",
                    str(folder / "exec"),
                    "--pidfile",
                    str(folder / "pid"),
                    "--host",
                    f"unix://{self.socket}",
                    "--containerd-namespace",
                    space,
                    "--containerd-plugins-namespace",
                    f"{space}-plugins",
                    "--bridge",
                    "none",
                    "--iptables=false",
                    "--ip6tables=false",
                    "--ip-forward=false",
                    "--ip-masq=false",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> str:
        """Wait until it answers; return why it does not, empty if it does."""
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            if self.docker("version").returncode == 0:
                return ""
            time.sleep(0.2)
        return self.log.read_text(errors="replace")[-600:] or "it does not answer"

    def docker(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run docker's client against it."""
        argv = ["docker", "--host", f"unix://{self.socket}", *arguments]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DOCKER_")}
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)

    def stop(self) -> None:
        """End it and its containerd; what it mounted goes with them."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_STOP_SECONDS)
