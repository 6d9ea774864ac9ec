"""``lark-worker setup`` and join tokens: a worker joins over TLS, with a real controller and a real Open vSwitch."""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from lab.openvswitch import OpenVSwitch
from lark_common.client import Client, ProblemError
from lark_common.settings_table import lines_of
from lark_controller.cli import main as lark
from lark_controller.cli.run import Service
from lark_controller.settings import load
from lark_worker import cli as worker
from tests.fixtures.openflow import openssl
from tests.fixtures.service import wait
from tests.fixtures.site import SetUp

EXAMPLE = Path(__file__).parents[2] / "etc" / "worker.env"
URL = "https://localhost:8443"
HOST, OTHER = "worker1.example", "worker2.example"
BRIDGE = "bjoin"
# Which one localhost is, the machine's file of hosts says.
LOOPBACK = r"(?:127\.0\.0\.1|::1)"


@dataclass
class Site:
    """A controller as ``lark setup --joins`` has set it up, and directories of workers."""

    setup: SetUp
    folder: Path
    capsys: pytest.CaptureFixture[str]
    service: Service | None = None
    workers: dict[str, Path] = field(default_factory=dict)

    def start(self, **overrides: str) -> None:
        settings = lines_of((self.setup.directory / "lark.env").read_text())
        self.service = Service(load(settings, {"state_dir": str(self.setup.directory / "state"), **overrides}))
        self.service.start()

    @property
    def state(self) -> Path:
        return self.setup.directory / "state"

    @property
    def operator(self) -> Client:
        secret = (self.setup.directory / "operator.token").read_text().strip()
        return Client(URL, secret, str(self.setup.directory / "ca.pem"))

    def lark(self, *words: str) -> str:
        """The output of the command for the operator."""
        self.capsys.readouterr()
        token, authority = self.setup.directory / "operator.token", self.setup.directory / "ca.pem"
        options = ("--url", URL, "--token-file", str(token), "--ca", str(authority))
        assert lark.main([*words, *options]) == lark.OK, self.capsys.readouterr().err
        return self.capsys.readouterr().out

    def join_token(self, *hosts: str) -> str:
        return self.lark("join", "add", *(hosts or (HOST,))).strip()

    def etc(self, host: str = HOST) -> Path:
        return self.folder / host / "etc"

    def worker(self, *options: str, host: str = HOST, url: str = URL) -> tuple[list[str], str]:
        """The command's lines of output until its check, and of errors."""
        self.capsys.readouterr()
        words = ["setup", "--controller", url, "--host", host, "--directory", str(self.etc(host)), *options]
        worker.main(words)
        said = self.capsys.readouterr()
        return said.out.partition("\nlark-worker check:")[0].splitlines(), said.err.strip()

    def files(self, host: str = HOST) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.etc(host).iterdir())}


