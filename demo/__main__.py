"""The story of ``make demo``: each chapter does something, prints why, and checks it.

Exit status: 0 when everything was as expected, 1 when not, 2 when it cannot begin, 130 when interrupted.
Before the jobs end, the operator's pages can be opened, with traffic to look at: on a terminal for half a minute,
with KEEP=1 in the environment until Ctrl-C.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn

from demo import keep, pages_of, reasons, relay, traffic
from demo.jobs import JOBS, Hook
from demo.matrix import End, Rules, differences, expect, measure, pairs, render
from demo.report import Report, shortened
from demo.service import Service, compared
from demo.topology import CACHE, INTERNET, Topology
from lab.namespaces import temporary_directory
from lab.openvswitch import programs_missing
from lab.run import LabError
from lark_common.errors import LarkError
from lark_controller.flows.cookies import Category, cookie

POLICY = Path(__file__).with_name("policy.yaml")
INSIDE = "_DEMO_INSIDE"
UNREGISTERED = Rules(registered=False)
BEFORE = Rules(blocked=frozenset({"mallory"}), no_wan={"bob": frozenset({"cache"})}, links={"carol": "wan-fast"})
AFTER = Rules(blocked=frozenset({"carol"}), no_wan=BEFORE.no_wan, links=BEFORE.links)
# Seconds for which a plain demo at a terminal keeps the pages.
LOOK_SECONDS = 30
# Senders, destinations and Mb/s.
SENDERS = {
    "alice-1": (("192.0.2.1", 6.0),),
    "alice-2": (("10.64.0.1", 3.0), ("192.0.2.80", 1.5)),
    "bob": (("192.0.2.80", 4.0), ("192.0.2.1", 1.0)),
    "carol-1": (("192.0.2.1", 0.5),),
    "mallory": (("2001:db8:ffff::1", 2.0), ("192.0.2.1", 1.0)),
}
JOB_COOKIE = f"cookie={cookie(Category.JOB):#x}"[: len("cookie=0x1a4b03")]


class Story:
    """The chapters, in order."""

    def __init__(self, report: Report, directory: Path, stack: ExitStack) -> None:
        self.report = report
        self.directory = directory
        self.service = Service(directory, POLICY.read_text())
        stack.callback(self.service.stop)
        self.relay = relay.Relay(self.service.rest)
        stack.callback(self.relay.stop)
        self.topology = stack.enter_context(Topology(_made(directory / "ovs"), f"tcp:{self.service.openflow}"))
        self.hook = Hook(_made(directory / "jobs"), self.service.url, self.service.hook_token)
        self.ends: list[End] = []
        self.frame: dict[str, list[str]] = {}

    def tell(self, keeping: bool) -> None:
        """All chapters; with ``keeping`` the last is left to the reader."""
        self.without_controller()
        self.controller_starts()
        self.jobs_start()
        self.who_reaches_whom()
        self.called_from_outside()
        self.policy_changes()
        self.controller_is_killed()
        self.controller_returns()
        sending = self.pages()
        if keeping:
            self.keep_running()
            return
        if sys.stdin.isatty():
            self.report.say("", f"The demo goes on in {LOOK_SECONDS} seconds, or when you press Enter.")
            select.select([sys.stdin], [], [], LOOK_SECONDS)
        for process in sending:
            process.terminate()
        self.jobs_end()

    def matrix(self, rules: Rules, claim: str, *, shown: bool = True, ends: Sequence[End] | None = None) -> None:
        """Measure, show and check one matrix."""
        ends = self.ends if ends is None else ends
        expected = expect(ends, rules)
        measured = measure(self.topology, ends, expected)
        if shown or measured != expected:
            self.report.lines(render(ends, expected, measured), "  ")
        self.report.check(claim, measured == expected, "; ".join(differences(expected, measured)[:6]))

    def without_controller(self) -> None:
        say = self.report.say
        self.report.chapter("Three switches, no controller")
        self.report.lines(_PICTURE, "  ")
        say(
            """Three real Open vSwitch bridges, each other box a network namespace. Six jobs of four users have ports
            on the workers' switches, but nobody has said yet whose jobs they are. Each worker has loaded its base
            flows (scripts/lark-base-flows): they open the worker's own traffic and close every other port."""
        )
        for job in JOBS:
            host = self.topology.attach(job.name, job.worker, job.ipv4, job.ipv6)
            self.ends.append(End(job.name, job.short, host, job.ipv4, job.ipv6, owner=job.owner))
        outside = self.topology.internet
        self.ends.append(End("internet", "net", outside, *INTERNET, outside=True))
        self.ends.append(End("cache", "cac", outside, *CACHE, outside=True))
        self.topology.load_base_flows()
        self.matrix(
            UNREGISTERED,
            f"without a controller none of {2 * len(pairs(self.ends))} pings is answered, and "
            "no request gets out to the WAN",
            shown=False,
        )

    def controller_starts(self) -> None:
        self.report.chapter("The controller starts")
        self.service.start()
        self.report.say(
            f"`lark run` is a process of its own (pid {self.service.pid}, SQLite, REST at "
            f"{self.service.url}, OpenFlow at {self.service.openflow}; a browser on this machine finds it "
            f"at {self.relay.url}). Its policy:"
        )
        text = self.service.policy_file.read_text()
        self.report.lines(text[text.index("policies:") :].splitlines(), "    ")
        self.service.wait_for("three switches in sync", lambda: self.service.in_sync(3))
        self.report.check("three switches have connected and hold the flows of the policy", True)
        self.frame = self.topology.flows()
        self.matrix(UNREGISTERED, "with a controller, but no job registered, still nothing passes", shown=False)

    def jobs_start(self) -> None:
        self.report.chapter("Six jobs start")
        self.report.say(
            """For every job HTCondor runs scripts/starter_hook.sh with the job ad on standard input and the machine
            ad in a file. The hook posts both and waits until the switches have confirmed the job's flows; only then
            does the job begin."""
        )
        rows = []
        for job, end in zip(JOBS, self.ends, strict=False):
            began = time.monotonic()
            answer = self.hook.start(job, end.host, self.topology.switches[job.worker].datapath)
            took = f"{1000 * (time.monotonic() - began):.0f} ms"
            state = answer.get("LarkState", str(answer))
            rows.append([f"{job.name} ({end.short})", job.owner, job.worker, job.ipv4, job.ipv6, state, took])
        self.report.table(["JOB", "OWNER", "WORKER", "IPV4", "IPV6", "STATE", "HOOK TOOK"], rows)
        self.report.check("the hook was told `enforced` for each job", all(row[5] == "enforced" for row in rows))

    def who_reaches_whom(self) -> None:
        self.report.chapter("Who reaches whom")
        self.report.say(
            """Everybody pings everybody, by IPv4 and by IPv6; a cell counts both. `wan` and `fast` (the link wan-fast)
            say on which WAN link the request was seen to leave the site, `yes` that the answer came, `-` that there
            was none. What is expected was worked out from the policy's words, not from the controller."""
        )
        self.matrix(BEFORE, "every pair is as the policy has it, in IPv4 and in IPv6")
        self.explain()
        packet_ins = sum(switch["packet_ins"] for switch in self.service.client.switches())
        self.report.check(
            "no packet had to be sent to the controller for a decision", packet_ins == 0, f"{packet_ins} were"
        )

    def explain(self) -> None:
        expected = expect(self.ends, BEFORE)
        found = reasons.verdicts(self.service, expected)
        self.report.say("", "`lark explain` shows the reason why a packet is refused. A cell of each kind:")
        for asked in reasons.examples(found).values():
            source, target = asked[0]
            said = reasons.last_line(self.service.lark("explain", source.ipv4, target.ipv4))
            more = f" (and {len(asked) - 1} more cells)" if len(asked) > 1 else ""
            self.report.lines([f"{source.name} to {target.name}{more}: {said}"], "  ")
        wrong = reasons.disagreements(found, expected)
        self.report.check(f"`explain` and the packets agree in all {len(found)} cells", not wrong, "; ".join(wrong[:4]))
        bob, internet = self.ends[2], self.ends[6]
        self.report.say("", f"One of them whole, `lark explain {bob.ipv4} {internet.ipv4}`:")
        for line in self.service.lark("explain", bob.ipv4, internet.ipv4).splitlines():
            self.report.lines([shortened(line) if "cookie=" in line else line])

    def called_from_outside(self) -> None:
        self.report.chapter("The outside calls a job")
        self.report.say(
            """alice-1 and bob serve a web page each, on port 8080 of their own addresses, which mean nothing outside
            of the site. Alice asks for an external address for her job, `lark external add 101.0 tcp/8080`; a job can
            ask for it in its submit file, too (+RequestExternalAddress = true)."""
        )
        pages = [pages_of.serve(self.topology, self.ends[number], self.directory) for number in (0, 2)]
        self.report.lines(self.service.lark("external", "add", "101.0", pages_of.OPEN).splitlines())
        client, outside = self.service.client, self.topology.internet
        (given,) = client.external_addresses()
        address = str(given["address"])
        self.service.wait_for("the core switch to translate", lambda: self.service.in_sync(3))
        self.service.wait_for("the page", lambda: bool(pages_of.fetch(self.topology, outside, address)))
        page = pages_of.fetch(self.topology, outside, address)
        self.report.check(f"a host on the internet opens alice's page at {address}", page == "alice-1", page)
        why = pages_of.refusal(client, "103.0")
        self.report.say("", f"Bob asks for one, too, and hears: {why}")
        self.report.check("bob's job has no external address", "external" in why and "no rule" in why, why)
        tried = [
            pages_of.fetch(self.topology, outside, each) for each in (*pages_of.others(address), self.ends[2].ipv4)
        ]
        self.report.check("bob's page is opened by no address", not any(tried), str(tried))
        self.report.say("", f"`lark explain {INTERNET[0]} {address}` prints:")
        explained = self.service.lark("explain", INTERNET[0], address).splitlines()
        self.report.lines(shortened(line) for line in explained if "external" in line or line == explained[-1])
        client.release_external_address(str(given["id"]))
        self.service.wait_for("the core switch to forget it", lambda: self.service.in_sync(3))
        page = pages_of.fetch(self.topology, outside, address)
        self.report.check("once it is released, nobody answers there", not page, page)
        for process in pages:
            process.terminate()

    def policy_changes(self) -> None:
        self.report.chapter("The policy changes while all of it runs")
        text = self.service.policy_file.read_text().replace('Owner == "mallory"', 'Owner == "carol"')
        self.report.say("The block rule is to name carol instead of mallory. First, `lark plan`:")
        candidate = self.directory / "candidate.yaml"
        candidate.write_text(text)
        planned = self.service.lark("plan", str(candidate)).splitlines()
        self.report.lines([line for line in planned if not line.startswith(("  +", "  -"))])
        self.report.check("the plan is about 3 of 6 jobs", planned[0].startswith("3 of 6"), planned[0])
        version = self.service.client.policy()["version"]
        candidate.replace(self.service.policy_file)
        self.service.wait_for("the new policy", lambda: self.service.client.policy()["version"] != version)
        self.service.wait_for("the switches to follow", lambda: self.service.in_sync(3))
        self.report.say(
            "",
            """Then the file is changed, and the controller notices. Now Carol has nothing, and Mallory has what every
            user has: no other user's jobs, but the WAN.""",
        )
        self.matrix(AFTER, "every pair is as the new policy has it")

    def controller_is_killed(self) -> None:
        self.report.chapter("The controller is killed")
        before = self.topology.flows()
        pid = self.service.pid
        self.service.kill()
        self.report.say(
            f"kill -9 {pid}. The switches keep what they hold; a stranger gets a new port on worker1, with "
            "an address of the job network, and nobody there to ask:"
        )
        host = self.topology.attach("stranger", "worker1", "10.64.0.66", "2001:db8:64::66")
        stranger = End("stranger", "?", host, "10.64.0.66", "2001:db8:64::66", stray=True)
        self.matrix(
            AFTER, "everybody reaches whom they reached before, and the stranger nobody", ends=[*self.ends, stranger]
        )
        self.same_flows(before, "no flow on any switch has changed")

    def controller_returns(self) -> None:
        self.report.chapter("The controller returns")
        before = self.topology.flows()
        comparisons = len(compared(self.service.log()))
        self.service.start()
        self.service.wait_for("three switches in sync", lambda: self.service.in_sync(3))
        changes = compared(self.service.log())[comparisons:]
        self.report.say(
            """It has read the jobs from its database, asked each switch for all its flows, or for the marker that
            stands for them, and compared them with what should be there. `lark switches`:"""
        )
        self.report.lines(self.service.lark("switches").splitlines())
        self.report.check("it found nothing to change on three switches", not any(changes), f"changes: {changes}")
        self.same_flows(before, "the switches themselves say the same")
        states = sorted(job["state"] for job in self.service.client.jobs())
        self.report.check("it has all six jobs, enforced", states == ["enforced"] * 6, str(states))

    def pages(self) -> list[subprocess.Popen[str]]:
        self.report.chapter("The operator's pages, with live traffic")
        self.report.say(
            """The jobs send: alice and mallory to the internet, alice-2 to alice-1, bob to the cache and, in vain, to
            the internet; carol is blocked and tries all the same. The controller shows in a browser what becomes of
            it."""
        )
        sending = traffic.start(self.topology, SENDERS)
        client = self.service.client
        jobs = {job["owner"]: job["id"] for job in client.jobs()}

        def passed(owner: str) -> int:
            flows = client.flows("worker2" if owner == "mallory" else "worker1")
            return sum(flow["packets"] or 0 for flow in flows if flow["job"] == jobs[owner] and flow["table"] == 0)

        before = passed("mallory")
        self.service.wait_for("packets to be counted", lambda: passed("mallory") > before + 100)
        self.report.check("packets of the jobs are counted by the flows that admit them", True)
        self.report.lines(["", f"Page:   {self.relay.url}", f"Token:  {self.service.operator_token.read_text()}"])
        return sending

    def jobs_end(self) -> None:
        self.report.chapter("The jobs end")
        self.report.say("The hook reports the end of each job. The namespaces are still there and still try.")
        for job in JOBS:
            self.hook.end(job)
        left = list(self.service.client.jobs())
        self.report.check("no job is registered any more", not left, f"{len(left)} are")
        self.service.wait_for("the switches to follow", lambda: self.service.in_sync(3))
        self.matrix(UNREGISTERED, "nothing passes the ports where the jobs were", shown=False)
        flows = self.topology.flows()
        of_jobs = [line for lines in flows.values() for line in lines if JOB_COOKIE in line]
        self.report.check("no flow of any of them is left", not of_jobs, "; ".join(of_jobs[:3]))
        self.same_flows(self.frame, "every switch holds exactly what it held before the first job")

    def keep_running(self) -> None:
        self.report.chapter("KEEP=1: the pool is yours")
        path = self.directory / "shell"
        keep.write_shell_file(path, self.topology, self.service, self.hook)
        self.report.say("The jobs stay registered and go on sending. In another shell, as root:", "")
        for line in (f"nsenter --net --mount --wd --target {os.getpid()}", f". {path}", "", *keep.WORDS):
            print(f"    {line}".rstrip(), flush=True)
        self.report.say("", f"The pages: {self.relay.url} (the token stands above).")
        self.report.say("Ctrl-C here ends the demo and removes all of it.")
        try:
            while True:
                signal.pause()
        except KeyboardInterrupt:
            print()

    def same_flows(self, before: dict[str, list[str]], claim: str) -> None:
        now = self.topology.flows()
        changed = [
            f"{name} {sign} {line}"
            for name in now
            for sign, one, other in (("+", now, before), ("-", before, now))
            for line in one[name]
            if line not in other[name]
        ]
        self.report.check(claim, not changed, "; ".join(changed[:3]))


