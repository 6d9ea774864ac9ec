"""scripts/starter_hook.sh, run as HTCondor runs it, in three shells, against a server that behaves well and badly."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import classad2
import pytest

from lark_controller import settings
from lark_controller.jobs import RunKey
from lark_controller.rest.app import create_app
from lark_controller.rest.server import Server
from lark_controller.rest.tokens import Tokens
from tests.fake_controls import TOKENS, FakeControls, post_body, write_tokens

HOOK = Path(__file__).parents[1] / "scripts" / "starter_hook.sh"
TOKEN = "s3cret-Token.0123456789"
JOB_AD = (
    'GlobalJobId = "schedd.example#7.0#1700000000"\nJobCurrentStartDate = 1700000001\n'
    'Owner = "alice"\nCmd = "/bin/date"\n'
)
MACHINE_AD = 'Name = "slot1_2@worker1.example"\nMachine = "worker1.example"\nNetworkType = "ovs_bridge"\n'
ID = RunKey("schedd.example#7.0#1700000000", 1700000001, "slot1_2@worker1.example").id
OTHER_ID = "0123456789abcdef"
ACCEPTED = f'LarkJobId = "{ID}"\nLarkState = "enforced"\nLarkIPv4Address = "10.64.0.7"\nLarkLease = 600\n'
PROBLEM = (
    b'{"type": "about:blank", "title": "Conflict", "status": 409,\n'
    b' "detail": "IPv4Address: \\"10.64.0.7\\" is held by job f00\\\\ba"}'
)

SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}


@dataclass(frozen=True)
class Asked:
    """A request that the server got."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Controller:
    """A stand-in for the controller: gives the scripted answers in turn, the last one for ever."""

    answers: list[Callable[[Any], None]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    command_lines: bytes = b""
    released: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    socket: str = ""

    def handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                outer.asked.append(Asked(self.command, self.path, dict(self.headers), body))
                outer.command_lines += all_command_lines()
                turn = min(len(outer.asked), len(outer.answers)) - 1
                outer.answers[turn](self)

            def do_POST(self) -> None:
                self.handle_any()

            def do_DELETE(self) -> None:
                self.handle_any()

            def address_string(self) -> str:
                return "peer"

            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                """Tests print nothing."""

        return Handler


def all_command_lines() -> bytes:
    lines = b""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines += (entry / "cmdline").read_bytes() + b"\n"
            except OSError:
                continue
    return lines


def reply(status: int, body: bytes | str = b"", content_type: str = "text/plain") -> Callable[[Any], None]:
    data = body.encode() if isinstance(body, str) else body

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return send


def raw(data: bytes) -> Callable[[Any], None]:
    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(data)
        handler.close_connection = True

    return send


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class QuietHTTPServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A hook that gives up closes its connection: nothing to say about that."""


@pytest.fixture
def controller() -> Iterator[Controller]:
    yield from serve(Controller())


def serve(controller: Controller, context: ssl.SSLContext | None = None) -> Iterator[Controller]:
    server = QuietHTTPServer(("127.0.0.1", 0), controller.handler())
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "https" if context else "http"
    controller.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield controller
    finally:
        controller.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(frozen=True)
class Outcome:
    """What a hook left: the ClassAd on stdout, what it said on stderr."""

    ad: dict[str, object]
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Worker:
    """A worker's side: the shell, scratch directory, machine ad, token, and how to run the hook there."""

    shell: list[str]
    folder: Path

    def run(
        self,
        *args: str,
        url: str = "",
        stdin: bytes = JOB_AD.encode(),
        script: Path = HOOK,
        limit: float = 60,
        **given: str,
    ) -> Outcome:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "LARK_HOOK_CONF": str(self.folder / "absent.conf"),
            "LARK_URL": url,
            "LARK_TOKEN_FILE": str(self.folder / "token"),
            "LARK_RETRIES": "2",
            "LARK_TIMEOUT": "20",
            "_CONDOR_MACHINE_AD": str(self.folder / "machine.ad"),
            "_CONDOR_SCRATCH_DIR": str(self.folder / "scratch"),
            "_CONDOR_SLOT": "slot1_2",
            **given,
        }
        environment = {name: value for name, value in environment.items() if value != "-"}
        result = subprocess.run(
            [*self.shell, str(script), *args], input=stdin, capture_output=True, env=environment, timeout=limit
        )
        assert result.returncode == 0, result
        stdout = result.stdout.decode("utf-8")
        ad = dict(classad2.parseOne(stdout)) if stdout.strip() else {}
        assert len(ad) == len(stdout.splitlines())
        return Outcome(ad, stdout, result.stderr.decode("latin-1"))


