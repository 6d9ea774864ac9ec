"""A logged text stays on its line, whatever a user has put into it."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lark_common import log
from lark_controller.cli import printing

# Line ends of different readers, a terminal's commands in one byte and in two, text that is turned around, half a pair.
STRANGE = 'a\n2026 info job ended\r\x1b[2J\x9b2J\x85\u2028\u2029\u202e\x7f\ud800\U000e0001 = "b" \\ é'


@contextmanager
def logged(fmt: str) -> Iterator[io.StringIO]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("logging.root.handlers", [])
        stream = io.StringIO()
        log.configure("info", fmt, stream)
        yield stream


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_a_line_is_printable_and_one(fmt: str) -> None:
    with logged(fmt) as stream:
        log.event("job begins", owner=STRANGE, list=[STRANGE])
        log.event(STRANGE)
    lines = stream.getvalue().split("\n")
    assert (len(lines), lines[2]) == (3, "")
    assert all(line.isprintable() for line in lines)
    if fmt == "json":
        assert json.loads(lines[0])["owner"] == json.loads(lines[1])["event"] == STRANGE
    assert "é" in lines[0]


def test_what_the_command_prints_as_json_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    printing.json_out({"owner": STRANGE})
    said = capsys.readouterr().out
    assert said.replace("\n", "").isprintable()
    assert json.loads(said)["owner"] == STRANGE


def test_the_log_is_heard_beside_a_library_that_silences_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """The parser library ``lark`` sets the level of its logger, "lark", where it is imported, and with it all below."""
    silenced = logging.getLogger("lark")
    before = silenced.level
    silenced.setLevel(logging.CRITICAL)
    try:
        with caplog.at_level("INFO", log.LOGGER):
            log.event("job begins")
    finally:
        silenced.setLevel(before)
    assert [record.getMessage() for record in caplog.records] == ["job begins"]


def test_what_waits_is_written_before_a_process_ends_at_once() -> None:
    program = (
        "import os\nfrom lark_common import log\nlog.configure()\n"
        "with log.in_background():\n"
        "    for number in range(5000): log.event('line', number=number)\n"
        "    log.flush()\n"
        "    os._exit(75)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 75
    assert ended.stderr.splitlines()[-1].endswith("line number=4999")
    assert len(ended.stderr.splitlines()) == 5000