@pytest.fixture
def site(
    tmp_path: Path, own_ovs: OpenVSwitch, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    setup = SetUp(tmp_path / "lark")
    setup.options = ("--name", "localhost", "--networks", "10.64.0.0/16", "--gateways", "10.64.0.1", "--joins")
    assert setup() == lark.OK
    monkeypatch.setenv("LARK_WORKER_OVS_DATABASE", f"unix:{own_ovs.directory}/db.sock")
    monkeypatch.setenv("LARK_WORKER_STATE_DIR", str(tmp_path / "worker-state"))
    monkeypatch.setenv("LARK_WORKER_SOCKET", str(tmp_path / "worker.sock"))
    monkeypatch.setenv("LARK_WORKER_BRIDGE", BRIDGE)
    own_ovs.add_bridge(BRIDGE, 0xE1)
    made = Site(setup, tmp_path, capsys)
    yield made
    if made.service is not None:
        made.service.stop()


def await_sync(site: Site, own_ovs: OpenVSwitch) -> None:
    """Wait until the one switch is in sync; where it is not, what controller and switch say of it."""
    try:
        wait(lambda: [switch["in_sync"] for switch in site.operator.switches()] == [True])
    except AssertionError as error:
        log = (own_ovs.directory / "ovs-vswitchd.log").read_text().splitlines()
        told = (own_ovs.vsctl("list", "controller"), own_ovs.vsctl("list", "bridge", BRIDGE), *log[-20:])
        raise AssertionError("\n".join((str(error), str(site.operator.switches()), *told))) from None


@pytest.mark.ovs
def test_a_worker_joins_by_one_command_and_its_switch_connects(site: Site, own_ovs: OpenVSwitch) -> None:
    site.start(ovsdb="ssl:{host}:6640")
    token = site.join_token(HOST, OTHER)
    said, wrong = site.worker("--join", token)
    assert "".join(said[:1]).startswith(f"joined {URL} as {HOST}: "), wrong
    await_sync(site, own_ovs)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in site.etc().iterdir()}
    assert modes == {
        "ca.pem": 0o644, "switch.key": 0o600, "switch.pem": 0o600, "worker.env": 0o600, "worker.token": 0o600,
    }  # fmt: skip
    settings = lines_of((site.etc() / "worker.env").read_text())
    assert settings["LARK_WORKER_URL"] == URL
    assert settings["LARK_WORKER_NETWORKS"] == "10.64.0.0/16"
    assert settings["LARK_WORKER_GATEWAYS"] == "10.64.0.1"
    own = (site.etc() / "worker.token").read_text().strip()
    client = Client(URL, own, str(site.etc() / "ca.pem"))
    assert client.renew_all(HOST, ())["missing"] == []
    with pytest.raises(ProblemError, match=f"is good for {HOST}, not for {OTHER}"):
        client.renew_all(OTHER, ())
    # The hash alone is at the controller, and neither secret is anywhere in its files.
    digest = hashlib.sha256(own.encode()).hexdigest().encode()
    files = [path for path in site.setup.directory.rglob("*") if path.is_file()]
    assert any(digest in path.read_bytes() for path in files)
    secret = token.rpartition(".")[2]
    for path in files:
        assert own.encode() not in path.read_bytes(), path
        assert secret.encode() not in path.read_bytes(), path
        assert digest not in path.read_bytes() or stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert f"DNS:{HOST}\n" in openssl("x509", "-in", str(site.etc() / "switch.pem"), "-noout", "-text")
    (listens,) = own_ovs.vsctl("get-manager").split()
    assert listens in ("pssl:6640", "pssl:6640:[::]")
    assert own_ovs.vsctl("get", "manager", listens, "inactivity_probe").strip() == "60000"
    listed = site.lark("join", "list")
    assert re.search(rf"{HOST} +2\d+-\S+ +{LOOPBACK}", listed)
    assert re.search(rf"{OTHER}$", listed, re.MULTILINE)
    assert re.search(rf"^{HOST} +2\d+-\S+ +{LOOPBACK} +[0-9a-f]{{12}}$", site.lark("join", "workers"), re.MULTILINE)
    assert HOST not in site.lark("join", "revoke", HOST)
    with pytest.raises(ProblemError, match="not known"):
        client.renew_all(HOST, ())
    assert [each["action"] for each in site.operator.audit("joins")] == [
        "worker's token revoked", "worker joined", "join token made"
    ]  # fmt: skip


@pytest.mark.ovs
def test_a_second_run_changes_nothing_and_needs_no_token(site: Site) -> None:
    site.start()
    site.worker("--join", site.join_token())
    before, known = site.files(), site.lark("join", "workers")
    said, _ = site.worker()
    assert said[0] == f"{HOST} has joined {URL} already"
    assert site.files() == before
    assert site.lark("join", "workers") == known
    (as_json,), _ = site.worker("--json")
    told = json.loads(as_json)
    assert told["steps"] == said
    assert {"certificates", "controller", "HTCondor"} <= {each["subject"] for each in told["check"]}


@pytest.mark.ovs
def test_several_controllers_that_the_site_has_named_stay(site: Site, own_ovs: OpenVSwitch) -> None:
    site.start()
    site.worker("--join", site.join_token())
    (target,) = own_ovs.vsctl("get-controller", BRIDGE).split()
    targets, named = {target, "ssl:192.0.2.11:6653"}, f"{URL},https://lark2.example:8443"
    own_ovs.vsctl("set-controller", BRIDGE, *targets)
    settings = site.etc() / "worker.env"
    settings.write_text(settings.read_text().replace(f"LARK_WORKER_URL={URL}\n", f"LARK_WORKER_URL={named}\n"))
    before = site.files()
    said, _ = site.worker()
    assert said[0] == f"{HOST} has joined {URL} already"
    assert site.files() == before
    # Its certificate is made anew.
    (site.etc() / "switch.pem").unlink()
    said, _ = site.worker("--join", site.join_token())
    assert said[0].startswith(f"joined {URL} as {HOST}")
    assert lines_of(settings.read_text())["LARK_WORKER_URL"] == named
    assert set(own_ovs.vsctl("get-controller", BRIDGE).split()) == targets


