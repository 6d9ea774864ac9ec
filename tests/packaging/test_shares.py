"""The tests of a run: each file is in one share, and shares side by side have one result, also when stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.__main__ import names_files
from tests.fixtures.again import AT_MOST
from tests.shares import ELSEWHERE, ROOT, STAGES, SharesError, divide
from tests.side_by_side import read

RUN = """
import sys
from pathlib import Path
from tests.side_by_side import Share, run
stages = {stages!r}
shares = [[Share(name, (str(Path({place!r}, name)),)) for name in stage] for stage in stages]
shares[0] += [Share(name, command=words) for name, words in {commands!r}.items()]
fixed = ["-c", "/dev/null", "--rootdir", {place!r}, "-p", "no:cacheprovider", "-p", "tests.fixtures.again"]
fixed += ["-p", "pytest_rerunfailures"]
sys.exit(run(shares, fixed + sys.argv[1:], choosing=len(sys.argv) > 1, lanes={lanes}))
"""
GOOD = "def test_good(): pass\n"
LATE = """
import pathlib, pytest
@pytest.mark.parametrize("n", range({tests}))
def test_late(n):
    seen = pathlib.Path(__file__).with_suffix("." + str(n))
    if not seen.exists():
        seen.touch()
        raise AssertionError("late")
"""
# Tells that it runs, waits to be interrupted, and tells that it was.
LONG = """
import pathlib, pytest, subprocess, time
here = pathlib.Path(__file__)
@pytest.fixture
def server():
    with subprocess.Popen(["sleep", "300"]) as process:
        here.with_suffix(".pid").write_text(f"{process.pid}\\n")
        yield
        process.kill()
    here.with_suffix(".ended").touch()
def test_long(server):
    time.sleep(300)
"""


def command(
    place: Path,
    stages: Sequence[Sequence[str]],
    tests: Mapping[str, str],
    lanes: int = 3,
    commands: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[str]:
    """Write each share's file of tests; the command that runs them, and other ``commands`` beside the first."""
    for name, text in tests.items():
        (place / name).mkdir()
        (place / name / f"test_{name}.py").write_text(text)
    program = RUN.format(stages=stages, place=str(place), lanes=lanes, commands=dict(commands))
    return [sys.executable, "-c", program]


def environment() -> dict[str, str]:
    """Without the plugins that these tests have no use for: they take long to load."""
    return {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def ran(
    place: Path,
    stages: Sequence[Sequence[str]],
    tests: Mapping[str, str],
    *arguments: str,
    lanes: int = 3,
    commands: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[int, list[str]]:
    done = subprocess.run(
        [*command(place, stages, tests, lanes, commands), *arguments],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, env=environment(),
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


def test_every_file_of_tests_is_in_one_share() -> None:
    files = divide()
    assert list(files) == [name for stage in STAGES for name in stage]
    listed = [path for paths in files.values() for path in paths]
    assert len(listed) == len(set(listed))
    others = {path for room in ELSEWHERE for path in (ROOT / "tests" / room).rglob("test_*.py")}
    assert set(listed) | others == set((ROOT / "tests").rglob("test_*.py"))
    # Of the rooms that are tested elsewhere, what `make test` has is a file by itself.
    assert [path.name for path in listed if path in others] == ["test_short_form.py"]


def test_a_pytest_that_starts_closes_no_directory_of_another_to_the_users_of_jobs(tmp_path: Path) -> None:
    opened = [path for path in (tmp_path, *tmp_path.parents) if path.is_relative_to("/tmp") and path != Path("/tmp")]
    for path in opened:
        path.chmod(0o755)
    (tmp_path / "test_other.py").write_text("def test_other(tmp_path): pass\n")
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    subprocess.run([*command, str(tmp_path)], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL, env=environment())
    assert [path.stat().st_mode & 0o777 for path in opened] == [0o755] * len(opened)


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ([{"a": ["one", "two/test_x.py"]}], "tests/two/test_y.py is in no share"),
        ([{"a": ["one"]}, {"b": ["two", "one"]}], "one stands in a and in b"),
        ([{"a": ["one", "two", "three"]}], "no file of tests is meant by three"),
        ([{"a": ["one", "two/test_x.py", "two/test_y.py", "two"]}], "no file of tests is meant by two"),
    ],
)
def test_a_file_that_is_forgotten_is_refused(
    tmp_path: Path, stages: Sequence[Mapping[str, Sequence[str]]], says: str
) -> None:
    for name in ("one/test_a.py", "two/test_x.py", "two/test_y.py", "elsewhere/test_z.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(SharesError, match=re.escape(says)):
        divide(stages, tmp_path, ["elsewhere"])
    found = divide([{"a": ["two"]}, {"b": ["one", "two/test_y.py"]}], tmp_path, ["elsewhere"])
    assert found == {
        "a": (tmp_path / "two/test_x.py",),
        "b": (tmp_path / "one/test_a.py", tmp_path / "two/test_y.py"),
    }


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["tests/rest/test_jwt.py"], True),
        (["-x", "tests/rest"], True),
        (["-k", "a", "tests/rest/test_jwt.py::test_a"], True),
        (["-x", "-k", "lab"], False),
        (["--lf"], False),
        ([], False),
    ],
)
def test_arguments_that_name_files_are_one_process(arguments: list[str], *, named: bool) -> None:
    assert names_files(arguments) == named