@pytest.fixture(params=list(SHELLS))
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Worker:
    shell = SHELLS[request.param]
    assert shutil.which(shell[0]), f"{shell[0]} is not installed; scripts/setup.sh installs it"
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "machine.ad").write_text(MACHINE_AD)
    (tmp_path / "scratch").mkdir()
    return Worker(shell, tmp_path)


# start


def test_start_posts_both_ads_and_prints_the_answer(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(201, ACCEPTED)]

    outcome = worker.run("start", url=controller.url, LARK_WAIT="5")

    assert outcome.ad == {
        "LarkJobId": ID,
        "LarkState": "enforced",
        "LarkIPv4Address": "10.64.0.7",
        "LarkLease": 600,
    }
    (asked,) = controller.asked
    assert (asked.method, asked.path) == ("POST", "/v1/jobs?wait=5")
    assert asked.headers["Accept"] == "text/plain"
    assert asked.headers["Content-Type"].startswith("text/plain")
    assert asked.headers["Authorization"] == f"Bearer {TOKEN}"
    job_ad, machine_ad = asked.body.decode().split("\n------\n")
    assert classad2.parseOne(job_ad)["Owner"] == "alice"
    assert classad2.parseOne(machine_ad)["Name"] == "slot1_2@worker1.example"


def test_the_token_is_on_no_command_line(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(201, ACCEPTED)]
    worker.run("start", url=controller.url)
    assert b"/v1/jobs" in controller.command_lines  # the request was seen while it ran
    assert TOKEN.encode() not in controller.command_lines


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_a_refusal_holds_the_job_with_the_reason(worker: Worker, controller: Controller, status: int) -> None:
    controller.answers = [reply(status, PROBLEM, "application/problem+json")]

    outcome = worker.run("start", url=controller.url, LARK_ON_FAILURE="start")

    assert len(controller.asked) == 1  # asking again would not change it
    code = outcome.ad["HookStatusCode"]
    assert isinstance(code, int)
    assert 1 <= code <= 299
    assert outcome.ad["HookStatusMessage"] == ("Lark refused this job: IPv4Address: '10.64.0.7' is held by job f00/ba")


@pytest.mark.parametrize(("member", "code"), [('"refused": "idle"', 310), ('"refused": "hold"', 10)])
def test_a_job_without_room_goes_where_the_site_says(
    worker: Worker, controller: Controller, member: str, code: int
) -> None:
    document = '{"type": "urn:lark:problem:capacity", "detail": "no \\"refused\\":\\"idle\\" room", ' + member + "}"
    controller.answers = [reply(409, document, "application/problem+json")]
    outcome = worker.run("start", url=controller.url)
    assert outcome.ad["HookStatusCode"] == code
    assert outcome.ad["HookStatusMessage"] == "Lark refused this job: no 'refused':'idle' room"


def test_a_refusal_in_plain_text_is_read_too(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(422, "Owner: is missing; a job ad needs one\n")]
    outcome = worker.run("start", url=controller.url)
    assert outcome.ad["HookStatusMessage"] == "Lark refused this job: Owner: is missing; a job ad needs one"


def test_a_job_registered_but_refused_is_held(worker: Worker, controller: Controller) -> None:
    answer = f'LarkJobId = "{ID}"\nLarkState = "refused"\nLarkReason = "core1: 4096 rules are all in use"\n'
    controller.answers = [reply(200, answer)]
    outcome = worker.run("start", url=controller.url)
    assert outcome.ad["HookStatusMessage"] == "Lark refused this job: core1: 4096 rules are all in use"


def test_a_run_that_has_ended_does_not_start_without_a_network(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(200, f'LarkJobId = "{ID}"\nLarkState = "ended"\n')]
    outcome = worker.run("start", url=controller.url)
    assert str(outcome.ad["HookStatusMessage"]).startswith("Lark refused this job: this run has ended")


