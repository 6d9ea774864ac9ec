"""The demo: what it expects and shows (pure), that it ends as it says, and that nothing of it is ever left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from playwright.sync_api import expect as see

from demo.__main__ import AFTER, BEFORE, UNREGISTERED
from demo.jobs import JOBS
from demo.matrix import End, differences, expect, render
from demo.topology import CACHE, INTERNET
from lab.namespaces import Host

ROOT = Path(__file__).parents[2]
NOWHERE = Host("nowhere", "", "", "")
ENDS = [
    *(End(job.name, job.short, NOWHERE, job.ipv4, job.ipv6, owner=job.owner) for job in JOBS),
    End("internet", "net", NOWHERE, *INTERNET, outside=True),
    End("cache", "cac", NOWHERE, *CACHE, outside=True),
]
BY_NAME = {end.name: end for end in ENDS}


def cell(rules: object, source: str, target: str) -> str:
    assert isinstance(rules, type(BEFORE))
    return rules.cell(BY_NAME[source], BY_NAME[target])


def test_what_is_expected_is_what_the_policy_says() -> None:
    assert cell(BEFORE, "alice-1", "alice-2") == "yes"
    assert cell(BEFORE, "alice-1", "bob") == "-"
    assert cell(BEFORE, "alice-1", "internet") == "wan"
    assert cell(BEFORE, "carol-2", "internet") == "wan-fast"
    assert cell(BEFORE, "internet", "carol-2") == "yes"
    assert (cell(BEFORE, "bob", "internet"), cell(BEFORE, "bob", "cache")) == ("-", "wan")
    assert (cell(BEFORE, "internet", "bob"), cell(BEFORE, "cache", "bob")) == ("-", "yes")
    assert (cell(BEFORE, "mallory", "internet"), cell(AFTER, "mallory", "internet")) == ("-", "wan")
    assert (cell(AFTER, "carol-1", "carol-2"), cell(AFTER, "internet", "carol-1")) == ("-", "-")
    assert set(expect(ENDS, UNREGISTERED).values()) == {("-", "-")}


def test_a_cell_that_differs_is_seen_and_named() -> None:
    expected = expect(ENDS, BEFORE)
    measured = dict(expected)
    measured[BY_NAME["alice-1"], BY_NAME["bob"]] = ("-", "yes")
    assert differences(expected, expected) == []
    assert differences(expected, measured) == ["alice-1 to bob by IPv6: yes, expected -"]
    lines = render(ENDS, expected, measured)
    assert "-/yes" in next(line for line in lines if line.startswith("alice-1"))
    assert len({line.index("|") for line in lines[1:]}) == 1


class Demo:
    """A demo that runs as a process of its own, at the head of a process group as in a terminal."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.output = directory / "output"
        environment = {name: value for name, value in os.environ.items() if name not in ("KEEP", "NO_COLOR")} | settings
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "demo"], cwd=ROOT, env=environment, stdout=output, stderr=output,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self.prefix = f"lk{_base36(self.process.pid):0>5}"

    def said(self) -> str:
        return self.output.read_text()

    def wait_until_said(self, text: str, limit: float = 60) -> None:
        end = time.monotonic() + limit
        while text not in self.said():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            time.sleep(0.05)

    def left_behind(self) -> list[str]:
        """Namespaces, devices, directories and processes of this demo."""
        namespaces = [entry.name for entry in Path("/run/netns").glob(f"{self.prefix}*")]
        devices = [entry.name for entry in Path("/sys/class/net").glob(f"{self.prefix}*")]
        processes = [
            path.parent.name
            for path in Path("/proc").glob("[0-9]*/environ")
            if f"{self.directory}/".encode() in _read(path) + _read(path.with_name("cmdline"))
        ]
        directories = [self.directory] if Path(self.directory).exists() else []
        return [*namespaces, *devices, *processes, *directories]

    def find_directory(self) -> None:
        """Note where the demo keeps its files, while its controller runs."""
        pid = re.search(r"\(pid (\d+),", self.said())
        assert pid is not None
        state = re.search(rb"LARK_STATE_DIR=(.*?)/state", _read(Path("/proc") / pid[1] / "environ"))
        assert state is not None
        self.directory = state[1].decode()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    running = Demo(tmp_path)
    yield running
    if running.process.poll() is None:
        running.process.terminate()
        running.process.wait(30)


@pytest.mark.ovs
def test_the_whole_demo_is_as_expected_and_leaves_nothing(demo: Demo) -> None:
    demo.wait_until_said("2. The controller starts")
    demo.wait_until_said("Its policy:")
    demo.find_directory()
    status = demo.process.wait(120)
    said = demo.said()
    assert status == 0, said
    assert "Everything was as expected" in said
    assert said.count("\n  ok  ") >= 18
    assert "FAIL" not in said
    assert re.search(r"KEEP=1 leaves all of it running.* http://127\.0\.0\.1:\d+/\s*$", said)
    assert "\x1b" not in said
    assert max(map(len, said.splitlines())) <= 100
    assert demo.left_behind() == []


@pytest.mark.ovs
@pytest.mark.browser
def test_a_demo_that_is_kept_shows_its_traffic_in_a_browser_and_leaves_nothing(
    tmp_path: Path, chromium: Browser
) -> None:
    demo = Demo(tmp_path, KEEP="1")
    try:
        demo.wait_until_said("Its policy:")
        demo.find_directory()
        demo.wait_until_said("Ctrl-C here ends the demo", 120)
        assert "FAIL" not in demo.said()
        page = chromium.new_page()
        page.goto(_said(demo, r"Page: +(\S+)"))
        page.get_by_label("Token").fill(_said(demo, r"Token: +(\S+)"))
        page.keyboard.press("Enter")
        see(page.locator(".figure", has_text="Switches in sync").locator(".value")).to_have_text("3 of 3")
        # Mallory sends 3 Mb/s on average, in waves.
        sender = page.get_by_role("row", name=re.compile(r"^mallory@\S+ \S+ 1 [0-9.]+ Mb.s"))
        see(sender).to_be_visible(timeout=20_000)
        page.get_by_role("link", name="worker2").first.click()
        page.get_by_role("heading", name="Flows").click()
        counted = (
            page.get_by_role("row", name=re.compile(" ip,in_port=4,.* job 106.0 of mallory")).locator("td").nth(-2)
        )
        see(counted).not_to_have_text("0", timeout=20_000)
        before = counted.inner_text()
        see(counted).not_to_have_text(before, timeout=20_000)
        page.close()
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(60) == 0
    finally:
        if demo.process.poll() is None:
            demo.process.terminate()
            demo.process.wait(30)
    assert demo.left_behind() == []


def _said(demo: Demo, pattern: str) -> str:
    found = re.search(pattern, demo.said())
    assert found is not None, demo.said()
    return found[1]


@pytest.mark.ovs
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_cleans_up(demo: Demo, number: signal.Signals) -> None:
    demo.wait_until_said("Its policy:")
    demo.find_directory()
    os.killpg(demo.process.pid, number)
    assert demo.process.wait(60) == 130
    assert "Interrupted." in demo.said()
    assert "Traceback" not in demo.said()
    assert demo.left_behind() == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _base36(number: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + text
    return text