@pytest.mark.ovs
def test_an_answer_that_was_lost_is_asked_for_again(site: Site) -> None:
    """The same worker may use its token again, since it has the same token of its own; nobody else may."""
    site.start()
    token = site.join_token()
    site.worker("--join", token)
    own = site.files()["worker.token"]
    (site.etc() / "switch.pem").unlink()
    said, _ = site.worker("--join", token)
    assert said[0].startswith("joined ")
    assert site.files()["worker.token"] == own
    for path in site.etc().iterdir():
        path.unlink()
    said, wrong = site.worker("--join", token)
    assert said == []
    assert re.search(
        rf"The join token was used for {HOST} already, at 2\S+ \S+ UTC from 127\.0\.0\.1\. If that was", wrong
    )
    # A new installation with a new token; the former token of the worker is good for nothing any more.
    site.worker("--join", site.join_token())
    assert site.files()["worker.token"] != own
    with pytest.raises(ProblemError, match="not known"):
        Client(URL, own.decode().strip(), str(site.etc() / "ca.pem")).renew_all(HOST, ())


@pytest.mark.ovs
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("another host", rf"The join token is not for {OTHER}; make one: lark join add {OTHER}\."),
        ("removed", r"The join token is not known, or has expired; make one: lark join add\."),
        ("of another site", r"shows another authority than the join token names: somebody else answers there"),
        ("no token", rf"--join is needed: on the controller, lark join add {HOST}"),
        ("half a token", r"--join: it is no join token; accepted: all of what `lark join add` has printed"),
        ("not over TLS", r"--controller http://localhost:8443: accepted: https://NAME:PORT"),
        ("several", r"--controller http://localhost:8080: accepted: https://NAME:PORT"),
        ("another port", r"cannot be reached: .* Is --controller right, and may this worker reach that port\?"),
        ("no bridge", r"Open vSwitch has no bridge bnone: name the interface that is to be its uplink"),
        ("another name", r"does its certificate have the name in --controller\?"),
        ("a setting that is none", r"worker\.env|LARK_WORKER_MTU=tiny: accepted: a whole number"),
        ("a program", r"LARK_WORKER_SCRIPT is not a controller's to give; write it into worker\.env"),
        ("a quotation mark", r"LARK_WORKER_LINUX_BRIDGE has a quotation mark or a backslash, which is no part"),
        ("an answer for another host", r"does not answer as a Lark controller does: it answers for '\\x1b\[2Jb'"),
    ],
)
def test_each_refusal_says_what_to_do(site: Site, monkeypatch: pytest.MonkeyPatch, case: str, message: str) -> None:
    site.start()
    token, host, url = site.join_token(), HOST, URL
    template = site.setup.directory / "join.env"
    match case:
        case "another host":
            host = OTHER
        case "removed":
            (known,) = json.loads(site.lark("join", "list", "--json"))
            site.lark("join", "remove", known["id"])
        case "of another site":
            mark, pin, secret = token.split(".")
            token = ".".join((mark, pin[::-1][1:] + "A", secret))
        case "no token":
            token = ""
        case "half a token":
            token = token[:40]
        case "not over TLS":
            url = url.replace("https", "http")
        case "several":
            url += ",http://localhost:8080"
        case "another port":
            url = url.replace("8443", "8444")
        case "no bridge":
            monkeypatch.setenv("LARK_WORKER_BRIDGE", "bnone")
        case "another name":
            url = url.replace("localhost", "127.0.0.1")
        case "a setting that is none":
            template.write_text("LARK_WORKER_MTU=tiny\n")
        case "a program":
            template.write_text("LARK_WORKER_SCRIPT=/bin/true\n")
        case "a quotation mark":
            # For systemd the lines behind it would be part of its value: the controller's URL, and the authority.
            template.write_text("LARK_WORKER_LINUX_BRIDGE='br\n")
        case "an answer for another host":
            answer = Client.join
            monkeypatch.setattr(Client, "join", lambda *sent: {**answer(*sent), "host": "\x1b[2Jb"})
    _, wrong = site.worker(*(["--join", token] if token else []), host=host, url=url)
    assert re.search(message, wrong), wrong
    assert len(wrong.splitlines()) == 1, wrong
    assert wrong.startswith("lark-worker: ")


@pytest.mark.ovs
def test_a_join_token_is_good_for_nothing_else(site: Site) -> None:
    site.start()
    token = site.join_token()
    for word in (token, token.rpartition(".")[2]):
        client = Client(URL, word, str(site.setup.directory / "ca.pem"))
        asks = (client.switches, partial(client.renew_all, HOST, ()), client.join_tokens, client.policy)
        for ask in asks:
            with pytest.raises(ProblemError) as caught:
                ask()
            assert caught.value.status == 401
    # Nor is a worker's token, or an operator's, a join token.
    with pytest.raises(ProblemError) as caught:
        site.operator.join(HOST, "0" * 64, None)
    assert caught.value.status == 401


