"""All tests, in shares side by side: ``python -m tests [--lint] [PYTEST'S ARGUMENTS]``.

Arguments that name no file are for the pytest of each share. With one that does, a single pytest runs what is named.
``--lint`` is ``make lint``, beside the first shares; before a single pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from tests.shares import LANES, ROOT, STAGES, SharesError, divide
from tests.side_by_side import Share, run

MARKS: Final = ("-m", "not lab and not install")
LINT: Final = ("make", "--no-print-directory", "lint")
# Several shares need the lab's root file system. Where it cannot be built, the tests that need it say so.
LAB_ROOT: Final = ("sh", "-c", '"$0" -m lab build >/dev/null || true', sys.executable)


def names_files(arguments: Sequence[str]) -> bool:
    """True for a file or folder of tests, or a test in one."""
    tests = ROOT / "tests"
    paths = [ROOT / argument.partition("::")[0] for argument in arguments if not argument.startswith("-")]
    return any(path.exists() and path.resolve().is_relative_to(tests) for path in paths)


def main(arguments: Sequence[str]) -> int:
    """Run as a program."""
    os.chdir(ROOT)
    lint = "--lint" in arguments
    arguments = [argument for argument in arguments if argument != "--lint"]
    if names_files(arguments):
        if lint and (status := subprocess.run(LINT).returncode):
            return status
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *MARKS, *arguments])
    try:
        files = divide()
    except SharesError as error:
        print(error, file=sys.stderr)
        return 4
    named = {name: tuple(str(path.relative_to(ROOT)) for path in paths) for name, paths in files.items()}
    stages = [[Share(name, named[name]) for name in stage] for stage in STAGES]
    stages[0] += [Share("lab-root", command=LAB_ROOT), *([Share("lint", command=LINT)] if lint else [])]
    return run(stages, [*MARKS, *arguments], choosing=bool(arguments), lanes=LANES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
