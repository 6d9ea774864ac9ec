"""``lark-transfer-queue``: HTCondor's limits of transfers at a time, by the headroom in slots' ads."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from lark_worker.usage import slots
from tests.fixtures.hook import SHELLS

SCRIPT = Path(__file__).parents[2] / "scripts" / "lark-transfer-queue"
NAME = "Submit-1.Example.org"
# Stand-ins for HTCondor's programs: each answers with a file's contents, and notes what it was asked.
PROGRAM = """\
#!/bin/sh
echo "$0 $*" >>"{folder}/asked"
case "$*" in
    *-schedd*-af*) cat "{folder}/queue" ;;
    *) cat "{folder}/${{0##*/}}" ;;
esac
"""


@dataclass(frozen=True)
class AccessPoint:
    """An access point whose programs answer with these texts."""

    folder: Path
    shell: list[str]

    def answers(self, *, queue: str = f"{NAME} 3 0\n", left: str = "420\n", reconfig: str = "") -> None:
        for name, text in (
            ("queue", queue), ("condor_status", left), ("condor_reconfig", reconfig),
            ("condor_config_val", "ap.test\n"),
        ):  # fmt: skip
            (self.folder / name).write_text(text)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "LARK_TRANSFER_QUEUE_FILE": str(self.file)}
        return subprocess.run(
            [*self.shell, str(SCRIPT), *arguments], capture_output=True, text=True, env=environment, check=False
        )

    @property
    def file(self) -> Path:
        return self.folder / "52.conf"

    @property
    def limits(self) -> list[str]:
        return self.file.read_text().splitlines()[1:]

    def asked(self, program: str) -> list[str]:
        lines = (self.folder / "asked").read_text().splitlines()
        return [line for line in lines if line.partition(" ")[0].endswith(program)]


@pytest.fixture(params=SHELLS)
def access(request: pytest.FixtureRequest, tmp_path: Path) -> AccessPoint:
    (tmp_path / "bin").mkdir()
    for name in ("condor_config_val", "condor_status", "condor_reconfig"):
        program = tmp_path / "bin" / name
        program.write_text(PROGRAM.format(folder=tmp_path))
        program.chmod(0o755)
    made = AccessPoint(tmp_path, SHELLS[request.param])
    made.answers()
    return made


def limits(uploads: int, downloads: int) -> list[str]:
    return [f"MAX_CONCURRENT_UPLOADS = {uploads}", f"MAX_CONCURRENT_DOWNLOADS = {downloads}"]


def test_each_rate_that_is_left_is_one_transfer_more_than_there_are(access: AccessPoint) -> None:
    done = access.run("50")
    assert (done.returncode, done.stderr) == (0, "")
    assert access.limits == limits(3 + 8, 8)
    # The attribute that the worker service writes for that access point.
    assert slots.attribute(NAME.lower(), slots.TRANSFERS_AT) in access.asked("condor_status")[-1]
    assert len(access.asked("condor_reconfig")) == 1
    # What is as it was is not read again by HTCondor.
    access.run("50")
    assert len(access.asked("condor_reconfig")) == 1
    access.answers(left="0\n")
    access.run("50")
    assert access.limits == limits(3, 1)
    assert len(access.asked("condor_reconfig")) == 2
    assert sorted(path.name for path in access.folder.glob(".*")) == []


def test_from_cron_it_finds_condor_reconfig(access: AccessPoint) -> None:
    (access.folder / "bin" / "condor_reconfig").write_text(f'#!/bin/sh\necho "$PATH" >{access.folder}/path\n')
    assert access.run("50").returncode == 0
    # Of the environment's own nothing is there, as in cron.
    assert (access.folder / "path").read_text().split(":")[1:4] == ["/usr/bin", "/bin", "/usr/sbin"]


def test_limits_that_htcondor_has_not_read_are_told_to_it_again(access: AccessPoint) -> None:
    (access.folder / "condor_reconfig").unlink()
    for tries in (1, 2):
        done = access.run("50")
        assert (done.returncode, "condor_reconfig: " in done.stderr) == (1, True)
        assert len(access.asked("condor_reconfig")) == tries
        assert access.limits[:2] == limits(3 + 8, 8)
    access.answers()
    assert access.run("50").returncode == 0
    assert access.limits == limits(3 + 8, 8)
    assert len(access.asked("condor_reconfig")) == 3
    access.run("50")
    assert len(access.asked("condor_reconfig")) == 3


def test_the_limits_have_limits(access: AccessPoint) -> None:
    access.run("5", "4", "20")
    assert access.limits == limits(20, 20)
    access.answers(left="0\n", queue=f"{NAME} undefined 0\n")
    access.run("5", "4", "20")
    assert access.limits == limits(4, 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"left": ""}, "no slot has TransferHeadroomAt_submit_1_example_org: the limits stay as they are"),
        ({"left": "undefined\n"}, "no slot has"),
        ({"left": "-5\n"}, "no slot has"),
        ({"queue": ""}, "the pool has no access point on ap.test"),
    ],
)
def test_without_a_headroom_all_stays_as_it_is(access: AccessPoint, change: dict[str, str], words: str) -> None:
    access.file.write_text("# as it was\n")
    access.answers(**change)
    done = access.run("50")
    assert done.returncode == 1
    assert words in done.stderr
    assert access.file.read_text() == "# as it was\n"


@pytest.mark.parametrize(
    "arguments", [(), ("0",), ("fast",), ("50", "0"), ("50", "9", "3"), ("1", "2", "3", "4"), ("-5",), ("9" * 10,)]
)
def test_what_it_cannot_do_is_said(access: AccessPoint, arguments: tuple[str, ...]) -> None:
    done = access.run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("lark-transfer-queue: ")
    assert not access.file.exists()


def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run(["shellcheck", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.stdout == ""