_PICTURE = """\
alice-1, bob, carol-1 --- worker1 --- lan1 +-------+ wan ------- router 1 --+
                                           | core1 |                        +-- internet, cache
alice-2, carol-2, mallory - worker2 - lan2 +-------+ wan-fast -- router 2 --+
""".splitlines()


def main() -> int:
    """Tell the story; the exit status."""
    if problem := _cannot_begin():
        print(f"demo: {problem}", file=sys.stderr)
        return 2
    if INSIDE not in os.environ:
        relay.listen()
        _go_inside()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    report = Report()
    reached_end = False
    keeping = os.environ.get("KEEP", "") not in ("", "0")
    pages = ""
    try:
        with temporary_directory() as directory, ExitStack() as stack:
            try:
                story = Story(report, Path(directory), stack)
                pages = story.relay.url
                story.tell(keeping)
                reached_end = True
            finally:
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                report.say("", "Cleaning up.")
    except KeyboardInterrupt:
        report.say("Interrupted.")
        return 130
    except (LabError, LarkError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
    good = report.end(reached_end)
    if good and not keeping:
        report.say("", f"make demo KEEP=1 leaves all of it running, with traffic, and the pages at {pages}")
    return 0 if good else 1


def _go_inside() -> NoReturn:
    """Begin again, as the same process, in a network namespace and with mounts of its own.

    Open vSwitch's userspace datapath has a device of a fixed name, so a network namespace has room for one: this way it
    does not matter what else the machine runs. What is made inside goes with the last process there.
    """
    prepare = (
        "mount -t sysfs sysfs /sys 2>/dev/null; mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && "
        'ip link set lo up && exec "$@"'
    )
    command = ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", prepare, "sh"]
    sys.stdout.flush()
    os.execvpe(command[0], [*command, sys.executable, "-m", "demo"], {**os.environ, INSIDE: "1"})


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _cannot_begin() -> str:
    if os.geteuid() != 0:
        return "it makes network namespaces and bridges, so it has to run as root"
    missing = [
        *programs_missing(),
        *(name for name in ("tcpdump", "curl", "setpriv", "unshare", "nsenter") if shutil.which(name) is None),
    ]
    return f"not installed: {', '.join(missing)}; scripts/setup.sh installs what it needs" if missing else ""


def _made(path: Path) -> Path:
    path.mkdir()
    return path


if __name__ == "__main__":
    sys.exit(main())