def test_all_that_was_passed_is_one_result(tmp_path: Path) -> None:
    status, said = ran(tmp_path, [["one", "second"], ["last"]], {"one": GOOD, "second": GOOD * 2, "last": GOOD})
    assert status == 0
    assert "3 passed, 0 failed" in said
    assert re.fullmatch(r"=+ 3 passed in [\d.]+s \(0:00:\d\d\) =+", said[-1])
    assert sum(" passed" in line and line.startswith("=") for line in said) == 1
    # A reader finds what ran, and the second stage after the first.
    first = [n for n, line in enumerate(said) if re.match(r"(one:   |second:) \S+test_\w+\.py \.", line)]
    last = [n for n, line in enumerate(said) if re.match(r"last: \S+test_last\.py \.", line)]
    assert (len(first), len(last)) == (2, 1)
    assert max(first) < last[0]


# Waits until another file is there, and says that it has begun and ended itself.
WAITING = """
import pathlib, time
here = pathlib.Path(__file__).parents[1]
def test_waits():
    (here / "{name}.begun").touch()
    while not (here / "{awaits}").exists():
        time.sleep(0.01)
    (here / "{name}.ended").touch()
"""


def test_so_many_shares_run_at_a_time_as_there_are_lanes(tmp_path: Path) -> None:
    alone = "import pathlib\ndef test_alone():\n assert (pathlib.Path(__file__).parents[1] / '{}.ended').exists()\n"
    tests = {
        "one": WAITING.format(name="one", awaits="two.begun"),
        "two": WAITING.format(name="two", awaits="one.ended"),
        "three": alone.format("one"),
    }
    status, said = ran(tmp_path, [list(tests)], tests, lanes=2)
    assert (status, "3 passed, 0 failed" in said) == (0, True), said
    (tmp_path / "next").mkdir()
    tests = {"one": WAITING.format(name="one", awaits=""), "two": alone.format("one"), "three": alone.format("one")}
    status, said = ran(tmp_path / "next", [list(tests)], tests, lanes=1)
    assert (status, "3 passed, 0 failed" in said) == (0, True), said


@pytest.mark.parametrize("status", [0, 7])
def test_another_program_takes_no_lane_and_is_to_end_well(tmp_path: Path, status: int) -> None:
    until_it_has_begun = f"until [ -e {tmp_path}/one.begun ]; do sleep 0.01; done"
    program = f"{until_it_has_begun}; echo looked at; touch {tmp_path}/done; exit {status}"
    tests = {"one": WAITING.format(name="one", awaits="done")}
    found, said = ran(tmp_path, [["one"]], tests, lanes=1, commands={"lint": ["sh", "-c", program]})
    assert "lint: looked at" in said
    assert any(re.fullmatch(rf"lint: ended after 0 min \d+ s, exit status {status}", line) for line in said), said
    assert (found, f"1 passed, {bool(status):d} failed" in said) == (bool(status), True), said
    assert ("lint: ended with status 7" in said) == bool(status)


def test_programs_keep_their_bytecode_where_the_environment_forbids_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    asks = "import sys\ndef test_asks(): assert not sys.dont_write_bytecode\n"
    status, said = ran(tmp_path, [["one"]], {"one": asks})
    assert (status, "1 passed, 0 failed" in said) == (0, True), said


def test_what_failed_is_told_with_its_traceback_and_once_more_at_the_end(tmp_path: Path) -> None:
    bad = "import pytest\ndef test_bad(): assert 1 == 2\n@pytest.fixture\ndef f(): raise OSError\ndef test_f(f): pass\n"
    status, said = ran(tmp_path, [["good", "common", "torn"]], {"good": GOOD, "common": bad, "torn": "1 +\n"})
    assert status == 1
    assert "1 passed, 3 failed" in said
    assert re.fullmatch(r"=+ 1 failed, 1 passed, 2 error in [\d.]+s \(0:00:\d\d\) =+", said[-1])
    # One piece, although the processes print at the same time.
    piece = [n for n, line in enumerate(said) if line.startswith("common:") and n >= said.index(next(
        line for line in said if re.match(r"common: =+ ERRORS =+", line)))]  # fmt: skip
    assert piece[:-1] == list(range(piece[0], piece[0] + len(piece) - 1))
    assert "common: E   assert 1 == 2" in said
    end = said[next(n for n, line in enumerate(said) if " what failed " in line) :]
    # With reasons: where only the end of all that was printed is kept, it is what is left to find the fault by.
    assert {
        "FAILED common/test_common.py::test_bad: assert 1 == 2",
        "ERROR common/test_common.py::test_f: OSError",
    } < set(end)
    assert any(re.match(r"ERROR torn/test_torn\.py: .*SyntaxError", line) for line in end), end


