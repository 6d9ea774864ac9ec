"""The command at a shell's prompt: completion, rates with units, dates, looks that are repeated, a missing address."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lark_controller.cli import main as cli
from lark_controller.cli import values

WORDS = Path(sys.executable).parent


def completed(line: str) -> set[str]:
    """The words that bash would offer at the end of ``line``."""
    script = f"""
        source <(lark completion bash)
        COMP_LINE={line!r} COMP_POINT={len(line)} COMP_TYPE=9 COMP_WORDS=({line}) COMP_CWORD={len(line.split())}
        _python_argcomplete lark
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PATH": f"{WORDS}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=environment)
    return {word.strip() for word in done.stdout.split("\n")} - {""}


@pytest.mark.parametrize(
    ("line", "offered"),
    [("lark swi", {"switches"}), ("lark reserve re", {"release"}), ("lark top --by gr", {"group"})],
)
def test_bash_completes_commands_options_and_values(line: str, offered: set[str]) -> None:
    assert completed(line) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_takes_what_is_printed_for_it(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == cli.OK
    printed = capsys.readouterr().out
    assert "lark" in printed
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=printed, text=True, check=True)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("5Mbit", 5.0), ("1.5Gbit", 1500.0), ("800kbit", 0.8), ("22.5", 22.5), ("5 Mbit", 5.0), ("5mbit", 5.0)],
)
def test_rates_are_written_as_in_policies(text: str, rate: float) -> None:
    assert values.rate(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("words", "accepted"),
    [
        (["reserve", "add", "a", "b", "5MB"], "as 250Mbit, 1.5Gbit, 800kbit"),
        (["reserve", "add", "a", "b", "0"], "more than 0 and at most 1000000 Mb/s"),
        (["reserve", "change", "r", "--rate", "nan"], "as 250Mbit, 1.5Gbit, 800kbit"),
        (["token", "a", "--scope", "read", "--expires", "next week"], "as 2027-01-31"),
        (["jobs", "--watch", "0"], "from 0.1 to 86400"),
        (["top", "--interval", "inf"], "from 0.1 to 86400"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_accepted(
    words: list[str], accepted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == cli.USAGE
    assert accepted in capsys.readouterr().err


def test_without_a_controller_the_error_has_what_to_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LARK_URL", raising=False)
    monkeypatch.setattr("lark_controller.cli.parser.DEFAULT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(cli, "DEFAULT_URL", "http://127.0.0.1:1")
    assert cli.main(["jobs"]) == cli.UNREACHABLE
    assert "Set LARK_URL, or --url" in capsys.readouterr().err
    assert cli.main(["jobs", "--url", "http://127.0.0.1:2"]) == cli.UNREACHABLE
    assert "Set LARK_URL" not in capsys.readouterr().err


def test_a_watched_table_goes_on_while_the_controller_is_away() -> None:
    command = [
        sys.executable,
        "-m",
        "lark_controller.cli.main",
        "switches",
        "--watch",
        "0.1",
        "--url",
        "http://127.0.0.1:1",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(3)]
        process.terminate()
    assert all("cannot be reached" in line for line in lines)
