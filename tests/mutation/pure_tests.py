"""Runs the pure tests in processes of their own: once to see which lines each of them reaches, and once for a mutant.

A process is forked from one that has imported what the tests need and nothing of the project, so that a mutant costs
its tests and little more. A mutated module is compiled in memory; no file of the checkout is written.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType

import coverage
import hypothesis
import pytest

from tests.mutation.mutants import Mutant, mutated

PURE = "not ovs and not postgres and not browser and not lab"
# A plugin that every pytest on this machine loads, for a second, and no test needs.
UNUSED = "-p", "no:schemathesis"
_FORK = multiprocessing.get_context("fork")
# What a test reaches at all, it reaches within so many examples, nearly always.
_EXAMPLES = 40
# What a mutant may take: an endless loop or list must end, and a busy machine must not end anything.
_MEMORY_BYTES = 4 << 30
_COLLECTION_SECONDS = 60
_TEST_SECONDS, _TIMES_LONGER = 2, 2
_WALL_SECONDS = 600


@dataclass(frozen=True)
class Project:
    """The places of the code and its tests; all paths are below ``root``."""

    root: Path
    # The modules that may be changed, and the files of tests.
    modules: tuple[str, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Reached:
    """The lines that one file of tests reaches."""

    # Module to line to tests; a test is a node's name without its parameters, and a file stands for all of its tests.
    lines: Mapping[str, Mapping[int, frozenset[str]]]
    # Processor time.
    seconds: Mapping[str, float]
    # Modules of others that the tests import.
    foreign: tuple[str, ...]


@dataclass(frozen=True)
class Reach:
    """The tests that reach each line."""

    files: Mapping[str, Reached]

    @cached_property
    def seconds(self) -> Mapping[str, float]:
        """Processor time of each test."""
        return {test: seconds for reached in self.files.values() for test, seconds in reached.seconds.items()}

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that can notice a mutant, soonest done first.

        What is run at import is used by whoever likes; the tests of its file come first.
        """
        reaching: set[str] = set()
        for file, reached in self.files.items():
            lines = reached.lines.get(mutant.path, {})
            for line in lines if mutant.at_import else range(mutant.line, mutant.last_line + 1):
                contexts = lines.get(line, frozenset())
                reaching |= contexts & reached.seconds.keys()
                if file in contexts:
                    reaching |= reached.seconds.keys()
                if "" in contexts and not mutant.at_import:
                    return sorted(self.seconds, key=self.seconds.__getitem__)
        tests = self.seconds if mutant.at_import else reaching
        return sorted(tests, key=lambda test: (test not in reaching, self.seconds[test]))


def import_foreign(reached: Reached) -> None:
    """Import what tests need of others, once for all processes that are forked from this one.

    Where one cannot be imported first, it is left to the tests.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in reached.foreign:
            before = set(sys.modules)
            try:
                importlib.import_module(name)
            except Exception:
                for partial in sys.modules.keys() - before:
                    del sys.modules[partial]


def measure(project: Project, file: str) -> Reached:
    """Run the tests of a file once, unchanged, and see what each reaches.

    Raises RuntimeError if they do not pass.
    """
    here, there = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_measure, args=(project, file, there))
    process.start()
    there.close()
    try:
        reached: Reached = here.recv()
    except EOFError:
        raise RuntimeError(f"{file} does not pass without any mutation") from None
    finally:
        process.join()
    return reached


def notices(project: Project, mutant: Mutant, tests: Sequence[str], seconds: Mapping[str, float]) -> bool:
    """True where one of the tests fails on the mutant, or never ends."""
    process = _FORK.Process(target=_try, args=(project, mutant, tests, seconds))
    process.start()
    process.join(_WALL_SECONDS + _TIMES_LONGER * sum(seconds[test] for test in tests))
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode != 0


def _measure(project: Project, file: str, answer: multiprocessing.connection.Connection) -> None:
    _enter(project)
    paths = project.modules
    cover = coverage.Coverage(data_file=None, config_file=False, include=[str(project.root / path) for path in paths])
    cover.start()
    for path in paths:
        importlib.import_module(_module(path))
    tracer = _Tracer(cover.switch_context, paths)
    if _pytest([file], tracer) not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        os._exit(1)
    cover.stop()
    data = cover.get_data()
    lines = {
        path: {
            line: frozenset(contexts) for line, contexts in data.contexts_by_lineno(str(project.root / path)).items()
        }
        for path in paths
    }
    answer.send(Reached(lines, tracer.seconds, tuple(_foreign_modules(project))))
    answer.close()


def _try(project: Project, mutant: Mutant, tests: Sequence[str], seconds: Mapping[str, float]) -> None:
    _enter(project)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    sys.meta_path.insert(0, _Overlay(project.root, mutant))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, _COLLECTION_SECONDS)
    files = sorted({_file(test) for test in tests})
    os._exit(0 if _pytest(files, _Chosen(tests, seconds), "-x") == pytest.ExitCode.OK else 1)


def _enter(project: Project) -> None:
    os.setsid()
    os.chdir(project.root)
    sys.path.insert(0, str(project.root))
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)


def _pytest(tests: Sequence[str], plugin: object, *options: str) -> int:
    arguments = [f"--rootdir={Path.cwd()}", "--noconftest", "-p", "no:cacheprovider", *UNUSED, "-q"]
    arguments += ["-m", PURE, *options]
    return pytest.main([*arguments, *tests], plugins=[_Settings(), plugin])


def _module(path: str) -> str:
    return path.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")


def _file(test: str) -> str:
    return test.split("::", maxsplit=1)[0]


def _foreign_modules(project: Project) -> Iterator[str]:
    """Modules that are not the project's and are there without it."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and (not Path(file).is_relative_to(project.root) or "site-packages" in file):
            yield name


