"""Takes away each guard of several controllers, one at a time, and shows of which of them no test fails.

python -m tests.mutation.guards
python -m tests.mutation.guards "the code of a voucher"

The guards are in ``guards.toml``: a text of a file, the text in its place without the guard, and the test that fails
then, and not where the guard stands. Each runs in a process that is forked from one which has imported what tests need
and nothing of the project. The programs of Python that a test starts are without the guard, too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.mutation.pure_tests import UNUSED, Reached, import_foreign
from tests.mutation.without import ROOT, Without

LIST = Path(__file__).with_name("guards.toml")
# Seconds for the test of one guard. One that never ends without it fails, too.
_SECONDS = 300
# Has what a program of Python imports when it starts.
_INHERITED = Path(__file__).with_name("inherited")
_FORK = multiprocessing.get_context("fork")
# Prints the modules that tests need and that are not the project's.
_FOREIGN = f"""
import sys, lark_controller.cli.run, tests.conftest, tests.fixtures.controllers, tests.fixtures.openflow
for name, module in list(sys.modules.items()):
    file = getattr(module, "__file__", None) or ""
    if file and ("site-packages" in file or not file.startswith({str(ROOT)!r})):
        print(name)
"""


@dataclass(frozen=True)
class Guard:
    """A guard: its ``name``, the ``text`` of a ``file`` that has it, the text ``without`` it, and a ``test``."""

    name: str
    file: str
    text: str
    without: str
    test: str


def guards(path: Path = LIST) -> list[Guard]:
    """All guards of a list."""
    return [Guard(**entry) for entry in tomllib.loads(path.read_text())["guard"]]


def fails(guard: Guard) -> bool:
    """True where the test of a guard fails without it. Raises RuntimeError where it cannot be run."""
    process = _FORK.Process(target=_try, args=(guard,))
    process.start()
    process.join(_SECONDS)
    if process.is_alive() and process.pid is not None:
        # With the servers and switches of its tests.
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return True
    if process.exitcode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"{guard.name}: {guard.test} cannot be run")
    return process.exitcode == pytest.ExitCode.TESTS_FAILED


def _try(guard: Guard) -> None:
    os.setsid()
    os.chdir(ROOT)
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    change = guard.file, guard.text, guard.without
    sys.meta_path.insert(0, Without(*change))
    path = [str(_INHERITED), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ |= {"PYTHONPATH": os.pathsep.join(path), "WITHOUT_GUARD": json.dumps(change)}
    options = ["-o", "addopts=", "-p", "no:tests.fixtures.again", "-p", "no:cacheprovider", *UNUSED]
    code = pytest.main([*options, "-q", "-x", guard.test])
    os._exit(code)


def _import_foreign() -> None:
    found = subprocess.run([sys.executable, "-c", _FOREIGN], cwd=ROOT, text=True, capture_output=True, check=True)
    import_foreign(Reached({}, {}, tuple(found.stdout.split())))


def main() -> int:
    """Take away all guards, or those of the names that are given; 1 where the test of one does not fail."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.guards", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="these alone")
    parser.add_argument("--list", type=Path, default=LIST, help="the file with the guards")
    options = parser.parse_args()
    chosen = [guard for guard in guards(options.list) if not options.names or guard.name in options.names]
    _import_foreign()
    left = 0
    fail_anyway: dict[str, bool] = {}
    for guard in chosen:
        if guard.test not in fail_anyway:
            fail_anyway[guard.test] = fails(replace(guard, without=guard.text))
        noticed = not fail_anyway[guard.test] and fails(guard)
        left += not noticed
        word = "noticed  " if noticed else "FAILS ANYWAY" if fail_anyway[guard.test] else "UNNOTICED"
        print(f"{word} {guard.name}", flush=True)
    print(f"{len(chosen) - left} of {len(chosen)} noticed")
    return 1 if left or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
