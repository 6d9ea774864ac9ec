"""Workers that join at one controller, and the other that takes over: two processes on one PostgreSQL, over TLS."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread

import pytest

from lab.postgres import PostgresServer
from lab.run import free_port
from lark_common.client import Client
from lark_common.errors import LarkError
from lark_common.settings_table import lines_of
from lark_controller.cli import main as cli
from lark_controller.rest.joins.former_files import JOINS, TAKEN, WORKERS
from lark_controller.rest.tokens import Scope, add
from tests.cluster.test_processes import until
from tests.fixtures.openflow import openssl
from tests.fixtures.site import SetUp

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).parents[2]
FIRST, SECOND, FORMER = "worker1.example", "worker2.example", "worker9.example"
# The tokens that these workers have made for themselves.
OWN = {host: f"lark_{host}" for host in (FIRST, SECOND, FORMER)}


def sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Controller:
    """A controller in a process of its own, with the site's files, and with ports and a state directory of its own."""

    def __init__(self, name: str, site: SetUp, folder: Path, url: str) -> None:
        self.name, self.authority = name, site.directory / "ca.pem"
        self.state, self.log, self.tokens = folder / name, folder / f"{name}.log", folder / f"{name}-tokens.yaml"
        self.state.mkdir()
        # Copied from machine to machine, as the how-to has it.
        self.tokens.write_bytes((site.directory / "tokens.yaml").read_bytes())
        self.tokens.chmod(0o600)
        self.operator = (site.directory / "operator.token").read_text().strip()
        self.rest = free_port()
        self.environ = {
            **os.environ,
            **lines_of((site.directory / "lark.env").read_text()),
            "LARK_STATE_DIR": str(self.state),
            "LARK_TOKENS_FILE": str(self.tokens),
            "LARK_OPENFLOW_LISTEN": "",
            "LARK_OPENFLOW_TLS_LISTEN": f"127.0.0.1:{free_port()}",
            "LARK_REST_LISTEN": f"127.0.0.1:{self.rest}",
            "LARK_DATABASE_URL": url,
            "LARK_INSTANCE_NAME": name,
            "LARK_INSTANCE_URL": self.url,
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"https://localhost:{self.rest}"

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "lark_controller.cli.main", "run"]
            self.process = subprocess.Popen(command, env=self.environ, cwd=ROOT, stderr=log)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def by(self, secret: str) -> Client:
        """This controller as the holder of a token has it, for one attempt a question."""
        return Client(self.url, secret, str(self.authority), timeout=20)

    @property
    def boss(self) -> Client:
        return self.by(self.operator)

    def state_of(self, name: str) -> str:
        try:
            return next(str(each["state"]) for each in self.boss.instances()["instances"] if each["name"] == name)
        except (LarkError, StopIteration):
            return ""

    def is_active(self) -> bool:
        if self.state_of(self.name) != "active":
            return False
        try:
            self.boss.join_tokens()
        except LarkError:
            return False
        return True

    def knows(self, secret: str) -> bool:
        """True where the caller is known, if not as one who may ask for this: also while it stands by."""
        code = status(lambda: self.by(secret).instances())
        # 429: a caller at this address was refused too often already, and this one is none that is known.
        assert code in (401, 403, 429)
        return code == 403

    def joins(self, join_token: str, host: str, own: str, request: str | None = None) -> int:
        """The status of a worker's attempt to join."""
        return status(lambda: self.by(join_token.rpartition(".")[2]).join(host, sha256(own), request))


def status(ask: object) -> int:
    assert callable(ask)
    try:
        ask()
    except LarkError as error:
        return int(getattr(error, "status", 0))
    return 200


def write_former_files(state: Path, join_id: str) -> None:
    """The files of a controller of a former release, at which a worker has joined."""
    used = {"at": time.time() - 60, "peer": "10.0.0.9", "sha256": sha256(OWN[FORMER])}
    token = {"sha256": sha256("former"), "expires": time.time() + 3600, "actor": "operator", "hosts": {FORMER: used}}
    (state / JOINS).write_text(json.dumps({join_id: token}))
    line = f"{FORMER}: {{sha256: {sha256(OWN[FORMER])}, scopes: [hook], hosts: [{FORMER}]}}\n"
    (state / WORKERS).write_text(line)
    for name in (JOINS, WORKERS):
        (state / name).chmod(0o600)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Controller, Controller]]:
    """``a``, which is active and had a former release's files, and ``b``, which stands by."""
    site = SetUp(tmp_path / "lark")
    site.options = ("--name", "localhost", "--networks", "10.64.0.0/16", "--joins")
    assert site() == cli.OK
    with tempfile.TemporaryDirectory(prefix="lark-join-", dir="/tmp") as directory:
        server = PostgresServer(Path(directory))
        server.create()
        server.start()
        url = server.new_database()
        a, b = Controller("a", site, tmp_path, url), Controller("b", site, tmp_path, url)
        write_former_files(a.state, "0123456789ab")
        try:
            a.start()
            until(a.is_active)
            b.start()
            until(lambda: b.state_of("b") == "standby")
            yield a, b
        finally:
            for each in (a, b):
                if each.process is not None and each.process.poll() is None:
                    each.kill()
            server.stop()


