"""External addresses on a plain Linux gateway, from a request at a real controller to a call from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import Net
from lark_controller.rest.tokens import Scope, add
from tests.fixtures.service import Lark, wait
from tests.worker.test_gateway import POOL, Site, connected, listening, reached

pytestmark = pytest.mark.ovs

FIRST, SECOND = "198.51.100.64", "198.51.100.65"

POLICY = f"""version: 1
networks: {{jobs: [10.64.0.0/24], local: [10.0.0.0/8]}}
external:
  pools: {{public: [{POOL}]}}
  quarantine: 0
  rules:
    - {{when: 'Owner == "alice"', pool: public, open: [tcp/80-90], per_user: 2}}
    - {{when: 'Owner == "bob"', pool: public, open: [any]}}
"""


@pytest.fixture
def lark(tmp_path: Path) -> Iterator[Lark]:
    made = Lark(tmp_path, POLICY, LARK_REST_LISTEN=f"127.0.0.1:0,unix:{tmp_path}/rest.sock")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def site() -> Iterator[Site]:
    with Net() as net:
        yield Site(net)


@contextmanager
def gateway(site: Site, directory: Path) -> Iterator[None]:
    """The program, which would ask again in half a minute if nobody told it of a change."""
    token = directory / "gateway.token"
    if not token.exists():
        token.write_text(add(directory / "tokens.yaml", "gateway", [Scope.GATEWAY]))
        token.chmod(0o600)
    command = [sys.executable, "-m", "lark_worker.cli", "gateway", "--seconds", "30", "--wan", "wan", "--pool", POOL]
    running = subprocess.Popen(
        ["ip", "netns", "exec", site.gateway.namespace, *command, "--jobs", "10.64.0.0/24"],
        env={
            **os.environ,
            "LARK_WORKER_URL": f"unix:{directory}/rest.sock",
            "LARK_WORKER_TOKEN_FILE": str(token),
        },
    )
    try:
        wait(lambda: "lark-gateway" in site.listed("tables"))
        yield
    finally:
        running.kill()
        running.wait()


def a_job(lark: Lark, number: int, owner: str, job: str = "", wait: float = 0.0) -> Any:
    answer = lark.post(
        f'Owner="{owner}"\nGlobalJobId="submit.example#{number}.0#1"\nJobCurrentStartDate=1\n{job}\n------\n'
        f'Machine="worker1.example"\nName="slot{number}@worker1.example"\nLarkInnerAddressIPv4="10.64.0.{number}"\n'
        f'LarkInnerMacAddress="02:00:00:00:00:{number:02x}"\nLarkExternalInterface="p{number}"\n'
        'LarkDatapathId="00000000000000e1"\n',
        wait,
    )
    assert answer.status in (200, 201), answer
    return answer.body


def asked(lark: Lark, job: Any, *opened: str) -> Any:
    body = json.dumps({"job": job["id"], "open": list(opened)})
    answer = lark.request("POST", "/v1/external-addresses", body, "application/json")
    assert answer.status == 201, answer
    return answer.body


def test_a_call_reaches_the_job_as_soon_as_it_is_asked_for_and_as_long(site: Site, lark: Lark, tmp_path: Path) -> None:
    with gateway(site, tmp_path):
        alice = a_job(lark, 1, "alice", 'RequestExternalAddress=true\nExternalPorts="tcp/80"')
        assert alice["external_addresses"] == [FIRST]
        wait(lambda: reached(site, site.a, FIRST, 80))
        assert not reached(site, site.a, FIRST, 81)
        bob = asked(lark, a_job(lark, 2, "bob"))
        assert bob["address"] == SECOND
        wait(lambda: reached(site, site.b, SECOND, 81))
        # Quarantine closes it, and takes nothing.
        registration = lark.service.controller._registration
        registration.quarantine(alice["id"], "the pool contradicts it", "pool")
        wait(lambda: not reached(site, site.a, FIRST, 80))
        lark.request("DELETE", f"/v1/jobs/{alice['id']}/quarantine")
        wait(lambda: reached(site, site.a, FIRST, 80))
        # A policy that opens no more for bob leaves alice's as it is.
        lark.put_policy(POLICY.replace("open: [any]", "open: [icmp]"))
        wait(lambda: not reached(site, site.b, SECOND, 81))
        assert reached(site, site.a, FIRST, 80)
        # The next job at an address is reached, and the one that had it is not.
        lark.put_policy(POLICY)
        lark.end(alice)
        wait(lambda: not reached(site, site.a, FIRST, 80))
        for each in lark.get("/v1/external-addresses")["addresses"]:
            lark.request("DELETE", f"/v1/external-addresses/{each['id']}")
        again = asked(lark, a_job(lark, 2, "bob"))
        wait(lambda: reached(site, site.b, again["address"], 99))


def test_a_gateway_that_comes_after_the_job_is_awaited(site: Site, lark: Lark, tmp_path: Path) -> None:
    asks = 'RequestExternalAddress=true\nExternalPorts="tcp/80"'
    none = f"no gateway that serves {FIRST} is there"
    alice = a_job(lark, 1, "alice", asks)
    assert none in {each["reason"] for each in alice["waiting"]}

    def state() -> tuple[str, str]:
        (one,) = lark.get("/v1/external-addresses")["addresses"]
        return one["state"], one["reason"]

    wait(lambda: state()[0] == "pending")
    wait(lambda: "external address waits" in lark.get(f"/v1/audit?subject={alice['id']}")["entries"][0]["action"])
    assert not reached(site, site.a, FIRST, 80)
    with gateway(site, tmp_path):
        # Nothing of the gateway is missing any more, and the job is reached from then on.
        wait(lambda: none not in str(lark.get(f"/v1/jobs/{alice['id']}")["waiting"]))
        assert "gateway" not in str(lark.get(f"/v1/jobs/{alice['id']}")["waiting"])
        assert reached(site, site.a, FIRST, 80)
        # One that comes beside it is reached as soon as its post is answered.
        bob = a_job(lark, 2, "bob", "RequestExternalAddress=true", 1.0)
        assert "gateway" not in str(bob["waiting"])
        assert reached(site, site.b, SECOND, 90)


def test_connections_go_on_through_restarts_of_the_controller_and_the_program(
    site: Site, lark: Lark, tmp_path: Path
) -> None:
    with listening(site.a, 80) as server:
        with gateway(site, tmp_path):
            given = asked(lark, a_job(lark, 1, "alice"), "tcp/80")
            wait(lambda: given["address"] in site.listed("map", "inet", "lark-gateway", "came"))
            outside = connected(site.out, given["address"], 80)
            assert outside is not None
            called = server.accept()[0]
            called.settimeout(20.0)

            def talks() -> bool:
                outside.send(b"x")
                return called.recv(1) == b"x"

            assert talks()
            lark.stop()
            assert talks()
            lark.start()
            second = asked(lark, a_job(lark, 2, "bob"))
            wait(lambda: second["address"] in site.listed("map", "inet", "lark-gateway", "came"))
            assert talks()
        assert talks()
        lark.request("DELETE", f"/v1/external-addresses/{second['id']}")
        with gateway(site, tmp_path):
            wait(lambda: second["address"] not in site.listed("map", "inet", "lark-gateway", "came"))
            assert talks()
            lark.request("DELETE", f"/v1/external-addresses/{given['id']}")
            wait(lambda: given["address"] not in site.listed("map", "inet", "lark-gateway", "came"))
            called.settimeout(0.5)
            outside.send(b"x")
            with pytest.raises(TimeoutError):
                called.recv(1)
        outside.close()
        called.close()