def _name(item: pytest.Item) -> str:
    return item.nodeid.split("[", maxsplit=1)[0]


def _fixtures(item: pytest.Function) -> Iterable[str]:
    """The fixtures that an item asks for and finds, which are not those of the ``conftest.py`` that is left out."""
    return item._fixtureinfo.name2fixturedefs


class _Settings:
    """Examples are the same in each run, and the first that fails is enough.

    A test that needs a fixture of ``tests/conftest.py`` is left out: such a fixture starts a server or a controller.
    """

    @staticmethod
    def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
        items[:] = [item for item in items if {*item.fixturenames, "request"} <= {*_fixtures(item), "request"}]

    @staticmethod
    def pytest_sessionstart() -> None:
        hypothesis.settings.register_profile(
            "mutation",
            deadline=None,
            derandomize=True,
            database=None,
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        )
        hypothesis.settings.load_profile("mutation")


@dataclass
class _Tracer:
    """Says which test, or which file outside of its tests, runs the lines that are seen."""

    switch_context: Callable[[str], object]
    paths: Sequence[str]
    seconds: dict[str, float] = field(default_factory=dict)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, object, object]:
        self.switch_context(_file(collector.nodeid))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Counts the lines of a fixture of more than one test for all tests of the file."""
        if fixturedef.scope == "function":
            return (yield)
        self.switch_context(_file(request.node.nodeid))
        try:
            return (yield)
        finally:
            self.switch_context(_name(request._pyfuncitem))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        _forget_what_is_cached(self.paths)
        name = _name(item)
        self.switch_context(name)
        times = _take_fewer_examples(item)
        start = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + times * (time.process_time() - start)


@dataclass
class _Chosen:
    """Runs some tests alone, soonest done first, and ends the process where one takes too long."""

    tests: Sequence[str]
    seconds: Mapping[str, float]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        places = {test: place for place, test in enumerate(self.tests)}
        items[:] = sorted((item for item in items if _name(item) in places), key=lambda item: places[_name(item)])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        signal.setitimer(signal.ITIMER_PROF, _TEST_SECONDS + _TIMES_LONGER * self.seconds[_name(item)])


@dataclass(frozen=True)
class _Overlay:
    """Finds the mutant where the module is looked for."""

    root: Path
    mutant: Mutant

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != _module(self.mutant.path):
            return None
        file = str(self.root / self.mutant.path)
        return importlib.util.spec_from_file_location(name, file, loader=_Loader(name, file, self.mutant.number))


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, number: int) -> None:
        super().__init__(name, path)
        self._number = number

    def get_code(self, fullname: str) -> CodeType:
        return compile(mutated(Path(self.path).read_text(), self._number), self.path, "exec")


def _take_fewer_examples(item: pytest.Item) -> float:
    """Bound the examples of a property; answers how many times more it has otherwise."""
    test = getattr(item, "obj", None)
    usual = getattr(test, "_hypothesis_internal_use_settings", None)
    if usual is None or usual.max_examples <= _EXAMPLES:
        return 1.0
    test._hypothesis_internal_use_settings = hypothesis.settings(usual, max_examples=_EXAMPLES)  # type: ignore[union-attr]
    return float(usual.max_examples) / _EXAMPLES


def _forget_what_is_cached(paths: Sequence[str]) -> None:
    """Else only the first test that asks for a cached answer is seen to reach the lines that give it."""
    for path in paths:
        for value in vars(sys.modules[_module(path)]).values():
            if type(value).__name__ == "_lru_cache_wrapper":
                value.cache_clear()
