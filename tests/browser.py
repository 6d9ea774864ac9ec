"""A real Chromium against a real controller: the site that the browser tests look at, and what a reader does there.

The switches are fake ones over real OpenFlow connections, so that a test says which packets have passed. Every page is
held to have no error in its console and no violation of its content security policy.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, expect, sync_playwright

from lark_controller.flows.model import PORT_LOCAL
from lark_controller.openflow.fake import FakeNetwork, FakeSwitch
from lark_controller.openflow.replies import PortCounters
from lark_controller.rest.tokens import Scope, add
from tests.service import Json, Lark

CORE, WORKER1, WORKER2 = 0xC0, 0xE1, 0xE2
POLICY = """\
version: 1
networks:
  jobs: [10.64.0.0/16]
  local: [10.0.0.0/8]
edge: {uplinks: ["eth*"]}
switches:
  core1: {datapath: "00000000000000c0", role: core, max_rules: 4096, ports: {lan: 1, wan: 2, wan-fast: 3}}
  worker1: {datapath: "00000000000000e1", role: edge, host: worker1.example, max_rules: 1000}
  worker2: {datapath: "00000000000000e2", role: edge, host: worker2.example}
  worker3: {datapath: "00000000000000e3", role: edge, host: worker3.example}
policies:
  # Whose jobs get no network at all.
  - block: {when: 'Owner == "mallory"'}
  - slice: {by: Owner}
  - wan: {when: 'Owner == "bob"', action: drop, except: [192.0.2.1]}
  - wan: {when: 'AcctGroup == "group_atlas"', port: wan-fast}
groups:
  group_cms: {port: wan, guarantee: 250Mbit, ceiling: 500Mbit}
  group_atlas: {port: wan-fast, guarantee: 100Mbit, ceiling: 400Mbit}
  default: {port: wan, guarantee: 50Mbit, ceiling: 100Mbit}
topology:
  links:
    trunk1: {between: [rack1, core1], capacity: 10Gbit}
    internet: {between: [core1, wan], capacity: 1Gbit}
  hosts:
    files.example: {switch: rack1, capacity: 2Gbit, addresses: [10.0.0.5]}
"""
GROUPS = {"alice": "group_cms", "carol": "group_atlas"}
VIEWS = ["", "jobs", "groups", "switches", "reservations", "explain", "policy", "events"]
_PATIENCE = 45_000
_NARROW = {"width": 390, "height": 800}
_WIDE = {"width": 1360, "height": 900}


class Site:
    """A controller with a core switch and two workers' switches; a third worker is declared and away."""

    def __init__(self, directory: Path, network: FakeNetwork, **environ: str) -> None:
        often = {"LARK_COUNTER_SECONDS": "0.3", "LARK_USAGE_WRITE_SECONDS": "0.5"}
        self.lark = Lark(directory, POLICY, changed=None, **(often | environ))
        self._network = network
        tokens = directory / "tokens.yaml"
        self.operator = add(tokens, "operator", [Scope.OPERATE])
        self.reader = add(tokens, "reader", [Scope.READ])
        self.hook = add(tokens, "hook", [Scope.HOOK])
        self.lark.start()
        self.url = f"http://{self.lark.service.server.addresses[0]}"
        self._numbers = itertools.count(1)
        ports = {1: "eth0", PORT_LOCAL: "local", **{10 + number: f"job{number}" for number in range(1, 60)}}
        self.switches = {
            WORKER1: FakeSwitch(WORKER1, ports),
            WORKER2: FakeSwitch(WORKER2, ports),
            CORE: FakeSwitch(CORE, {1: "lan0", 2: "wan0", 3: "wan1"}),
        }
        host, port = self.lark.service.controller.openflow_addresses[0]
        for switch in self.switches.values():
            network.call(switch.connect(host, port))
        self.lark.wait_in_sync(*self.switches)

    def ads(self, owner: str, worker: int = WORKER1, number: int | None = None, more: str = "") -> str:
        """The ads of a run of ``owner`` on a worker; ``more`` are lines of its job ad."""
        job = next(self._numbers) if number is None else number
        host = f"worker{worker & 15}.example"
        group = GROUPS.get(owner, "")
        line = f'AcctGroup = "{group}"\n' if group else ""
        return (
            f'Owner = "{owner}"\nUser = "{owner}@example"\n{line}'
            f'GlobalJobId = "submit.example#{100 + job}.0#1790000000"\n'
            f"JobCurrentStartDate = 1790000000\nClusterId = {100 + job}\nProcId = 0\n{more}\n------\n"
            f'Machine = "{host}"\nName = "slot1_{job}@{host}"\nLarkAddressType = "controller"\n'
            f'LarkNetworkType = "ovs_bridge"\nLarkInnerMacAddress = "02:00:00:00:01:{job:02x}"\n'
            f'LarkExternalInterface = "job{job}"\nLarkDatapathId = "{worker:016x}"\n'
        )

    def run(self, owner: str, worker: int = WORKER1, more: str = "", seconds: float = 5.0) -> Json:
        """Register a run; the answer of the API."""
        answer = self.lark.post(self.ads(owner, worker, more=more), seconds)
        assert answer.status == 201, answer
        assert isinstance(answer.body, dict)
        return answer.body

    def passed(self, job: Json, sent: int, received: int) -> None:
        """So many megabytes have passed the job's port, all in all, in packets of 1,000 bytes."""
        switch = self.switches[int(job["datapath"], 16)]
        port = next(number for number, info in switch.ports.items() if info.name == job["port"])
        said = PortCounters(port, sent * 1000, received * 1000, sent * 10**6, received * 10**6, 0, 0, 60.0)
        self._network.run(lambda: switch.counted.update({port: said}))


