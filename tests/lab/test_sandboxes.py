"""The short form of the experiment on transfers: twenty jobs with a sandbox each, in one pool without and with Lark."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from experiments import sandboxes
from experiments.lark_transfers import limited
from experiments.sandboxes import Batch
from lab import controller
from lab.boot import Lab
from lab.run import LabError

BATCH = Batch(20, 2_000_000, 8)
# Mb/s of the access point: a sandbox is on its way for longer than a look at connections takes to find it.
LINK = 20.0
TIMEOUT = 400.0


@pytest.fixture(scope="module", autouse=True)
def prepared(lab: Lab) -> Iterator[None]:
    sandboxes.prepare(lab, BATCH)
    yield
    lab.on(sandboxes.ACCESS_POINT, "rm", "-rf", sandboxes.FOLDER)


def known(lab: Lab, cluster: int, process: int) -> dict[str, float] | None:
    """A job's use by the controller's account, once that is complete; None where it knows no such job."""
    deadline = time.monotonic() + 60
    while True:
        try:
            used: dict[str, float] | None = controller.api(lab, f"/v1/jobs/{cluster}.{process}")["usage"]
        except LabError:
            return None
        if used is not None and used["final"]:
            return used
        assert time.monotonic() < deadline, used
        time.sleep(0.5)


# The kernel counts how many move at a time (test_transfer_rules.py): in the log inputs that follow each other overlap,
# the more the busier the machine is.
@pytest.mark.parametrize("most", [None, 2])
def test_every_job_of_one_submission_has_its_sandbox_once_and_lark_has_the_account(lab: Lab, most: int | None) -> None:
    with sandboxes.queue(lab, most), limited(lab, LINK):
        with sandboxes.without_lark(lab):
            plain, without = sandboxes.run(lab, BATCH, TIMEOUT)
        jobs, with_lark = sandboxes.run(lab, BATCH, TIMEOUT)
    # All jobs have ended well: the log has it, or there is no measurement.
    for found in (without, with_lark):
        assert found.again == 0
        assert found.spent["HTCondor, workers"] > 0
        assert found.spent["HTCondor, access point"] > 0
    assert without.spent["worker service"] == 0
    assert with_lark.spent["worker service"] > 0
    assert [known(lab, plain.cluster, process) for process in range(BATCH.jobs)] == [None] * BATCH.jobs
    for process in range(BATCH.jobs):
        used = known(lab, jobs.cluster, process)
        assert used is not None
        # HTCondor's own messages and encryption are less than a fiftieth.
        assert 0 <= used["transfer_bytes_in"] - BATCH.size < BATCH.size // 50, used
        assert used["bytes_in"] < BATCH.size // 2, used
