"""A worker with Lark and the real HTCondor, and an access point with a web server, by whatever way files are moved."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lab.namespaces import Net
from lark_worker.identity.startd import LocalStartd
from lark_worker.network.commands import run
from tests.fixtures.service import wait
from tests.htcondor.real_pool import Jobs, Machine, close_all
from tests.worker.pool import Pool

MEGA = 1_000_000
URL, HTTP = 8 * MEGA, 8099
# Mb/s of the link.
LINK = 100


class Way(NamedTuple):
    """The way files are moved: addresses of worker and access point, and what their configurations have beside the
    pool's."""

    worker: str = "10.77.0.1"
    access_point: str = "10.77.0.2"
    length: int = 24
    of_worker: str = ""
    of_access_point: str = ""


USUAL = Way()


class RealPool:
    """A worker with Lark and the real HTCondor, and an access point with an HTTP server behind a link of LINK Mb/s."""

    def __init__(self, lark: Pool, net: Net, folder: Path, way: Way = USUAL) -> None:
        self.lark, self.way = lark, way
        far = self.far = net.host("ap", addresses=[f"{way.access_point}/{way.length}"])
        if ":" in way.worker:
            Path(f"/proc/sys/net/ipv6/conf/{far.port}/disable_ipv6").write_text("0")
        run(["ip", "addr", "add", f"{way.worker}/{way.length}", "dev", far.port, *(["nodad"] * (":" in way.worker))])
        shape = f"root tbf rate {LINK}mbit burst 64k latency 50ms".split()
        run(["tc", "qdisc", "add", "dev", far.port, *shape])
        run(["ip", "netns", "exec", far.namespace, "tc", "qdisc", "add", "dev", far.device, *shape])
        www = folder / "www"
        www.mkdir()
        (www / "data").write_bytes(bytes(URL))
        net.start(
            far,
            [
                "setpriv",
                "--pdeathsig",
                "KILL",
                "python3",
                "-m",
                "http.server",
                "--directory",
                str(www),
                "--bind",
                way.access_point,
                str(HTTP),
            ],
        )
        self.machines: list[Machine] = []
        lark.folder.chmod(0o755)
        (lark.folder / "lark-start").symlink_to("starter_hook.sh")
        try:
            for name, address, namespace, more in (
                ("ap", way.access_point, far.namespace, way.of_access_point),
                ("worker1", way.worker, "", way.of_worker),
            ):
                made = Machine(folder / name, lark.folder, name, address, way.access_point, namespace, more)
                self.machines.append(made)
        except BaseException:
            self.close()
            raise
        self.jobs = Jobs(self.machines[0])

    def start(self) -> None:
        """Wait for the pool, and have the worker service look at its starters and ask its startd."""
        access, worker = self.machines
        wait(lambda: worker.name in access.run("condor_status -af Machine", check=False), limit=90)
        lark = self.lark
        lark.stop_service()
        lark.startd = LocalStartd(worker.startd_address())  # type: ignore[assignment]  # the real one
        lark.environment |= {
            "LARK_WORKER_STARTERS": worker.program("condor_starter"),
            "LARK_WORKER_STARTDS": worker.program("condor_startd"),
        }
        lark.start_service()

    def close(self) -> None:
        close_all(self.machines)