def test_a_worker_that_has_joined_is_known_after_a_takeover(two: tuple[Controller, Controller], tmp_path: Path) -> None:
    a, b = two
    made = a.boss.add_join_token([FIRST, SECOND], 3600)
    join_token = made["token"]

    # Both are asked at the same moment, one of them by way of the other: one lets somebody join.
    start, found = Barrier(4), []

    def ask(controller: Controller, own: str) -> None:
        start.wait(60)
        found.append((controller.joins(join_token, FIRST, own), own))

    pairs = [(a, OWN[FIRST]), (b, "lark_b1"), (a, "lark_a2"), (b, "lark_b2")]
    threads = [Thread(target=ask, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(code for code, _ in found) == [200, 409, 409, 409]
    first = next(own for code, own in found if code == 200)
    assert a.by(first).renew_all(FIRST, ())["missing"] == []
    assert a.by(OWN[FORMER]).renew_all(FORMER, ())["missing"] == []
    assert sorted(path.name for path in a.state.iterdir()) == [JOINS + TAKEN, WORKERS + TAKEN]
    # The one that stands by knows them, too, and which file of tokens the other has.
    until(lambda: b.knows(first) and b.knows(OWN[FORMER]))
    assert not any(b.knows(own) for code, own in found if code != 200)
    assert len({each["tokens"] for each in b.boss.instances()["instances"]}) == 1

    a.kill()
    until(b.is_active)
    assert b.by(first).renew_all(FIRST, ())["missing"] == []
    assert b.by(OWN[FORMER]).renew_all(FORMER, ())["missing"] == []
    # What was used at the one is used at the other; the worker itself may ask again; another host may join here.
    assert b.joins(join_token, FIRST, "lark_stranger") == 409
    assert b.joins(join_token, FIRST, first) == 200
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(tmp_path / "key"))
    request = openssl("req", "-new", "-key", str(tmp_path / "key"), "-subj", f"/CN={SECOND}")
    signed = b.by(join_token.rpartition(".")[2]).join(SECOND, sha256(OWN[SECOND]), request)
    (tmp_path / "signed").write_text(signed["certificate"])
    openssl("verify", "-CAfile", str(b.authority), str(tmp_path / "signed"))
    assert b.by(OWN[SECOND]).renew_all(SECOND, ())["missing"] == []

    # What is revoked at the one is soon refused at the other.
    a.start()
    until(lambda: a.state_of("a") == "standby")
    until(lambda: a.knows(first) and a.knows(OWN[SECOND]))
    assert [each["host"] for each in b.boss.revoke_joined_worker(FIRST)] == [SECOND, FORMER]
    assert not b.knows(first)
    until(lambda: not a.knows(first))
    assert a.knows(OWN[SECOND])
    b.kill()
    until(a.is_active)
    assert not a.knows(first)
    assert a.joins(join_token, FIRST, first) == 409
    assert a.by(OWN[SECOND]).renew_all(SECOND, ())["missing"] == []
    trail = [(each["actor"], each["action"]) for each in a.boss.audit("joins")]
    by = f"join {made['id']}"
    assert trail[::-1] == [
        ("controller", "joined workers taken over"),
        ("operator", "join token made"),
        (by, "worker joined"),
        (by, "worker joined"),
        ("operator", "worker's token revoked"),
    ]
    said = json.dumps(list(a.boss.audit("joins"))) + a.log.read_text() + b.log.read_text()
    for secret in (first, OWN[SECOND], join_token.rpartition(".")[2]):
        assert secret not in said
        assert sha256(secret) not in said


def test_files_of_tokens_that_differ_are_named(
    two: tuple[Controller, Controller], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = two
    options = ("--url", a.url, "--ca", str(a.authority), "--token-file", str(tmp_path / "lark/operator.token"))

    def warnings() -> str:
        capsys.readouterr()
        assert cli.main(["instances", *options]) == cli.OK
        return capsys.readouterr().err

    until(lambda: all(each["tokens"] for each in a.boss.instances()["instances"]))
    assert warnings() == ""
    add(b.tokens, "new", [Scope.READ])
    until(lambda: "The tokens files (LARK_TOKENS_FILE) of a and b differ" in warnings())
    a.tokens.write_bytes(b.tokens.read_bytes())
    until(lambda: warnings() == "")
