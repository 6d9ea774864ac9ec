"""``lark-worker setup`` with a list of controllers: a real one and others in its place, each over TLS."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from lab.openvswitch import OpenVSwitch
from lab.run import free_port
from lark_common.errors import SettingError
from lark_common.settings_table import lines_of
from lark_controller.cli import main as lark
from lark_worker.given_controllers import given, has_all
from tests.fixtures.site import SetUp
from tests.worker.test_setup import BRIDGE, HOST, URL, Site, site

__all__ = ["site"]


class Other:
    """A program in a controller's place. It shows an ``authority``, and answers all else with a status."""

    def __init__(self, authority: str, status: int, certificates: Path, shown: int = 200) -> None:
        self.got: list[str] = []
        other = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/v1/authority":
                    self.reply(shown, {"authority": authority} if shown == 200 else {"detail": "no authority here"})
                else:
                    self.reply(status, {"detail": "it does not work"})

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                other.got.append(self.headers["Authorization"])
                self.reply(status, {"detail": "it does not work"})

            def reply(self, status: int, document: dict[str, str]) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        settings = lines_of((certificates / "lark.env").read_text())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings["LARK_REST_TLS_CERT"], settings["LARK_REST_TLS_KEY"])
        self.server = ThreadingHTTPServer(("localhost", 0), Handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://localhost:{self.server.server_port}"

    @contextmanager
    def serving(self) -> Iterator[Other]:
        thread = Thread(target=self.server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            thread.join()
            self.server.server_close()


@pytest.fixture
def put(site: Site, tmp_path: Path) -> Iterator[Callable[..., Other]]:
    """Puts a program into the place of one more controller; ``of`` another site, if that is said."""
    elsewhere = SetUp(tmp_path / "elsewhere")
    elsewhere.options = ("--name", "localhost", "--networks", "10.65.0.0/16")
    with ExitStack() as stack:

        def made(status: int = 503, shows: str = "ours", has: str = "ours", shown: int = 200) -> Other:
            if "theirs" in (shows, has):
                assert elsewhere() == lark.OK
            sites = {"ours": site.setup.directory, "theirs": elsewhere.directory}
            authority = (sites[shows] / "ca.pem").read_text()
            return stack.enter_context(Other(authority, status, sites[has], shown).serving())

        yield made


def urls(site: Site) -> str:
    return lines_of((site.etc() / "worker.env").read_text())["LARK_WORKER_URL"]


@pytest.mark.ovs
def test_a_worker_joins_by_any_of_them_and_has_all(site: Site, own_ovs: OpenVSwitch, put: Callable[..., Other]) -> None:
    site.start()
    away, busy = f"https://[::1]:{free_port()}", put()
    token = site.join_token()
    said, wrong = site.worker("--join", token, url=f"{away}, {busy.url} {URL}")
    assert said[0].startswith(f"joined {busy.url},{URL} as {HOST}: "), wrong
    assert said[1].startswith(f"{away} cannot be reached: ")
    assert said[1].endswith("It is in the list all the same, and lark-worker check asks it again")
    assert urls(site) == f"{away},{busy.url},{URL}"
    # It was asked first, and could not.
    assert busy.got[0] == f"Bearer {token.rpartition('.')[2]}"
    targets = set(own_ovs.vsctl("get-controller", BRIDGE).split())
    assert "ssl:[::1]:6653" in targets
    # That of localhost stands once.
    assert len(targets) == 2
    before = site.files()
    said, _ = site.worker(url=f"{away},{busy.url},{URL}")
    assert said[0] == f"{HOST} has joined {away},{busy.url},{URL} already"
    assert site.files() == before


@pytest.mark.ovs
def test_one_that_comes_later_is_added_without_a_token(site: Site, put: Callable[..., Other]) -> None:
    site.start()
    site.worker("--join", site.join_token())
    before = site.files()
    false = put(shows="theirs", has="theirs")
    _, wrong = site.worker(url=f"{URL},{false.url}")
    assert wrong.startswith(f"lark-worker: {false.url} shows another authority than {site.etc()}/ca.pem has: ")
    assert site.files() == before
    assert not false.got
    second = put()
    said, wrong = site.worker(url=f"{URL},{second.url}")
    assert said[0] == f"{HOST} has joined {URL},{second.url} already", wrong
    assert urls(site) == f"{URL},{second.url}"
    assert site.files() | {"worker.env": b""} == before | {"worker.env": b""}
    # Written in another way it is the same.
    said, _ = site.worker(url=f"{second.url}/,https://LOCALHOST:8443")
    assert urls(site) == f"{URL},{second.url}"
    # The first is gone: the other one is asked, and it is not of this site.
    assert site.service is not None
    site.service.stop()
    site.service = None
    _, wrong = site.worker()
    assert "--join is needed" in wrong


@pytest.mark.ovs
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("another authority", "{other} shows another authority than the join token names: somebody else answers there"),
        ("a copied authority", "{other} cannot be reached: .* It has the right authority; does its certificate have"),
        ("no authority", "{other}: no authority here"),
        ("not over TLS", r"--controller http://localhost:1: accepted: https://NAME:PORT, .* of several controllers"),
        ("an address too few", r"--address: accepted: none, or 2, one for each of --controller in the same order"),
    ],
)
def test_one_that_is_wrong_gets_nothing_and_no_other_is_written(
    site: Site, put: Callable[..., Other], first: bool, case: str, message: str
) -> None:
    site.start()
    more: tuple[str, ...] = ()
    match case:
        case "another authority":
            other = put(shows="theirs", has="theirs")
        case "a copied authority":
            # It is no secret.
            other = put(has="theirs")
        case "no authority":
            other = put(shown=404)
        case _:
            other = put()
    url = "http://localhost:1" if case == "not over TLS" else other.url
    if case == "an address too few":
        more = ("--address", "192.0.2.1")
    token = site.join_token()
    said, wrong = site.worker("--join", token, *more, url=f"{url},{URL}" if first else f"{URL},{url}")
    assert said == []
    assert re.search(message.format(other=other.url), wrong), wrong
    assert len(wrong.splitlines()) == 1
    assert not other.got
    names = {path.name for path in site.etc().iterdir()} if site.etc().exists() else set()
    assert names <= {"ca.pem"}
    # The token is as good as before.
    said, wrong = site.worker("--join", token)
    assert said[0].startswith(f"joined {URL} as {HOST}: "), wrong