@pytest.mark.parametrize("more", [0, 1])
def test_second_tries_are_counted_over_all_shares(tmp_path: Path, more: int) -> None:
    tests = {"one": LATE.format(tests=AT_MOST - 2), "two": LATE.format(tests=2 + more)}
    status, said = ran(tmp_path, [["one", "two"]], tests)
    assert f"{AT_MOST + more} passed, 0 failed" in said
    assert any(f" tried again: {AT_MOST + more}, at most {AT_MOST} in a run " in line for line in said)
    assert status == more
    assert (f"more than {AT_MOST} tests were tried again" in said) == bool(more)


def test_a_share_that_crashes_fails_the_run_and_names_its_test(tmp_path: Path) -> None:
    crash = "import os\ndef test_a(): pass\ndef test_crash(): os.abort()\n"
    status, said = ran(tmp_path, [["crash", "good"]], {"crash": crash, "good": GOOD})
    assert status == 1
    assert "crash: pytest ended with status -6 in crash/test_crash.py::test_crash" in said
    assert "2 passed, 1 failed" in said
    assert re.match(r"=+ 2 passed, 1 error in ", said[-1])


def test_a_share_whose_process_a_test_ends_or_without_tests_fails_the_run(tmp_path: Path) -> None:
    tests = {
        "exits": "import os\ndef test_a(): pass\ndef test_exit(): os._exit(0)\ndef test_never(): pass\n",
        "leaves": "import pytest\ndef test_leave(): pytest.exit('', returncode=0)\ndef test_never(): pass\n",
        "before": "import os\nos._exit(0)\n",
        "none": "",
    }
    status, said = ran(tmp_path, [list(tests)], tests)
    assert status == 1
    assert {
        "exits: pytest ended with status 0 in exits/test_exits.py::test_exit",
        "leaves: pytest ended with status 0 in leaves/test_leaves.py::test_leave",
        "before: pytest ended with status 0, and not by itself",
        "none: pytest ended with status 5, and has no test",
        "1 passed, 4 failed",
    } < set(said)


def test_what_was_skipped_is_told_with_its_reason(tmp_path: Path) -> None:
    skipped = "import pytest\n@pytest.fixture\ndef f(): pytest.skip('NO MIRROR')\ndef test_f(f): pass\n"
    status, said = ran(tmp_path, [["one", "two"]], {"one": skipped, "two": GOOD})
    assert (status, "1 passed, 0 failed" in said) == (0, True)
    assert "one/test_one.py::test_f: Skipped: NO MIRROR" in said


def test_arguments_reach_every_share_and_one_without_tests_is_no_failure(tmp_path: Path) -> None:
    tests = {"one": GOOD, "two": "def test_other(): pass\n"}
    status, said = ran(tmp_path, [["one", "two"]], tests, "-k", "other")
    assert (status, "1 passed, 0 failed" in said) == (0, True)
    (tmp_path / "next").mkdir()
    status, said = ran(tmp_path / "next", [["one", "two"]], tests, "-k", "nothing")
    assert (status, said[-1].startswith("=")) == (5, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_every_process_ends_in_good_order_with_a_run_that_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    shares = ("one", "two")
    tests = {**dict.fromkeys(shares, LONG), "never": GOOD}
    # Nobody is left to interrupt the programs that another one has started where this one is killed.
    started = f"echo $$ >{tmp_path}/started; exec sleep 300"
    other = {} if number == signal.SIGKILL else {"other": ["sh", "-c", f"sh -c '{started}'; true"]}
    with subprocess.Popen(
        command(tmp_path, [shares, ["never"]], tests, commands=other),
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(),
    ) as process:  # fmt: skip
        try:
            begun = [
                *(tmp_path / name / f"test_{name}.pid" for name in shares),
                *([tmp_path / "started"] if other else []),
            ]
            waited(lambda: all(path.exists() and path.read_text() for path in begun))
            process.send_signal(number)
            said, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    waited(lambda: all((tmp_path / name / f"test_{name}.ended").exists() for name in shares))
    for name in shares:
        assert not Path("/proc", (tmp_path / name / f"test_{name}.pid").read_text().strip()).exists()
    if number == signal.SIGKILL:
        return
    assert not Path("/proc", (tmp_path / "started").read_text().strip()).exists()
    assert any(line.startswith("other: ended after ") for line in said.splitlines())
    assert process.returncode == 2
    assert f"stopped by {number.name}" in said
    assert "test_never" not in said
    assert "KeyboardInterrupt" in said


def waited(done: object) -> None:
    assert callable(done)
    end = time.monotonic() + 120
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_line_that_was_not_written_whole_is_left_out() -> None:
    start = '{"test": "a", "phase": "start"}\n'
    found = read([start, '{"test": "a", "phase": "call", "outcome": "passed", "seconds": 1}\n', '{"test": "b", "ph'])
    assert (found.counts["passed"], found.within) == (1, "a")
