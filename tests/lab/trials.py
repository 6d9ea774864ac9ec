"""Changes that a test makes for a while: HTCondor's configuration on a worker, the controller's policy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from lab import controller
from lab.boot import Lab

TRIAL = "/etc/condor/config.d/90-trial.conf"


@contextmanager
def configured(lab: Lab, worker: str, text: str, attribute: str) -> Iterator[None]:
    """More of HTCondor's configuration on a worker, for a while; ``attribute`` of its ad shows when it counts."""
    before = advertised(lab, worker, attribute)
    lab.write(worker, TRIAL, text)
    _reconfigure(lab, worker, attribute, before, changed=True)
    try:
        yield
    finally:
        lab.on(worker, "rm", "-f", TRIAL)
        _reconfigure(lab, worker, attribute, before, changed=False)


def _reconfigure(lab: Lab, worker: str, attribute: str, before: str, *, changed: bool) -> None:
    lab.on(worker, "condor_reconfig")
    deadline = time.monotonic() + 60
    while (advertised(lab, worker, attribute) != before) is not changed:
        assert time.monotonic() < deadline, f"{attribute} of {worker} did not change"
        time.sleep(0.3)


def advertised(lab: Lab, worker: str, attribute: str) -> str:
    """An attribute of a worker's partitionable slot, as the collector has it."""
    constraint = f'Machine == "{worker}.lab.test" && SlotType == "Partitionable"'
    return lab.on("central", "condor_status", "-constraint", constraint, "-af", attribute).stdout.strip()


@contextmanager
def policy(lab: Lab, text: str) -> Iterator[None]:
    """Another policy for a while."""
    before = lab.on("controller", "cat", "/etc/lark/policy.yaml").stdout
    controller.api(lab, "/v1/policy", "PUT", text)
    try:
        yield
    finally:
        controller.api(lab, "/v1/policy", "PUT", before)
        controller.wait_in_sync(lab)
