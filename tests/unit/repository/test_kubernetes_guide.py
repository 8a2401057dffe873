"""The guide's Job starts what a verification of its profile starts."""

from __future__ import annotations

from pathlib import Path

import yaml

from envbuilder.builds import conventions, isolation
from envbuilder.builds.mnist import Dataset
from envbuilder.verify.run import Job, payload_arguments
from tests.support.kubernetes import job_text
from tests.support.shipped import shipped_profile


def test_the_arguments_are_those_of_a_verification() -> None:
    profile = shipped_profile("cuda")
    data = Dataset(folder=Path("/data"), name="MNIST subset (shipped)", subset=True)
    job = Job(expects=profile.expected(profile.image_python), dataset=data, epochs=None, quick=True)
    (container,) = yaml.safe_load(job_text())["spec"]["template"]["spec"]["containers"]
    assert container["args"] == [
        *isolation.python(f"{conventions.PREFIX}/bin/python"),
        conventions.PAYLOAD,
        "--promise",
        isolation.container_start(conventions.variables(profile)).text(),
        *payload_arguments(job, {"data": "/data"}),
    ]
