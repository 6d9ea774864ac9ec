"""The moments of a job's start and end on a worker: by the starter's log, and by the job's first instruction.

The log has fractions of a second with :data:`DEBUG`. With :data:`PLAIN` a worker has neither hook nor wrapper.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from lab import submit
from lab.boot import Lab

WITH, WITHOUT = "worker1", "worker2"
STARTER_LOG: Final = "/var/log/condor/StarterLog.slot1_1"
CONFIG: Final = "/etc/condor/config.d/90-bench.conf"
# Lines of HTCondor's configuration on a worker.
DEBUG: Final = "STARTER_DEBUG = D_SUB_SECOND\n"
PLAIN: Final = "STARTER_JOB_HOOK_KEYWORD =\nUSER_JOB_WRAPPER =\n"
_LINE: Final = re.compile(r"(\d\d/\d\d/\d\d \d\d:\d\d:\d\d\.\d+) (.*)")
# The first line of a starter's log that begins so is the moment.
_MOMENTS: Final = {
    "begin": "** condor_starter (CONDOR_STARTER) STARTING UP",
    "guided": "Starting job as guided...",
    "hook": "PREPARE_JOB",
    "hooked": "Job ",
    "made": "Create_Process succeeded",
    "exited": "Process exited",
    "end": "**** condor_starter (condor_STARTER) pid",
}
Moments = Mapping[str, float]


def one(lab: Lab, worker: str) -> Moments:
    """The moments of one job on a worker, in seconds since 1970."""
    where = {"requirements": f'Machine == "{worker}.lab.test"'}
    jobs = submit.submit(lab, "alice", "date +%s.%N", where)
    submit.wait(lab, jobs, 120)
    wait = f"until tail -n 1 {STARTER_LOG} | grep -q EXITING; do sleep 0.1; done; tail -n 200 {STARTER_LOG}"
    log = lab.on(worker, "sh", "-c", wait, timeout=60).stdout
    return {**moments(log), "first": float(submit.output(lab, jobs))}


def moments(log: str) -> Moments:
    """The time of each event of the last starter in a log."""
    last = log[log.rindex(_MOMENTS["begin"]) - 32 :]
    found: dict[str, float] = {}
    for line in last.splitlines():
        match = _LINE.search(line)
        if match is None:
            continue
        for name, text in _MOMENTS.items():
            if name not in found and match[2].startswith(text) and (name != "hooked" or "set to execute" in match[2]):
                at = datetime.strptime(match[1], "%m/%d/%y %H:%M:%S.%f").replace(tzinfo=UTC)
                found[name] = at.timestamp()
    return found


def stages(at: Moments) -> dict[str, float]:
    """The stages of a job, in milliseconds; without Lark the hook takes none."""
    return {
        "hook": 1000 * (at["hooked"] - at["guided"]),
        "wrapper": 1000 * (at["first"] - at["made"]),
        "start": 1000 * (at["first"] - at["guided"]),
        "end": 1000 * (at["end"] - at["exited"]),
        "batch": 1000 * (at["end"] - at["begin"]),
    }
