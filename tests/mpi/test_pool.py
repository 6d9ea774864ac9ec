"""Ranks of two jobs on two workers reserve at a real worker service and a real controller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import temporary_directory
from lab.openvswitch import OpenVSwitch
from tests.fixtures.ovs import a_net
from tests.mpi.ranks import c, finish, python, start
from tests.worker.pool import NOBODY, POLICY, a_pool, eventually
from tests.worker.test_jobs import value

pytestmark = pytest.mark.ovs
TOPOLOGY = "topology: {hosts: {default: {switch: s, capacity: 100}}}\n"
# Whoever connects to it is, for the service, a process of the job below whose starter this runs.
GATE = """
import socket, sys, threading
def pass_on(one, other):
    while data := one.recv(65536):
        other.sendall(data)
    other.shutdown(socket.SHUT_WR)
def serve(caller):
    with caller, socket.socket(socket.AF_UNIX) as service:
        service.connect(sys.argv[2])
        threading.Thread(target=pass_on, args=(caller, service), daemon=True).start()
        pass_on(service, caller)
gate = socket.socket(socket.AF_UNIX)
gate.bind(sys.argv[1])
gate.listen(16)
print("open", flush=True)
while True:
    threading.Thread(target=serve, args=(gate.accept()[0],), daemon=True).start()
"""


@pytest.mark.parametrize(("mpi", "program"), [("openmpi", python("ring")), ("mpich", python("ring")), ("mpich", None)])
def test_a_ring_over_two_workers_is_reserved_and_released(
    ovs: OpenVSwitch, mpi: str, program: list[str | Path] | None
) -> None:
    with temporary_directory() as name, a_net(ovs) as net, a_pool(Path(name), ovs, net, POLICY + TOPOLOGY) as pool:
        folder = Path(name)
        (folder / "gate.py").write_text(GATE)
        (folder / "gate.py").chmod(0o644)
        sockets, ids = [], []
        for number in (1, 2):
            starter = pool.starter(number, "alice", f'Machine = "worker{number}"\n')
            ids.append(value(pool.hook(starter, "start", "alice", number), "LarkJobId"))
            sockets.append(starter.scratch / "gate.sock")
            gate = f"/usr/bin/python3 {folder}/gate.py {sockets[-1]} {pool.socket}"
            # A child of the starter's own shell: what lost its parent would be of no job. It ends with the starter.
            starter.run(
                f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --pdeathsig KILL {gate} >/dev/null 2>&1 & :"
            )
            eventually(sockets[-1].exists)
        process = start(mpi, folder, sockets, program or c(mpi, "ring"))
        held: list[dict[str, Any]] = []

        def is_reserved() -> bool:
            """True where both are there, or the ranks can make none any more; what was read is what is looked at."""
            held[:] = pool.client.reservations()
            return len(held) == 2 or process.poll() is not None

        try:
            eventually(is_reserved, 120)
        finally:
            # The ranks hold what they have until then.
            (folder / "seen").touch()
            outcome = finish(process, folder)
        assert outcome.status == 0, outcome.output
        rates = {(each["job"], each["peer"]): each["rate"] for each in held}
        assert rates.keys() == {(ids[0], ids[1]), (ids[1], ids[0])}
        # A megabyte a second, and its headers by the MTU of this machine's route.
        assert all(8 < rate < 8.6 for rate in rates.values())
        assert all(told["admitted"] for told in outcome.told.values())
        assert list(pool.client.reservations()) == []