@pytest.mark.parametrize("status", [429, 503])
def test_a_passing_failure_is_tried_again(worker: Worker, controller: Controller, status: int) -> None:
    controller.answers = [reply(status, "busy"), reply(201, ACCEPTED)]
    outcome = worker.run("start", url=controller.url)
    assert outcome.ad["LarkState"] == "enforced"
    assert len(controller.asked) == 2


@pytest.mark.parametrize("status", [301, 401, 403, 404])
def test_a_wrong_address_or_token_is_not_the_jobs_fault(worker: Worker, controller: Controller, status: int) -> None:
    controller.answers = [reply(status, "no")]
    outcome = worker.run("start", url=controller.url)
    assert outcome.ad["LarkState"] == "unmanaged"
    assert len(controller.asked) == 1


@pytest.mark.parametrize("choice", ["start", "hold", "idle", "nonsense"])
def test_when_nobody_answers_the_setting_decides(worker: Worker, choice: str) -> None:
    outcome = worker.run("start", url=f"http://127.0.0.1:{free_port()}", LARK_ON_FAILURE=choice, LARK_RETRIES="0")

    if choice == "hold":
        assert 1 <= int(str(outcome.ad["HookStatusCode"])) <= 299
    elif choice == "idle":
        assert int(str(outcome.ad["HookStatusCode"])) >= 300
    else:
        assert outcome.ad["LarkState"] == "unmanaged"
        assert "HookStatusCode" not in outcome.ad
        assert "no answer from http://127.0.0.1:" in str(outcome.ad["LarkReason"])
        return
    assert "no answer from http://127.0.0.1:" in str(outcome.ad["HookStatusMessage"])


def test_a_wait_that_the_controller_does_not_allow_is_not_the_jobs_fault(
    worker: Worker, controller: Controller
) -> None:
    problem = '{"type": "urn:lark:problem:parameters", "detail": "wait: a number of seconds from 0 to 30 is accepted"}'
    controller.answers = [reply(422, problem, "application/problem+json")]
    outcome = worker.run("start", url=controller.url, LARK_WAIT="60")
    assert outcome.ad["LarkState"] == "unmanaged"
    assert outcome.ad["LarkReason"] == "wait: a number of seconds from 0 to 30 is accepted"


def test_retries_end_with_their_number(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(500, PROBLEM, "application/problem+json")]
    outcome = worker.run("start", url=controller.url, LARK_RETRIES="1")
    assert outcome.ad["LarkState"] == "unmanaged"
    assert len(controller.asked) == 2


def test_a_controller_that_hangs_does_not_hang_the_job(worker: Worker, controller: Controller) -> None:

    def hang(handler: BaseHTTPRequestHandler) -> None:
        controller.released.wait(120)

    controller.answers = [hang]
    begun = time.monotonic()
    outcome = worker.run("start", url=controller.url, LARK_TIMEOUT="1", LARK_RETRIES="5", LARK_WAIT="0")
    assert outcome.ad["LarkState"] == "unmanaged"
    assert time.monotonic() - begun < 15  # 1 s and what a loaded machine adds; without a bound it would be 120


@pytest.mark.parametrize(
    "answer",
    [
        reply(200, b"<html><script>\nx = 5\nLarkState = 1\n</script></html>", "text/html"),
        reply(200, os.urandom(4096)),
        reply(200, b""),
        reply(200, b"A" * 1_000_000),
        reply(200, 'LarkJobId = "not an id"\nLarkState = "enforced"\n'),
        raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nLarkJobId = "),
        raw(b"\0" * 100),
        raw(b""),
    ],
    ids=["page", "bytes", "empty", "huge", "no-id", "not-http", "cut-off", "nul", "closed"],
)
def test_a_garbled_answer_is_no_answer(
    worker: Worker, controller: Controller, answer: Callable[[BaseHTTPRequestHandler], None]
) -> None:
    controller.answers = [answer]
    outcome = worker.run("start", url=controller.url, LARK_RETRIES="0")
    assert set(outcome.ad) == {"LarkState", "LarkReason"}
    assert outcome.ad["LarkState"] == "unmanaged"


