"""A controller, a switch and a worker service on nothing but the files that ``lark setup`` has made."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_switch.switch import FakeSwitch
from lab.openvswitch import OpenVSwitch
from lark_common.client import Client, ProblemError, UnreachableError
from lark_common.settings_table import lines_of
from lark_controller.cli import main as cli
from lark_controller.cli.run import Service
from lark_controller.settings import Settings, load
from lark_worker import settings as worker_settings
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import AwayError
from tests.fixtures.fake_controls import post_body
from tests.fixtures.service import wait
from tests.fixtures.site import HOSTS, SetUp

# In post_body's machine ad.
HOST = "worker1.example"


@pytest.fixture
def setup(tmp_path: Path) -> SetUp:
    made = SetUp(tmp_path / "lark")
    made.options = ("--name", "localhost", "--address", "127.0.0.1", "--networks", "10.64.0.0/16,2001:db8:64::/48")
    assert made.workers() == cli.OK
    return made


def settings_of(setup: SetUp) -> Settings:
    """The settings as they were written, ports too: the tests' network is their own. Only the state is elsewhere."""
    return load(lines_of((setup.directory / "lark.env").read_text()), {"state_dir": str(setup.directory)})


@pytest.fixture
def running(setup: SetUp) -> Iterator[Service]:
    service = Service(settings_of(setup))
    service.start()
    yield service
    service.stop()


URL = "https://localhost:8443"
OPENFLOW = ("127.0.0.1", 6653)


def secret(setup: SetUp, host: str) -> str:
    return setup.of(host, "worker.token").read_text().strip()


def test_people_ask_with_the_made_token_and_authority(
    setup: SetUp, running: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    options = ["--url", URL, "--ca", str(setup.directory / "ca.pem")]
    token = ["--token-file", str(setup.directory / "operator.token")]
    assert cli.main(["switches", *options, *token]) == cli.OK
    assert cli.main(["policy", "show", *options, *token]) == cli.OK
    assert "by: Owner" in capsys.readouterr().out
    # Neither without the authority, nor by another name, nor without TLS.
    assert cli.main(["switches", "--url", URL, *token]) == cli.UNREACHABLE
    assert cli.main(["switches", *token, *options, "--url", URL.replace("localhost", "127.0.0.2")]) != cli.OK
    assert cli.main(["switches", *token, "--url", URL.replace("https", "http")]) != cli.OK


def test_a_chain_is_accepted_by_the_letter_of_the_standard(setup: SetUp, running: Service) -> None:
    """As Python 3.13 does by default."""
    context = ssl.create_default_context(cafile=str(setup.directory / "ca.pem"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT

    async def ask() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", 8443, ssl=context)
        writer.close()

    asyncio.run(ask())


def test_a_workers_token_is_refused_for_another_host(setup: SetUp, running: Service) -> None:
    authority = str(setup.of(HOST, "ca.pem"))
    client = Client(URL, secret(setup, HOST), authority)
    assert client.register(post_body())["host"] == HOST
    with pytest.raises(ProblemError) as caught:
        Client(URL, secret(setup, "worker2.example"), authority).register(post_body())
    assert caught.value.status == 403
    with pytest.raises(ProblemError) as caught:
        client.switches()
    assert caught.value.status == 403
    with pytest.raises(UnreachableError):
        Client(URL, secret(setup, HOST)).register(post_body())


def test_a_worker_service_asks_with_the_copied_files(setup: SetUp, running: Service) -> None:
    """With worker.env as it was made, but for the place of its files."""
    copied = setup.of(HOSTS[1], "worker.env").read_text().replace("/etc/lark/", f"{setup.of(HOSTS[1], '')}/")
    link = ControllerLink(worker_settings.load(lines_of(copied)))
    assert link.renew(HOSTS[1], ()).missing == frozenset()
    with pytest.raises(AwayError, match=r"is good for worker2\.example, not for worker1\.example"):
        link.renew(HOSTS[0], ())


def test_a_switch_connects_by_its_certificate_and_none_without(setup: SetUp, running: Service) -> None:
    assert running.controller.openflow_addresses == ()
    operator = Client(URL, (setup.directory / "operator.token").read_text().strip(), str(setup.directory / "ca.pem"))

    async def play() -> None:
        stranger = FakeSwitch(0xE2)
        await stranger.connect(*OPENFLOW, context(setup))
        await asyncio.wait_for(stranger.closed.wait(), 20)
        fake = await FakeSwitch(0xE1).connect(
            *OPENFLOW, context(setup, (setup.of(HOST, "switch.pem"), setup.of(HOST, "switch.key")))
        )
        async with asyncio.timeout(20):
            while not (seen := await asyncio.to_thread(operator.switches)) or not seen[0]["connected"]:
                await asyncio.sleep(0.02)
        assert [switch["datapath"] for switch in seen] == ["00000000000000e1"]
        fake.disconnect()

    asyncio.run(play())


def context(setup: SetUp, files: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(setup.of(HOST, "ca.pem")))
    if files is not None:
        made.load_cert_chain(*files)
    return made


@pytest.mark.ovs
def test_open_vswitch_connects_with_a_workers_files(setup: SetUp, running: Service, own_ovs: OpenVSwitch) -> None:
    own_ovs.add_bridge("bsetup", 0xE1)
    own_ovs.set_tls(*(setup.of(HOST, name) for name in ("switch.key", "switch.pem", "ca.pem")))
    own_ovs.set_controller("bsetup", "ssl:127.0.0.1:6653")
    operator = Client(URL, (setup.directory / "operator.token").read_text().strip(), str(setup.directory / "ca.pem"))
    wait(lambda: [switch["in_sync"] for switch in operator.switches()] == [True])


@pytest.mark.ovs
def test_a_workers_database_answers_the_controllers_certificate_and_no_stranger(
    setup: SetUp, own_ovs: OpenVSwitch
) -> None:
    own_ovs.set_tls(*(setup.of(HOST, name) for name in ("switch.key", "switch.pem", "ca.pem")))
    own_ovs.vsctl("set-manager", "pssl:6640:127.0.0.1")
    files = (setup.directory / "openflow.pem", setup.directory / "openflow.key")

    def asked(shown: tuple[Path, Path] | None) -> bytes:
        made = context(setup, shown)
        # A switch's certificate has its host's name, and the controller knows its address.
        made.check_hostname = False
        try:
            with (
                socket.create_connection(("127.0.0.1", 6640), timeout=10) as plain,
                made.wrap_socket(plain) as connection,
            ):
                connection.sendall(b'{"method":"list_dbs","params":[],"id":0}')
                return connection.recv(4096)
        except OSError:  # ssl.SSLError among them
            return b""

    wait(lambda: b"Open_vSwitch" in asked(files))
    assert asked(None) == b""
