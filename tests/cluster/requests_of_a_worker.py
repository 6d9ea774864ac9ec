"""Every request that a worker makes of a controller in the life of a job, by the code of whichever release runs it.

``python requests_of_a_worker.py URLS TOKEN_FILE ADS`` prints the job as the controller shows it before its end. A
request that is refused, and an answer that the worker does not understand, is an exception.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lark_common.client import Client
from lark_common.runs import EndedBy
from lark_common.worker_rules import UNTOLD
from lark_worker.controller_link import Applied, ControllerLink
from lark_worker.settings import load

HOST = "worker9"
WAITS = 30.0


def main(url: str, token_file: Path, ads: str) -> None:
    link = ControllerLink(load({"LARK_WORKER_URL": url, "LARK_WORKER_TOKEN_FILE": str(token_file)}))
    client = Client(url, token_file.read_text().strip())
    answer = link.register(ads)
    assert [str(each) for each in answer.addresses] == ["10.64.9.1"], answer
    (job,) = [each["id"] for each in client.jobs(host=HOST)]
    revision, rules = link.rules(HOST, "", WAITS)
    while rules is None or job not in {each.id for each in rules.jobs}:
        revision, rules = link.rules(HOST, revision, WAITS)
    link.rules_confirmed(HOST, revision, Applied({}, frozenset(), UNTOLD))
    assert link.register(ads, wait=WAITS, running=True).state == "enforced"
    assert missing(link.renew(HOST, [job, "0" * 16])) == {"0" * 16}
    counted = {"bytes_in": 1000, "bytes_out": 3000, "packets_in": 10, "packets_out": 30}
    # Reported twice, and counted once.
    for _ in range(2):
        link.counters(job, counted)
        moved = {"bytes_in": 700, "bytes_out": 0, "wan_bytes_in": 700, "wan_bytes_out": 0, "millis": 5}
        noted = link.transfers(HOST, {job: moved})
        assert noted is not None
        assert not noted.missing
        assert "10.0.0.0/8" in map(str, noted.local)
    link.marks(HOST, [job])
    link.delivered(HOST, 1.0, {})
    link.wan(HOST, [job])
    assert link.advice(job) is not None
    link.headroom()
    link.external_headroom()
    link.limited(job, "its connections")
    link.forged(job, "an ad")
    shown = client.job(job, fresh=True)
    link.end(job, "", EndedBy.HOOK)
    assert missing(link.renew(HOST, [job])) == {job}
    print(json.dumps(shown))


def missing(renewed: object) -> object:
    """The jobs that the controller does not know; releases up to 0.2.0 return nothing else."""
    return getattr(renewed, "missing", renewed)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]).read_text())