def test_only_plain_attributes_are_passed_on(worker: Worker, controller: Controller) -> None:
    unwanted = 'HookX = "open\nrm -rf /\nLarkY = strcat("a", "b")\n= 3\nLarkZ = "a\\"; B = \\"c"\n'
    controller.answers = [reply(201, ACCEPTED + unwanted)]
    outcome = worker.run("start", url=controller.url)
    assert set(outcome.ad) == {"LarkJobId", "LarkState", "LarkIPv4Address", "LarkLease", "LarkZ"}


# what HTCondor may hand over


def test_a_latin_1_ad_goes_out_as_it_is(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(422, "not UTF-8")]
    ad = JOB_AD.encode() + 'Title = "Müller"\n'.encode("latin-1")
    outcome = worker.run("start", url=controller.url, stdin=ad)
    assert ad.rstrip() in controller.asked[0].body
    assert "not UTF-8" in str(outcome.ad["HookStatusMessage"])


@pytest.mark.parametrize("size", [0, 1_000_000, 5_000_000])
def test_an_ad_of_any_size_is_survived(worker: Worker, controller: Controller, size: int) -> None:
    controller.answers = [reply(413, "the ads are larger than 262144 bytes")]
    outcome = worker.run("start", url=controller.url, stdin=b"x" * size)
    assert "262144" in str(outcome.ad["HookStatusMessage"])
    assert len(controller.asked[0].body) <= 2_200_000


def test_rubbish_on_standard_input_is_survived(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(422, "the job ad is no ClassAd")]
    for action in ("start", "update", "exit"):
        worker.run(action, url=controller.url, stdin=bytes(range(256)) * 64 + b"GlobalJobId = \0\xff\n")
    assert b"\xff" in controller.asked[0].body


def test_a_missing_machine_ad_is_the_controllers_to_judge(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(422, "Name: the machine ad has none")]
    outcome = worker.run("start", url=controller.url, _CONDOR_MACHINE_AD="-")
    assert "no machine ad" in outcome.stderr
    assert controller.asked[0].body.rstrip().endswith(b"------")
    outcome = worker.run("start", url=controller.url, _CONDOR_MACHINE_AD="/nonexistent")
    assert "Name: the machine ad has none" in str(outcome.ad["HookStatusMessage"])


def test_nowhere_to_write_changes_nothing(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(201, ACCEPTED)]
    for directory in ("/nonexistent", "/proc", "-"):
        outcome = worker.run("start", url=controller.url, _CONDOR_SCRATCH_DIR=directory)
        assert outcome.ad["LarkState"] == "enforced"
    outcome = worker.run("start", url=controller.url, LARK_STATE_DIR="/dev/full", TMPDIR="/dev/full")
    assert outcome.ad["LarkState"] == "enforced"


def test_a_full_disk_changes_nothing(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(201, ACCEPTED)]
    scratch = worker.folder / "scratch"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "full", str(scratch)], check=True)
    try:
        (scratch / "data").write_bytes(b"x" * 4096)
        outcome = worker.run("start", url=controller.url, TMPDIR=str(scratch))
    finally:
        subprocess.run(["umount", str(scratch)], check=True)
    assert outcome.ad["LarkState"] == "enforced"


def test_without_curl_the_setting_decides(worker: Worker, tmp_path: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    shell = shutil.which(worker.shell[0])
    assert shell
    for program in ("cat", "head", "sed", "tr", "id", "ls", "date", "sleep", "tail", "sha256sum", "rm"):
        found = shutil.which(program)
        assert found
        (bin_ / program).symlink_to(found)
    (bin_ / worker.shell[0]).symlink_to(shell)
    outcome = worker.run("start", url="http://127.0.0.1:9", PATH=str(bin_), LARK_ON_FAILURE="hold")
    assert outcome.ad["HookStatusMessage"] == "Lark: curl is not installed"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"LARK_URL": "-"}, "neither LARK_URL nor LARK_SOCKET is set"),
        ({"LARK_URL": "ftp://x"}, "does not begin with http"),
        ({"LARK_URL": "http://a b"}, "characters that a URL may not"),
        ({"LARK_TOKEN_FILE": "/nonexistent"}, "no token can be read from /nonexistent"),
        ({"LARK_TOKEN_FILE": "/proc/version"}, "is no bearer token"),
    ],
)
def test_wrong_settings_are_said(worker: Worker, settings: dict[str, str], said: str) -> None:
    outcome = worker.run("start", **{"url": "http://127.0.0.1:9", **settings})  # type: ignore[arg-type]  # all are str
    assert outcome.ad["LarkState"] == "unmanaged"
    assert said in str(outcome.ad["LarkReason"])