# No longer than a module: while Playwright runs it holds the event loop of the thread, and other tests need their own.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.fail("There is no chromium in PATH; `make setup` installs it.", pytrace=False)
    with sync_playwright() as playwright:
        # How long an expectation may take to come true; only a test that fails waits so long.
        expect.set_options(timeout=_PATIENCE)
        # Tests run as root, where Chromium has no sandbox of its own; it sees nothing but the controller.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
        expect.set_options(timeout=5_000)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A controller of its own for a test."""
    with FakeNetwork() as network:
        made = Site(tmp_path, network)
        try:
            yield made
        finally:
            made.lark.stop()


class Reader:
    """Somebody in front of a browser of their own; ``page`` is their tab."""

    def __init__(self, context: BrowserContext, site: Site) -> None:
        self.context = context
        self.site = site
        self.complaints: list[str] = []
        # Answers that a page may get without being at fault: a 401 shows the log-in, a 404 says so.
        self.expected: tuple[str, ...] = ()
        self.page = self.new_tab()

    def new_tab(self) -> Page:
        """Another tab of the same browser."""
        page = self.context.new_page()
        page.set_default_timeout(_PATIENCE)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        return page

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(word in message.text for word in self.expected):
            self.complaints.append(f"{message.type}: {message.text}")

    def log_in(self, token: str, where: str = "") -> Page:
        """Open a view, log in with a token, and return when the view is there."""
        self.page.goto(f"{self.site.url}/pages/{where}")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Log in").click()
        self.page.get_by_role("button", name="Sign out").wait_for()
        return self.page

    def go(self, where: str) -> Page:
        """Go to another view."""
        self.page.goto(f"{self.site.url}/pages/{where}")
        return self.page


def panel(page: Page, title: str) -> Locator:
    """The part of a view under a heading."""
    return page.locator(".panel", has=page.get_by_role("heading", name=title, exact=True))


@contextmanager
def reading(browser: Browser, site: Site, **options: Any) -> Iterator[Reader]:
    """A reader with a fresh browser profile; fails where a page complained in its console."""
    context = browser.new_context(**{"viewport": _WIDE, **options})
    reader = Reader(context, site)
    try:
        yield reader
        assert reader.complaints == []
    finally:
        context.close()


@pytest.fixture
def reader(chromium: Browser, site: Site) -> Iterator[Reader]:
    """A reader at a desk."""
    with reading(chromium, site) as made:
        yield made


@pytest.fixture
def phone(chromium: Browser, site: Site) -> Iterator[Reader]:
    """A reader with a phone, 390 pixels wide, that prefers dark pages."""
    with reading(chromium, site, viewport=_NARROW, color_scheme="dark", is_mobile=True, has_touch=True) as made:
        yield made
