"""External addresses while switches are killed and start again, with an Open vSwitch of the test's own."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from lab.run import run
from tests.e2e.test_external import OUTSIDE, POOL, ask, directory, policy
from tests.fixtures.service import WORKER1, WORKER2, Lark, Site
from tests.fixtures.wires import open_socket

__all__ = ["directory"]

pytestmark = pytest.mark.ovs


def test_what_is_established_goes_on_through_a_kill_of_the_switches(own_ovs: OpenVSwitch, directory: Path) -> None:
    with Net() as net:
        site = Site(own_ovs, net, {"a": WORKER1, "d": WORKER2})
        gateway = site["gw"]
        run(["ip", "-n", gateway.namespace, "route", "add", POOL, "dev", gateway.device, "src", OUTSIDE])
        lark = Lark(directory, policy(site))
        lark.start()
        try:
            site.connect(lark)
            given = ask(lark, site.run(lark, "a", "alice"), "tcp/80")
            site.settle()
            tcp = socket.AF_INET, socket.SOCK_STREAM
            with open_socket(site["a"], *tcp) as server, open_socket(gateway, *tcp) as client:
                server.bind((site["a"].ipv4, 80))
                server.listen()
                for each in (server, client):
                    each.settimeout(30.0)
                client.connect((given["address"], 80))
                called, peer = server.accept()
                with called:
                    called.settimeout(60.0)
                    # No table of connections is lost with the switches' memory.
                    own_ovs.restart(kill9=True)
                    client.sendall(b"still here")
                    lark.wait_in_sync(*site.bridges)
                    assert (called.recv(10), peer[0]) == (b"still here", OUTSIDE)
                    called.sendall(b"heard")
                    assert client.recv(5) == b"heard"
            shown = lark.get(f"/v1/external-addresses/{given['id']}")
            assert (shown["state"], shown["address"]) == ("open", given["address"])
        finally:
            lark.end_all()
            lark.stop()