def test_a_number_out_of_range_takes_the_default(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(201, ACCEPTED)]
    outcome = worker.run(
        "start", url=controller.url, LARK_WAIT="61", LARK_TIMEOUT="; reboot", LARK_RETRIES="99999999999999999999"
    )
    assert outcome.ad["LarkState"] == "enforced"
    assert controller.asked[0].path == "/v1/jobs?wait=2"
    for name in ("LARK_WAIT", "LARK_TIMEOUT", "LARK_RETRIES"):
        assert name in outcome.stderr


def test_a_hook_that_is_interrupted_still_answers(worker: Worker, controller: Controller) -> None:
    arrived = threading.Event()

    def hang(handler: BaseHTTPRequestHandler) -> None:
        arrived.set()
        controller.released.wait(120)

    controller.answers = [hang]
    environment = {"PATH": os.environ["PATH"], "LARK_URL": controller.url, "LARK_TIMEOUT": "1", "LARK_RETRIES": "0"}
    process = subprocess.Popen(
        [*worker.shell, str(HOOK), "start"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment
    )
    assert arrived.wait(30)
    process.terminate()
    stdout, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert dict(classad2.parseOne(stdout.decode()))["LarkState"] == "unmanaged"


def test_an_unknown_action_is_said_and_harmless(worker: Worker) -> None:
    for args in ((), ("begin",)):
        outcome = worker.run(*args)
        assert outcome.stdout == ""
        assert "usage:" in outcome.stderr


# settings file


def test_the_settings_file_is_read_and_never_executed(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(201, ACCEPTED)]
    conf = worker.folder / "hook.conf"
    conf.write_text(
        "# where\n"
        f'LARK_URL="{controller.url}/"\n'
        f"LARK_TOKEN_FILE={worker.folder}/token\n"
        f"LARK_WAIT=$(touch {worker.folder}/executed)\n"
        f"touch {worker.folder}/executed\n"
        "LARK_COLOUR=blue\n"
        "LARK_ON_FAILURE='idle'"
    )
    conf.chmod(0o644)
    outcome = worker.run("start", LARK_HOOK_CONF=str(conf), LARK_URL="-", LARK_TOKEN_FILE="-")
    assert outcome.ad["LarkState"] == "enforced"
    assert "unknown setting LARK_COLOUR" in outcome.stderr
    assert not (worker.folder / "executed").exists()
    assert controller.asked[0].path == "/v1/jobs?wait=2"

    conf.chmod(0o666)
    outcome = worker.run("start", LARK_HOOK_CONF=str(conf), LARK_URL="-", LARK_TOKEN_FILE="-")
    assert "is ignored" in outcome.stderr
    assert "neither LARK_URL nor LARK_SOCKET" in str(outcome.ad["LarkReason"])


def test_the_environment_wins_over_the_file(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(201, ACCEPTED)]
    conf = worker.folder / "hook.conf"
    conf.write_text("LARK_URL=http://127.0.0.1:9\nLARK_WAIT=9\n")
    conf.chmod(0o600)
    worker.run("start", url=controller.url, LARK_HOOK_CONF=str(conf), LARK_WAIT="0")
    assert controller.asked[0].path == "/v1/jobs?wait=0"


# update and exit


def test_update_renews_the_lease(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(200, "")]
    outcome = worker.run("update", url=controller.url)
    assert outcome.stdout == ""
    assert [(a.method, a.path, a.body) for a in controller.asked] == [("POST", f"/v1/jobs/{ID}/renew", b"")]


def test_update_registers_a_job_whose_start_was_not_heard(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(404, PROBLEM), reply(201, ACCEPTED)]
    outcome = worker.run("update", url=controller.url)
    assert outcome.stdout == ""
    assert [(a.method, a.path) for a in controller.asked] == [
        ("POST", f"/v1/jobs/{ID}/renew"),
        ("POST", "/v1/jobs?wait=2"),
    ]


@pytest.mark.parametrize("reason", ["exit", "remove", "hold", "evict"])
def test_exit_ends_the_job_with_its_last_ad(worker: Worker, controller: Controller, reason: str) -> None:
    controller.answers = [reply(200, "")]
    ad = JOB_AD + "ExitCode = 0\n"
    outcome = worker.run("exit", reason, url=controller.url, stdin=ad.encode())
    assert outcome.stdout == ""
    (asked,) = controller.asked
    assert (asked.method, asked.path) == ("DELETE", f"/v1/jobs/{ID}")
    assert asked.body.decode().rstrip() == ad.rstrip()


def test_exit_finds_the_job_although_the_start_answer_was_lost(worker: Worker, controller: Controller) -> None:
    controller.answers = [raw(b""), reply(204)]
    worker.run("start", url=controller.url, LARK_RETRIES="0")
    worker.run("exit", "exit", url=controller.url)
    assert controller.asked[-1].path == f"/v1/jobs/{ID}"


def test_exit_uses_the_id_that_was_kept_when_the_ads_do_not_tell(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(201, ACCEPTED.replace(ID, OTHER_ID)), reply(200)]
    worker.run("start", url=controller.url)
    worker.run("exit", "exit", url=controller.url, stdin=b'Owner = "alice"\n')
    assert controller.asked[-1].path == f"/v1/jobs/{OTHER_ID}"
    assert not [entry for entry in (worker.folder / "scratch").iterdir() if entry.name.startswith(".lark")]


def test_exit_asks_for_the_kept_id_when_the_computed_one_is_unknown(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(201, ACCEPTED.replace(ID, OTHER_ID)), reply(404), reply(200)]
    worker.run("start", url=controller.url)
    worker.run("exit", "exit", url=controller.url)
    assert [a.path for a in controller.asked[1:]] == [f"/v1/jobs/{ID}", f"/v1/jobs/{OTHER_ID}"]


def test_a_kept_id_that_is_a_link_or_rubbish_is_not_used(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(404)]
    kept = worker.folder / "scratch" / ".lark_job_id.slot1_2"
    victim = worker.folder / "victim"
    victim.write_text(OTHER_ID)
    kept.symlink_to(victim)
    worker.run("exit", "exit", url=controller.url, stdin=b"")
    kept.unlink()
    kept.write_text("../../v1/policy\n")
    worker.run("exit", "exit", url=controller.url, stdin=b"")
    assert controller.asked == []

    controller.answers = [reply(201, ACCEPTED)]
    kept.unlink()
    kept.symlink_to(victim)
    worker.run("start", url=controller.url)
    assert victim.read_text() == OTHER_ID
    assert kept.read_text().strip() == ID


@pytest.mark.parametrize("status", [400, 413])
def test_an_exit_ad_that_is_not_accepted_ends_the_job_all_the_same(
    worker: Worker, controller: Controller, status: int
) -> None:
    controller.answers = [reply(status, "Byte 7 of the body is not UTF-8"), reply(200)]
    worker.run("exit", "exit", url=controller.url, stdin=JOB_AD.encode() + b'Title = "\xfc"\n')
    assert [(a.method, a.path) for a in controller.asked] == [("DELETE", f"/v1/jobs/{ID}")] * 2
    assert controller.asked[1].body == b""


def test_exit_of_a_job_that_nobody_knows_is_harmless(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(404)]
    outcome = worker.run("exit", "exit", url=controller.url)
    assert outcome.stdout == ""
    assert "does not know this job" in outcome.stderr


def test_the_name_of_the_link_is_the_action(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(200, ACCEPTED)]
    for name in ("start", "update", "exit"):
        (worker.folder / f"lark-{name}").symlink_to(HOOK)
    worker.run(script=worker.folder / "lark-start", url=controller.url)
    worker.run(script=worker.folder / "lark-update", url=controller.url)
    worker.run("evict", script=worker.folder / "lark-exit", url=controller.url)
    assert [asked.method for asked in controller.asked] == ["POST", "POST", "DELETE"]


def test_the_id_is_the_controllers_own(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(200)]
    ad = 'GLOBALJOBID="s#1.0#5"\n   jobcurrentstartdate   =  17  \nOther = "GlobalJobId = 3"\n'
    worker.run("exit", "exit", url=controller.url, stdin=ad.encode())
    expected = hashlib.sha256(b"s#1.0#5\n17\nslot1_2@worker1.example").hexdigest()[:16]
    assert controller.asked[0].path == f"/v1/jobs/{expected}"


def test_without_a_slots_name_the_id_is_still_the_controllers_own(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(200)]
    for line, slot in (('RemoteHost = "slot3@w9"', "slot3@w9"), ("", "w1")):
        (worker.folder / "machine.ad").write_text('Machine = "w1"\n')
        worker.run("exit", "exit", url=controller.url, stdin=f'GlobalJobId = "s#1"\n{line}\n'.encode())
        assert controller.asked[-1].path == f"/v1/jobs/{RunKey('s#1', 0, slot).id}"


# transports


def test_a_unix_socket(worker: Worker, tmp_path: Path) -> None:
    controller = Controller(answers=[reply(201, ACCEPTED)])
    path = tmp_path / "s"
    with UnixServer(str(path), controller.handler()) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            outcome = worker.run("start", LARK_URL="-", LARK_TOKEN_FILE="-", LARK_SOCKET=str(path))
        finally:
            server.shutdown()
            thread.join()
    assert outcome.ad["LarkState"] == "enforced"
    assert "Authorization" not in controller.asked[0].headers


def test_tls_is_checked(worker: Worker, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=lark", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    for controller in serve(Controller(answers=[reply(201, ACCEPTED)]), context):
        outcome = worker.run("start", url=controller.url, LARK_CA_FILE=str(certificate))
        assert outcome.ad["LarkState"] == "enforced"

        outcome = worker.run("start", url=controller.url, LARK_RETRIES="0", LARK_ON_FAILURE="hold")
        assert "certificate" in str(outcome.ad["HookStatusMessage"])
        assert len(controller.asked) == 1


# The controller's own API


@pytest.fixture
def api(tmp_path: Path) -> Iterator[tuple[FakeControls, Server]]:
    chosen = settings.load({}, {"rest_listen": f"127.0.0.1:0,unix:{tmp_path}/rest.sock"})
    controls = FakeControls()
    server = Server(create_app(controls, chosen, Tokens(write_tokens(tmp_path / "tokens.yaml"))), chosen)
    server.start()
    yield controls, server
    server.stop()


def test_a_jobs_life_through_the_real_api(worker: Worker, api: tuple[FakeControls, Server]) -> None:
    controls, server = api
    tcp, unix = server.addresses
    job_ad, machine_ad = post_body().split("------\n")
    (worker.folder / "token").write_text(TOKENS["hook"])
    (worker.folder / "machine.ad").write_text(machine_ad)

    def run(*args: str, ad: bytes = job_ad.encode(), **where: str) -> Outcome:
        return worker.run(*args, stdin=ad, **{"LARK_URL": f"http://{tcp}", **where})  # type: ignore[arg-type]  # all str

    started = run("start")
    (job,) = controls.known.values()
    assert started.ad["LarkJobId"] == job.id
    assert started.ad["LarkState"] == "enforced"
    assert started.ad["LarkInnerAddressIPv4"] == str(job.ipv4)
    assert run("start", LARK_URL="-", LARK_SOCKET=unix.path).ad["LarkJobId"] == job.id

    assert run("update").stderr == ""
    assert run("exit", "exit", ad=job_ad.encode() + b'Title = "\xfc"\n').stdout == ""
    assert controls.ended.keys() == {job.id}

    refused = run("start", ad=b"ClusterId = 7\n")
    assert refused.ad["HookStatusCode"] == 10
    assert "GlobalJobId" in str(refused.ad["HookStatusMessage"]) or "Owner" in str(refused.ad["HookStatusMessage"])
    wrong = run("start", LARK_TOKEN_FILE="-")
    assert wrong.ad["LarkState"] == "unmanaged"
    assert run("start", LARK_WAIT="60").ad["LarkState"] == "unmanaged"
    # An ad in Latin-1 is refused, and held with the reason.
    assert run("start", ad=job_ad.encode() + b'Title = "\xfc"\n').ad["HookStatusCode"] == 10


def test_a_reason_in_utf_8_is_passed_on(worker: Worker, controller: Controller) -> None:
    controller.answers = [reply(201, ACCEPTED + 'LarkReason = "wartet auf Zürich"\n')]
    assert worker.run("start", url=controller.url).ad["LarkReason"] == "wartet auf Zürich"


def test_shellcheck_finds_nothing() -> None:
    result = subprocess.run(["shellcheck", "--shell=sh", str(HOOK)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
