"""Marks of jobs' flows (SciTags): the policy's decisions, with the numbers of the registry. Called by REST threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from lark_common.errors import Mistake, PolicyError
from lark_common.log import WARNING, event
from lark_common.rereading import Rereading
from lark_common.scitags import Marks, Scitag
from lark_controller.flows.wan import local_networks
from lark_controller.jobs.job import Facts, Job
from lark_controller.policies.model import Policy
from lark_controller.policies.predicate import ads_of
from lark_controller.policies.scitag_registry import MAX_BYTES, Name, Registry, RegistryError, parse
from lark_controller.policies.scitags import decide

_NONE: Final = Registry()
# The identity of a file that is not there.
_ABSENT: Final = (0,)


class RegistryFile:
    """The registry in a file, read again when the file changes; one that cannot be read leaves the one before it in
    force. Thread-safe; without a path there are no names."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: Rereading[tuple[int, ...]] = Rereading(())
        self._registry = _NONE

    @property
    def registry(self) -> Registry:
        """The registry as the file has it now."""
        if self._path is None:
            return _NONE
        with self._lock:
            seen = _identity(self._path)
            if self._file.is_due(seen):
                self._read(self._path, seen)
            return self._registry

    def _read(self, path: Path, seen: tuple[int, ...]) -> None:
        try:
            with path.open("rb") as file:
                self._registry = parse(file.read(MAX_BYTES + 1).decode("utf-8"))
            event("scitags registry read", path=path, experiments=len(self._registry.experiments))
        except (OSError, UnicodeDecodeError, RegistryError) as error:
            if self._file.failed(seen, error, again=isinstance(error, OSError) and seen != _ABSENT):
                event("the scitags registry cannot be read", level=WARNING, path=path, reason=error)
            return
        self._file.done(seen)


def _identity(path: Path) -> tuple[int, ...]:
    """Another one for each content of a file."""
    try:
        found = path.stat()
    except OSError:
        return _ABSENT
    return found.st_ino, found.st_mtime_ns, found.st_size


class Scitags:
    """The marks of live jobs, by the policy in force. Thread-safe."""

    def __init__(self, file: RegistryFile, policy: Callable[[], Policy], live: Callable[[str], Job | None]) -> None:
        self._file = file
        self._policy = policy
        self._live = live

    @property
    def revision(self) -> str:
        """Changes with all that marks depend on; empty where flows are reported to nobody and no
        packet is marked."""
        return self._revision(self._policy(), self._file.registry)

    def of_host(self, host: str, job_ids: Collection[str]) -> Marks:
        """The marks of these live jobs of a host, and the receivers; jobs that do not live there are left out."""
        policy, registry, name = self._policy(), self._file.registry, host.lower()
        found: dict[str, Scitag | None] = {}
        # Predicates take a millisecond a job, and a worker may have many jobs of one kind, or name one many times.
        decided: dict[Facts, Scitag | None] = {}
        for job_id in dict.fromkeys(job_ids):
            job = self._live(job_id)
            if job is None or job.host.lower() != name:
                continue
            if job.facts not in decided:
                mark, _ = decide(policy.scitags, ads_of(job.facts))
                decided[job.facts] = mark and registry.resolve(*mark)
            found[job_id] = decided[job.facts]
        spec = policy.fireflies
        return Marks(
            self._revision(policy, registry),
            spec.collectors,
            spec.destinations,
            () if spec.local else local_networks(policy),
            spec.ongoing,
            spec.labels,
            found,
            spec.own,
        )

    @staticmethod
    def _revision(policy: Policy, registry: Registry) -> str:
        reported = policy.fireflies.collectors or policy.fireflies.destinations or policy.fireflies.labels
        return f"{policy.digest[:16]}.{registry.digest}" if policy.scitags and reported else ""


def check_names(policy: Policy, registry: Registry, source: str = "policy.yaml") -> None:
    """Refuse a policy that names experiments or activities which the registry lacks. Raises PolicyError."""
    mistakes = []
    for rule in policy.scitags:
        for experiment, activity in _pairs(rule.experiment, rule.activity, rule.requested):
            problem, accepted = registry.problem(experiment, activity)
            if problem:
                mistakes.append(Mistake(rule.line, 1, f"policies.scitags {rule.position}", problem, accepted))
                break
    if mistakes:
        raise PolicyError(source, tuple(mistakes))


def _pairs(experiment: Name, activity: Name, requested: Collection[Name]) -> Iterator[tuple[Name, Name]]:
    yield experiment, activity
    for each in requested:
        yield experiment, each
