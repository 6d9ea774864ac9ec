"""A job's use of the network where HTCondor's users look: its ad, its history, its event log, and the slot's ad."""

from __future__ import annotations

import re

import pytest

from lab import submit
from lab.boot import Lab
from lab.jobs import remove

ON_WORKER1 = {"requirements": 'Machine == "worker1.lab.test"', "request_bandwidth": "50"}
PING = "ping -q -c 20 -i 0.01 -s 1400 192.0.2.1 >/dev/null"


def history(lab: Lab, jobs: submit.Jobs, *names: str) -> dict[str, list[str]]:
    shown = lab.on("central", "condor_history", str(jobs.cluster), "-af", "ProcId", *names, user="alice").stdout
    return {line.split()[0]: line.split()[1:] for line in shown.splitlines()}


def test_the_history_of_short_jobs_has_what_their_interfaces_have_counted(lab: Lab) -> None:
    jobs = submit.submit(lab, "alice", f"{PING}; grep eth0 /proc/net/dev", ON_WORKER1, number=6)
    submit.wait(lab, jobs)
    found = history(lab, jobs, "NetworkInputMb", "NetworkOutputMb")
    for process in range(6):
        seen = submit.output(lab, jobs, process).split()
        megabytes = [int(seen[1]) / 1e6, int(seen[9]) / 1e6]
        # Most of the answers: a busy machine may lose one.
        assert megabytes[0] > 15 * 1400 / 1e6
        # A packet may come between the two looks.
        assert [float(each) for each in found[str(process)]] == pytest.approx(megabytes, abs=0.0002)


def test_the_wan_part_is_what_the_jobs_themselves_have_sent_there_to_the_last_packet(lab: Lab) -> None:
    ping = "ping -q -i 0.01 -w 20 -c"
    # The first kind ends with its last packet to the WAN, the second is over with it for some time, the third has none.
    scripts = (
        f"{ping} 20 -s 900 10.64.0.1 >/dev/null; {ping} 40 -s 1400 192.0.2.1",
        f"{ping} 40 -s 1400 192.0.2.1; sleep 2",
        f"{ping} 40 -s 1400 10.64.0.1",
    )
    kinds = [submit.submit(lab, "alice", script, ON_WORKER1, number=3) for script in scripts]
    for jobs, reaches_wan in zip(kinds, (True, True, False), strict=True):
        submit.wait(lab, jobs)
        found = history(lab, jobs, "NetworkWanOutputMb", "NetworkWanInputMb", "NetworkOutputMb", "NetworkInputMb")
        for process in range(3):
            said = submit.output(lab, jobs, process)
            counts = [int(each) for each in re.findall(r"(\d+) packets transmitted, (\d+) received", said)[0]]
            # 8 bytes of ICMP, 20 of IPv4, 14 of Ethernet.
            megabytes = [count * 1442 / 1e6 for count in counts]
            wan_out, wan_in, out, into = map(float, found[str(process)])
            assert min(counts) > 0, said
            if reaches_wan:
                # An answer may come after ping has ended.
                assert wan_out == pytest.approx(megabytes[0], abs=2e-6), (said, found)
                assert megabytes[1] - 2e-6 <= wan_in <= megabytes[0] + 2e-6, (said, found)
            else:
                assert (wan_out, wan_in) == (0, 0), (said, found)
            assert out > megabytes[0]
            assert into > megabytes[1]


def test_the_event_log_shows_bandwidth_beside_the_other_resources(lab: Lab) -> None:
    jobs = submit.submit(lab, "alice", PING, ON_WORKER1)
    submit.wait(lab, jobs)
    log = lab.on("central", "cat", f"{jobs.directory}/log").stdout
    usage = re.search(r"^\s+Bandwidth\s+:\s+(\S+)\s+50\s+50\s*$", log, re.MULTILINE)
    assert usage, log
    assert float(usage[1]) > 0
    ((peak, average),) = history(lab, jobs, "BandwidthUsage", "BandwidthAverageUsage").values()
    assert float(peak) >= float(average) > 0


def test_the_history_has_advice_on_what_to_ask_for(lab: Lab) -> None:
    jobs = submit.submit(lab, "alice", f"sleep 33; {PING}", ON_WORKER1)
    short = submit.submit(lab, "alice", "true", ON_WORKER1)
    submit.wait(lab, jobs)
    submit.wait(lab, short)
    ((figure, *words),) = history(lab, jobs, "LarkAdvisedBandwidth", "LarkAdvice").values()
    assert figure == "1"
    assert re.fullmatch(r"asked for 50 Mb/s,.* used \S+ at most.*: 1 is enough", " ".join(words)), words
    ((figure, *words),) = history(lab, short, "LarkAdvisedBandwidth", "LarkAdvice").values()
    assert (figure, words[-4:]) == ("undefined", ["too", "short", "for", "advice"])


def test_a_slots_ad_has_the_rates_of_its_job_and_the_groups_headroom(lab: Lab) -> None:
    jobs = submit.submit(lab, "alice", "ping -q -i 0.01 -s 1400 192.0.2.1 >/dev/null", ON_WORKER1)
    names = "NetworkOutputRate NetworkInputMb WanHeadroom_group_cms"
    mine = f"#{jobs.cluster}[.]"
    ask = f"condor_status -const 'regexp(\"{mine}\", GlobalJobId) && NetworkOutputRate > 0' -af {names}"
    lab.on("central", "sh", "-c", f"until {ask} | grep -q .; do sleep 1; done", timeout=60)
    rate, megabytes, headroom = map(float, lab.on("central", "sh", "-c", ask).stdout.split())
    assert 0 < rate < 50
    assert megabytes > 0
    assert 0 < headroom <= 250
    remove(lab, [jobs])


def test_headroom_takes_part_in_matchmaking(lab: Lab) -> None:
    wants = {**ON_WORKER1, "requirements": "TARGET.WanHeadroom_group_cms >= 100000"}
    too_much = submit.submit(lab, "alice", "true", wants)
    enough = submit.submit(lab, "alice", "true", {**wants, "requirements": "TARGET.WanHeadroom_group_cms >= 10"})
    submit.wait(lab, enough)
    assert submit.attribute(lab, too_much, "JobStatus") == "1"
    why = lab.on("central", "condor_q", "-better-analyze", str(too_much.cluster), user="alice").stdout
    assert "WanHeadroom_group_cms" in why
    lab.on("central", "condor_rm", str(too_much.cluster), user="alice")
