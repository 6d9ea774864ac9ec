"""Changes the calculating rooms at random places, one small change at a time, and shows which changes no test notices.

python -m tests.mutation --seed 7 --count 100
python -m tests.mutation --at lark_controller/flows/diff.py:41
"""

from __future__ import annotations

import argparse
import hashlib
import pickle
import random
import re
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.mutants import Mutant, mutants_of, sample
from tests.mutation.pure_tests import Project, Reach, Reached, import_foreign, measure, notices

ROOMS = ("jobs", "accounting", "policies", "qos", "flows")
CODE = tuple(f"lark_controller/{room}" for room in ROOMS)
TESTS = ("tests/common", *(f"tests/{room}" for room in ROOMS))
EQUIVALENT = Path(__file__).with_name("equivalent.toml")


def main() -> int:
    options = _options()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    root = options.root.resolve()
    project = Project(root, _files(root, options.code, "*.py"), _files(root, options.tests, "test_*.py"))
    mutants = [mutant for path in project.modules for mutant in mutants_of(root, path)]
    if options.at:
        chosen = [mutant for mutant in mutants if mutant.place == options.at]
    else:
        chosen = sample(mutants, seed, options.count)
    print(f"seed {seed}: {len(chosen)} of {len(mutants)} mutants, {options.seconds} s", flush=True)

    end = time.monotonic() + options.seconds
    reach = _reach(project)
    tried, survivors = 0, []
    for mutant in chosen:
        if time.monotonic() > end:
            print(f"the time is over after {tried} mutants")
            break
        tried += 1
        tests = reach.tests_of(mutant)
        noticed = bool(tests) and notices(project, mutant, tests, reach.seconds)
        if not noticed:
            survivors.append(mutant)
        if options.verbose or not noticed:
            outcome = "noticed " if noticed else f"survived {len(tests)} tests:" if tests else "reached by no test:"
            print(f"{outcome} {mutant.place} {mutant.name}: {mutant.change}", flush=True)
    return _judge(tried, survivors, equivalents(options.equivalent), options.least)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, help="the same mutants again")
    parser.add_argument("--count", type=int, default=100, help="how many mutants")
    parser.add_argument("--seconds", type=float, default=1800, help="no mutant is begun later")
    parser.add_argument("--least", type=float, default=95, help="per cent that must be noticed")
    parser.add_argument("--at", metavar="FILE:LINE", help="all mutants of one statement instead")
    parser.add_argument("--code", nargs="+", default=CODE, help="files and folders to change")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files and folders of tests")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2], help="where both are")
    parser.add_argument("--equivalent", type=Path, default=EQUIVALENT, help="changes that change no behaviour")
    parser.add_argument("--verbose", action="store_true", help="show also what is noticed")
    return parser.parse_args()


@dataclass(frozen=True)
class Equivalent:
    """Mutants that change no behaviour: those of a module and function whose change is as the pattern has it."""

    path: str
    name: str
    change: str
    reason: str

    def is_one(self, mutant: Mutant) -> bool:
        return (mutant.path, mutant.name) == (self.path, self.name) and bool(re.fullmatch(self.change, mutant.change))


def _judge(tried: int, survivors: Sequence[Mutant], equivalents: Sequence[Equivalent], least: float) -> int:
    reasons = {mutant: next((each.reason for each in equivalents if each.is_one(mutant)), None) for mutant in survivors}
    unnoticed = [mutant for mutant, reason in reasons.items() if reason is None]
    for mutant, reason in reasons.items():
        if reason is not None:
            print(f"changes nothing: {mutant.place} {mutant.change}\n  {reason}")
    counted = tried - len(survivors) + len(unnoticed)
    print(f"{counted - len(unnoticed)} of {counted} noticed; {tried - counted} more change no behaviour")
    for mutant in unnoticed:
        print(f"  {mutant.place} {mutant.name}\n    {mutant.change}")
    return 0 if counted and 100 * (counted - len(unnoticed)) >= least * counted else 1


def _files(root: Path, paths: Sequence[str], pattern: str) -> tuple[str, ...]:
    found = [
        file
        for path in paths
        for file in ([root / path] if path.endswith(".py") else sorted((root / path).rglob(pattern)))
    ]
    return tuple(str(file.relative_to(root)) for file in found if file.stat().st_size)


def equivalents(path: Path) -> list[Equivalent]:
    """The entries of the list of changes that change no behaviour."""
    entries = tomllib.loads(path.read_text()).get("mutant", []) if path.exists() else []
    return [Equivalent(**entry) for entry in entries]


def _reach(project: Project) -> Reach:
    """The lines that each test reaches, kept until its file or the code changes: it costs thrice the tests' time."""
    code = hashlib.sha256(repr(project.modules).encode())
    own = Path(__file__).parent
    for file in sorted(project.root.glob("[!.]*/**/*.py")):
        if not file.name.startswith("test_") and not file.is_relative_to(own):
            code.update(f"{file.relative_to(project.root)}\n".encode() + file.read_bytes())
    folder = project.root / "build" / "mutation"
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Reached] = {}
    for test in project.tests:
        digest = code.copy()
        digest.update(test.encode() + (project.root / test).read_bytes())
        name = test.removesuffix(".py").replace("/", ".")
        kept = folder / f"{name}-{digest.hexdigest()[:16]}.pickle"
        if kept.exists():
            files[test] = pickle.loads(kept.read_bytes())
        else:
            files[test] = measure(project, test)
            for old in folder.glob(f"{name}-*.pickle"):
                old.unlink()
            kept.write_bytes(pickle.dumps(files[test]))
        import_foreign(files[test])
    return Reach(files)


if __name__ == "__main__":
    sys.exit(main())
