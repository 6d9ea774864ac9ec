from __future__ import annotations

import io
import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_common import log
from lark_common.errors import SettingError
from lark_common.log import LOGGER
from lark_controller.cli import run
from lark_controller.settings import Listen, Settings, load, table

DOCS = Path(__file__).parents[2] / "docs" / "reference"


def test_the_defaults() -> None:
    settings = load({})
    assert settings.database_url == "sqlite:////var/lib/lark/lark.db"
    assert all(listen.loopback for listen in settings.openflow_listen + settings.rest_listen)
    assert settings.lease_seconds == 900


def test_every_default_may_be_given_as_it_is_documented() -> None:
    given_all = {row.variable: row.default for row in table()}
    assert load(given_all) == load({})


def test_options_win_over_the_environment() -> None:
    environ = {"LARK_LEASE_SECONDS": "60", "LARK_STATE_DIR": "/tmp/a", "PATH": "/bin"}
    settings = load(environ, {"lease_seconds": "120"})
    assert settings.lease_seconds == 120
    assert settings.database_url == "sqlite:////tmp/a/lark.db"


def test_addresses() -> None:
    settings = load({"LARK_OPENFLOW_LISTEN": "0.0.0.0:6653, [::]:6653", "LARK_REST_LISTEN": "unix:/run/lark/rest.sock"})
    assert settings.openflow_listen == (Listen("0.0.0.0", 6653), Listen("::", 6653))
    assert [str(listen) for listen in settings.openflow_listen] == ["0.0.0.0:6653", "[::]:6653"]
    assert settings.rest_listen == (Listen(path="/run/lark/rest.sock"),)
    assert not settings.openflow_listen[0].loopback


def test_all_mistakes_are_named_at_once() -> None:
    environ = {
        "LARK_LEASE_SECOND": "3",
        "LARK_REST_LISTEN": "0.0.0.0:99999",
        "LARK_OPENFLOW_LISTEN": "unix:/x",
        "LARK_LOG_LEVEL": "loud",
        "LARK_RATE_LIMIT": "nan",
        "LARK_WAITING_POSTS": "2.5",
    }
    with pytest.raises(SettingError) as caught:
        load(environ, {"rest_threads": "x", "nonsense": "1"})
    text = str(caught.value)
    assert len(text.splitlines()) == 8
    for word in ("LARK_LEASE_SECONDS is meant", "--rest-threads", "nonsense", "accepted: debug, info, warning, error"):
        assert word in text


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({"LARK_REST_THREADS": "20"}, "LARK_WAITING_POSTS + 8"),
        ({"LARK_REST_TLS_CERT": "/c"}, "together"),
        ({"LARK_OPENFLOW_TLS_LISTEN": "127.0.0.1:6654"}, "LARK_OPENFLOW_TLS_CA"),
        ({"LARK_OPENFLOW_LISTEN": ""}, "no switch can connect"),
        ({"LARK_REST_LISTEN": ""}, "at least one address"),
        ({"LARK_MAX_ADS_BYTES": "5000000"}, "LARK_MAX_BODY_BYTES"),
    ],
)
def test_settings_that_do_not_go_together(environ: dict[str, str], word: str) -> None:
    with pytest.raises(SettingError, match=re.escape(word)):
        load(environ)


def test_a_password_is_never_shown() -> None:
    settings = load({"LARK_DATABASE_URL": "postgresql+psycopg://lark:secret@db/lark"})
    assert "secret" not in repr(settings)


@given(st.sampled_from([row.variable for row in table()]), st.text(max_size=30))
def test_any_text_is_a_setting_or_a_setting_error(variable: str, text: str) -> None:
    try:
        settings = load({variable: text})
    except SettingError as refused:
        said = str(refused)
    else:
        said = variable
        assert isinstance(settings, Settings)
    assert variable in said


def test_every_setting_is_documented_as_it_is() -> None:
    text = (DOCS / "settings.md").read_text("utf-8")
    rows = {
        cells[0].strip(" `"): [cell.strip() for cell in cells]
        for line in text.splitlines()
        if line.startswith("| `LARK_")
        for cells in [line.strip("| ").split(" | ")]
    }
    assert set(rows) == {row.variable for row in table()}
    for row in table():
        _, default, unit, meaning = rows[row.variable]
        assert default == (f"`{row.default}`" if row.default else "none"), row.name
        assert unit == (row.about.unit or "–"), row.name
        assert meaning.startswith(row.about.meaning), row.name
    assert {row.name for row in table()} == {entry.name for entry in fields(Settings)}


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root, lark = logging.getLogger(), logging.getLogger(LOGGER)
    before = (root.handlers[:], root.level, lark.level)
    yield io.StringIO()
    root.handlers[:], lark.level = before[0], before[2]
    root.setLevel(before[1])


def test_events_are_lines_of_text(stream: io.StringIO) -> None:
    log.configure("info", "text", stream)
    log.event("job registered", job="ab12", reason="two\nlines", port=None, confirmed=True)
    log.event("not shown", level=log.DEBUG)
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert line.endswith(' info job registered job=ab12 reason="two\\nlines" confirmed=true\n')


def test_events_are_json_objects(stream: io.StringIO) -> None:
    log.configure("warning", "json", stream)
    log.event("not shown")
    log.event("lost", level=log.WARNING, switch=Listen("127.0.0.1", 1), count=2)
    entry = json.loads(stream.getvalue())
    assert (entry["event"], entry["level"], entry["switch"], entry["count"]) == ("lost", "warning", "127.0.0.1:1", 2)


@pytest.mark.parametrize(("level", "shown"), [("info", False), ("debug", True)])
def test_tracebacks_are_shown_at_level_debug_alone(stream: io.StringIO, level: str, shown: bool) -> None:
    log.configure(level, "text", stream)
    try:
        raise ValueError("broken")
    except ValueError as error:
        log.failure("request failed", error, instance="x")
    assert 'error="ValueError: broken"' in stream.getvalue()
    assert ("Traceback" in stream.getvalue()) == shown


def test_no_caller_waits_for_whoever_reads_the_log(stream: io.StringIO) -> None:
    held, writing = threading.Event(), threading.Event()

    class Slow(io.StringIO):
        def write(self, text: str, /) -> int:
            writing.set()
            assert held.wait(30)
            return super().write(text)

    slow = Slow()
    log.configure("info", "text", slow)
    with log.in_background(most=3):
        log.event("the first")
        assert writing.wait(30)
        for number in range(5):
            log.event("waiting", number=number)
        held.set()
        until_empty = time.monotonic() + 30
        while "number=2" not in slow.getvalue() and time.monotonic() < until_empty:
            time.sleep(0.01)
        log.event("the last")
    shown = [line.split(" ", 2)[2] for line in slow.getvalue().splitlines()]
    assert shown == ["the first", *(f"waiting number={n}" for n in range(3)), "log lines lost count=2", "the last"]
    log.event("at once")
    assert slow.getvalue().endswith("at once\n")


def test_a_private_key_that_others_may_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "text")
    key = tmp_path / "key.pem"
    key.write_text("secret")
    for mode, said in ((0o600, 0), (0o640, 0), (0o604, 1)):
        key.chmod(mode)
        run._warn_of_shared_keys(load({"LARK_REST_TLS_KEY": str(key), "LARK_REST_TLS_CERT": str(key)}))
        assert capsys.readouterr().err.count("can be read by others") == said