@pytest.mark.ovs
def test_where_none_answers_each_is_named(site: Site) -> None:
    site.start()
    token = site.join_token()
    gone = [f"https://localhost:{free_port()}", f"https://[::1]:{free_port()}"]
    _, wrong = site.worker("--join", token, url=",".join(gone))
    assert all(f"{each} cannot be reached: " in wrong for each in gone)
    assert wrong.endswith("Is --controller right, and may this worker reach that port?")
    assert not site.etc().exists()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("https://a.example:8443", ["https://a.example:8443"]),
        ("https://a.example:8443/", ["https://a.example:8443"]),
        (" https://a:1,, https://b:1\nhttps://a:1 ", ["https://a:1", "https://b:1"]),
        ("https://A:443 https://a https://a:444", ["https://A:443", "https://a:444"]),
        ("https://[2001:db8::1]:8443,https://[2001:0DB8:0::1]:8443", ["https://[2001:db8::1]:8443"]),
        ("https://a/one https://a/two", ["https://a/one", "https://a/two"]),
    ],
)
def test_a_list_has_each_controller_once(text: str, found: list[str]) -> None:
    assert list(given(text)) == found


@pytest.mark.parametrize(
    "wrong",
    [
        "", " , ", "a.example:8443", "http://a.example", "unix:/run/lark.sock", "https://", "https://:8443", "https://a:0",
        "https://a:99999", "https://a:b", "https://[::1", "https://me:secret@a", "https://a?b", "https://a#b",
    ],
)  # fmt: skip
def test_what_is_no_url_of_a_controller_is_named_with_what_is_accepted(wrong: str) -> None:
    for text in (wrong, f"https://a,{wrong}", f"{wrong},https://a"):
        if wrong.strip(" ,") or text == wrong:
            with pytest.raises(SettingError, match="accepted: https://NAME:PORT") as caught:
                given(text)
            assert str(caught.value).startswith(f"--controller {wrong}:" if wrong.strip(" ,") else "--controller:")


def test_a_list_of_before_has_those_that_are_given_however_they_are_written() -> None:
    known = ("unix:/run/lark.sock", "http://a", "https://B:443", "https://[::1]:8443", "https://[::1")
    assert has_all(known, ("https://b", "https://[0::1]:8443/"))
    assert not has_all(known, ("https://b", "https://a"))
