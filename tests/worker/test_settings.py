"""The worker service's settings: every one is documented, and every mistake is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lark_common.errors import SettingError
from lark_worker import cli
from lark_worker.settings import Settings, load, table, with_file

ROOT = Path(__file__).parents[2]


def test_every_setting_is_documented_with_its_default() -> None:
    page = (ROOT / "docs" / "reference" / "worker.md").read_text()
    documented = dict(re.findall(r"^\| `(LARK_WORKER_[A-Z_]+)` \| `?([^`|]*?)`? \|", page, re.MULTILINE))
    assert {name: text.strip() for name, text in documented.items()} == {row.variable: row.default for row in table()}


def test_the_example_names_settings_with_their_defaults() -> None:
    rows = {row.variable: row.default for row in table()}
    for comment, name, value in re.findall(
        r"(?m)^(#?)(LARK_WORKER_\w+)=(.*)$", (ROOT / "etc" / "worker.env").read_text()
    ):
        assert name in rows
        assert not comment or value == rows[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MTU", "900"),
        ("ON_FAILURE", "panic"),
        ("NETWORKS", "10.64.0.1/16"),
        ("GATEWAYS", "10.64.0.1,10.64.0.2"),
        ("PREFIX", "much-too-long"),
        ("PREFIXX", "x"),
        ("SOCKET", ""),
        ("BRIDGE", "/etc/docker/daemon"),
        ("BRIDGE", "br0 up"),
        ("JOB_SYSCTLS", "net.ipv4.tcp_rmem"),
        ("JOB_SYSCTLS", "net.ipv6.conf.all.forwarding=1"),
        ("JOB_SYSCTLS", "net.ipv4.../../../kernel/panic=1"),
        ("JOB_SYSCTLS", "net.ipv4.tcp_rmem=4096 all"),
    ],
)
def test_a_mistake_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"LARK_WORKER_{name}"):
        load({f"LARK_WORKER_{name}": value})


def test_empty_is_none_where_nothing_is_needed() -> None:
    assert load({"LARK_WORKER_TOKEN_FILE": "", "LARK_WORKER_NETWORKS": ""}) == load({})


def test_commands_have_the_settings_of_the_services_file_and_the_environment_before_it(tmp_path: Path) -> None:
    file = tmp_path / "worker.env"
    file.write_text(
        "# LARK_WORKER_BRIDGE=no\nLARK_WORKER_URL=http://a\nLARK_WORKER_URL='http://b'\n\nOTHER=1\nLARK_WORKER_MTU=9000\n"
    )
    found = with_file({"LARK_WORKER_MTU": "1400", "HOME": "/"}, file)
    assert found == {"LARK_WORKER_URL": "http://b", "LARK_WORKER_MTU": "1400", "HOME": "/"}
    assert with_file({"HOME": "/"}, tmp_path / "absent") == {"HOME": "/"}


@pytest.mark.parametrize("word", ["0", "-1", "nan", "inf", "0.01", "3601", "soon"])
def test_a_gateway_asks_in_sensible_times(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.parser().parse_args(["gateway", "--seconds", word])
    assert "accepted: 0.1 to 3600" in capsys.readouterr().err
    assert cli.parser().parse_args(["gateway", "--seconds", "0.5"]).seconds == 0.5


def test_a_gateway_has_the_settings_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "worker.env"
    file.write_text("LARK_WORKER_GATEWAY_WAN=wan0\nLARK_WORKER_GATEWAY_POOLS=198.51.100.64/27\n")
    monkeypatch.setattr("lark_worker.cli.settings_module.with_file", lambda environ: with_file(environ, file))
    seen: list[Settings] = []

    def ran(settings: Settings, _given: object) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(cli, "run_gateway", ran)
    assert cli.main(["gateway"]) == 0
    assert (seen[0].gateway_wan, [str(each) for each in seen[0].gateway_pools]) == ("wan0", ["198.51.100.64/27"])