@pytest.mark.ovs
def test_a_site_with_an_authority_of_its_own_signs_itself(site: Site, own_ovs: OpenVSwitch) -> None:
    env = site.setup.directory / "lark.env"
    env.write_text(re.sub(r"(?m)^LARK_JOIN_KEY=.*\n", "", env.read_text()))
    site.start()
    token = site.join_token()
    _, wrong = site.worker("--join", token)
    assert f"signs no certificates (LARK_JOIN_KEY is not set). Put the key and the certificate of {HOST}" in wrong
    request = openssl("req", "-new", "-key", str(site.etc() / "switch.key"), "-subj", f"/CN={HOST}")
    (site.folder / "request").write_text(request)
    authority, key = site.setup.directory / "ca.pem", site.setup.directory / "ca/ca.key"
    signed = openssl(
        "x509",
        "-req",
        "-in",
        str(site.folder / "request"),
        "-CA",
        str(authority),
        "-CAkey",
        str(key),
        "-CAserial",
        str(site.folder / "serial"),
        "-CAcreateserial",
        "-days",
        "90",
    )
    (site.etc() / "switch.pem").write_text(signed)
    said, _ = site.worker("--join", token)
    assert said[0].startswith(f"joined {URL} as {HOST}")
    assert (site.etc() / "switch.pem").read_text() == signed


@pytest.mark.ovs
def test_settings_of_the_site_stay(site: Site) -> None:
    site.start()
    site.etc().mkdir(parents=True)
    (site.etc() / "worker.env").write_text(
        "# the site's\nLARK_WORKER_GATEWAYS=10.64.0.9\nLARK_WORKER_URL=http://old\n#LARK_WORKER_MTU=9000\n"
    )
    said, _ = site.worker("--join", site.join_token())
    assert "kept as it is there: LARK_WORKER_GATEWAYS (the controller gives 10.64.0.1)" in said
    text = (site.etc() / "worker.env").read_text()
    assert text.startswith(f"# the site's\nLARK_WORKER_GATEWAYS=10.64.0.9\nLARK_WORKER_URL={URL}\n#LARK_WORKER_MTU")


@pytest.mark.ovs
def test_the_packages_example_keeps_nothing_from_the_worker(site: Site) -> None:
    """The package has put it there before the worker joins."""
    template = site.setup.directory / "join.env"
    template.write_text(template.read_text().replace("10.64.", "10.65."))
    site.start()
    site.etc().mkdir(parents=True)
    (site.etc() / "worker.env").write_text(EXAMPLE.read_text())
    said, _ = site.worker("--join", site.join_token())
    assert not [line for line in said if line.startswith("kept as it is there")]
    settings = lines_of((site.etc() / "worker.env").read_text())
    assert settings["LARK_WORKER_NETWORKS"] == "10.65.0.0/16"
    assert settings["LARK_WORKER_GATEWAYS"] == "10.65.0.1"
    assert settings["LARK_WORKER_URL"] == URL


@pytest.mark.ovs
def test_who_guesses_is_slowed_down(site: Site) -> None:
    site.start()
    guesser = Client(URL, "a" * 43, str(site.setup.directory / "ca.pem"))
    statuses = []
    for _ in range(15):
        with pytest.raises(ProblemError) as caught:
            guesser.join(HOST, "0" * 64, None)
        statuses.append(caught.value.status)
    assert statuses[:10] == [401] * 10
    assert statuses[-1] == 429
    # The others behind that address join all the same.
    said, _ = site.worker("--join", site.join_token())
    assert said[0].startswith("joined ")


def test_the_private_authoritys_key_is_open_to_the_controller_where_workers_join_alone(tmp_path: Path) -> None:
    closed, joins = SetUp(tmp_path / "closed"), SetUp(tmp_path / "joins")
    assert closed() == lark.OK
    assert joins("--joins") == lark.OK
    assert closed.rights()["ca/ca.key"][0] == "-rw-------"
    assert closed.rights()["ca"][0] == "drwx------"
    assert joins.rights()["ca/ca.key"][0] == "-rw-r-----"
    assert joins.rights()["ca"][0] == "drwxr-x---"
    assert "LARK_JOIN" not in (closed.directory / "lark.env").read_text()
    before = joins.identity()
    assert joins("--joins") == lark.OK
    assert joins.identity() == before
