"""The command at a shell's prompt: completion, rates with units, dates, looks that are repeated, a missing address."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lark_controller import settings as table
from lark_controller.cli import main as cli
from lark_controller.cli import values
from lark_controller.rest.server.waitress_server import Server
from lark_worker import cli as worker
from tests.fixtures.rest_app import make_api

WORDS = Path(sys.executable).parent


BASH = """
source <({program} completion bash)
COMP_LINE={line!r} COMP_POINT={length} COMP_TYPE=9 COMP_WORDS=({line}) COMP_CWORD={words}
_python_argcomplete {program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = "{program} completion fish | source; complete -C {line!r}"
COMPLETED = [
    ("lark swi", "switches"),
    ("lark reserve re", "release"),
    ("lark top --by gr", "group"),
    ("lark-worker bri", "bridge"),
    ("lark-worker setup --kind ovs-", "ovs-userspace"),
]


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{WORDS}:{os.environ['PATH']}", "TERM": "dumb"}


@pytest.mark.parametrize(("line", "offered"), COMPLETED)
@pytest.mark.parametrize(("shell", "script"), [(["bash", "-c"], BASH), (["fish", "--no-config", "-c"], FISH)])
def test_bash_and_fish_complete_commands_options_and_values(
    shell: list[str], script: str, line: str, offered: str
) -> None:
    words = line.split()
    filled = script.format(program=words[0], line=line, length=len(line), words=len(words))
    done = subprocess.run([*shell, filled], capture_output=True, text=True, check=True, env=environment())
    assert {word.partition("\t")[0].strip() for word in done.stdout.splitlines()} == {offered}, done.stderr


def test_zsh_completes_commands_options_and_values() -> None:
    """At a terminal of its own, since it completes nowhere else."""
    ours, its = pty.openpty()
    with subprocess.Popen(["zsh", "-f", "-i"], stdin=its, stdout=its, stderr=its, env=environment()) as shell:
        seen = ""

        def shows(words: str) -> None:
            nonlocal seen
            deadline = time.monotonic() + 60
            while words not in seen:
                assert time.monotonic() < deadline, seen
                if select.select([ours], [], [], 0.2)[0]:
                    seen += os.read(ours, 4096).decode(errors="replace")
            seen = ""

        # What is typed is shown as well, so that the word is not typed as it is printed.
        os.write(
            ours,
            b"autoload -U compinit; compinit -u -D; source <(lark completion zsh); "
            b"source <(lark-worker completion zsh); print rea''dy\n",
        )
        shows("ready")
        for line, offered in COMPLETED:
            os.write(ours, f"\x15{line}\t".encode())
            shows(line.rpartition(" ")[0] + f" {offered}")
        shell.kill()
    os.close(ours)
    os.close(its)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("program", [cli.main, worker.main])
def test_every_shell_takes_what_is_printed_for_it(
    program: Callable[[list[str]], int], shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program(["completion", shell]) == cli.OK
    subprocess.run([shell, "-n"], input=capsys.readouterr().out, text=True, check=True)


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
        (["join", "list", "--watch", "0"], "from 0.1 to 86400"),
        (["reserve", "add", "a", "b", "5", "--seconds", "1h"], "a number of seconds, more than 0"),
        (["external", "add", "a", "--seconds", "-5"], "a number of seconds, more than 0"),
        (["reserve", "change", "r", "--seconds", "nan"], "a number of seconds, more than 0"),
        (["audit", "--limit", "all"], "a whole number from 1 on"),
        (["policy", "diff", "v3"], "a whole number from 1 on"),
        (["policy", "back", "0"], "a whole number from 1 on"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_accepted(
    words: list[str], accepted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == cli.USAGE
    assert accepted in capsys.readouterr().err


def test_a_file_of_authorities_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for path in (tmp_path / "none.pem", empty):
        assert cli.main(["jobs", "--url", "https://lark.example", "--ca", str(path)]) == cli.USAGE
        said = capsys.readouterr().err
        assert said.startswith(f"lark: {path}: no authority's certificate can be read: ")
        assert "accepted: a PEM file" in said


def test_a_worker_service_that_is_away_is_said_with_where_to_look(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LARK_WORKER_SOCKET", str(tmp_path / "none.sock"))
    for command in ("jobs", "status"):
        assert worker.main([command]) == 1
        said = capsys.readouterr().err
        assert f"does not answer at {tmp_path / 'none.sock'} (No such file or directory)" in said
        assert "systemctl status lark-worker" in said


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


def test_a_token_that_is_missing_or_refused_is_said_with_where_it_is_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    api = make_api(tmp_path)
    server = Server(api.app, table.load({}, {"rest_listen": f"unix:{tmp_path}/rest.sock"}))
    server.start()
    for name in ("LARK_TOKEN", "LARK_TOKEN_FILE", "LARK_MUNGE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "token").write_text("lark_nonsense")
    asked = ["jobs", "--url", f"unix:{tmp_path}/rest.sock"]
    try:
        assert cli.main(asked) == cli.NO
        assert "Set LARK_TOKEN_FILE, or --token-file, to a file with your token." in capsys.readouterr().err
        assert cli.main([*asked, "--token-file", str(tmp_path / "token")]) == cli.NO
        assert f"It is that of {tmp_path}/token." in capsys.readouterr().err
        monkeypatch.setenv("LARK_TOKEN", "lark_nonsense")
        assert cli.main(asked) == cli.NO
        assert "It is that of LARK_TOKEN." in capsys.readouterr().err
    finally:
        server.stop()


def test_a_tokens_file_that_cannot_be_read_is_said_in_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff")
    for name, reason in (("nowhere", "No such file or directory"), ("token", "it is no text in UTF-8")):
        assert cli.main(["jobs", "--url", "http://127.0.0.1:1", "--token-file", f"{tmp_path}/{name}"]) == cli.USAGE
        assert capsys.readouterr().err == f"lark: {tmp_path}/{name}: the token cannot be read: {reason}\n"


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
