"""The rates of the experiments: the papers' where they have them, or those of a YAML or JSON file (``--rates FILE``).

Lark's rates are Mb/s of L2 bytes, the QoS framework's MB/s; all are multiplied by the scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import yaml

from experiments import paper
from lab.run import LabError

# Limits of Fig. 11, Mb/s. The paper shows its own in a picture alone; these are ours.
SWEEP: Final = (10.0, 50.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0)
# Of the numbers of other jobs in Fig. 12 and Table III, 1 to 15, these: with five repetitions of each the experiments
# on the WAN took 47 minutes.
OTHERS: Final = (1, 5, 10, 15)
# Jobs that the lab's two workers can run beside one.
MOST_OTHERS: Final = 15
MOST_NODES: Final = 16


@dataclass(frozen=True, slots=True)
class Rates:
    """``host_rates``: what the jobs A, B and C request (Fig. 8) on a worker's link of ``host_link``.

    ``sweep``: the limits of Fig. 11. ``wan_queues``: the queues of the groups ``cms`` and ``other`` (Fig. 10) on a WAN
    of ``wan_link``. ``priority``: the rates of the one job's group and of everybody else's (Fig. 12), beside each
    number of jobs in ``others``. ``link_mbytes``: what a link of the QoS framework carries in both directions
    together; ``nodes``: how many nodes.
    """

    host_link: float = paper.HOST_LINK
    host_rates: Mapping[str, float] = field(default_factory=lambda: paper.HOST_RATES)
    sweep: tuple[float, ...] = SWEEP
    wan_link: float = paper.WAN_LINK
    wan_queues: Mapping[str, float] = field(default_factory=lambda: paper.WAN_QUEUES)
    priority: tuple[float, ...] = paper.PRIORITY_RATES
    others: tuple[int, ...] = OTHERS
    link_mbytes: float = paper.LINK_MBYTES
    nodes: tuple[int, ...] = (4, 8)


def read(path: Path) -> Rates:
    """The rates of a file; what it leaves out is the paper's. Raises LabError with what is wrong with it."""
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise LabError(f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise LabError(f"{path}: a mapping is accepted, with {', '.join(each.name for each in fields(Rates))}")
    try:
        return of(found)
    except ValueError as error:
        raise LabError(f"{path}: {error}") from None


def of(found: Mapping[str, Any]) -> Rates:
    """The rates of a mapping. Raises ValueError."""
    papers = Rates()
    values: dict[str, Any] = {}
    for name, value in found.items():
        if name not in {each.name for each in fields(Rates)}:
            raise ValueError(f"{name} is not known; accepted: {', '.join(each.name for each in fields(Rates))}")
        values[name] = _like(name, getattr(papers, name), value)
    made = Rates(**values)
    if len(made.priority) != 2:
        raise ValueError("priority: two rates are accepted")
    for name, most in (("others", MOST_OTHERS), ("nodes", MOST_NODES)):
        counts = getattr(made, name)
        if not counts or any(count != int(count) or not 1 <= count <= most for count in counts):
            raise ValueError(f"{name}: whole numbers from 1 to {most} are accepted")
    if any(rate != int(rate) for rate in made.sweep):
        raise ValueError("sweep: whole Mb/s are accepted, as HTCondor matches no job that asks for part of one")
    if not made.sweep or min(made.nodes) < 2:
        raise ValueError("sweep: at least one rate is accepted; nodes: 2 or more")
    return made


def _like(name: str, papers: object, value: object) -> object:
    """A value of the same kind as the paper's. Raises ValueError."""
    if isinstance(papers, Mapping):
        if not isinstance(value, dict) or value.keys() != papers.keys():
            raise ValueError(f"{name}: a mapping with {', '.join(papers)} is accepted")
        return {key: _number(name, value[key]) for key in papers}
    if isinstance(papers, tuple):
        if not isinstance(value, list):
            raise ValueError(f"{name}: a list of numbers is accepted")
        return tuple(_number(name, each) for each in value)
    return _number(name, value)


def _number(name: str, value: object) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise ValueError(f"{name}: {value!r} is no number above 0")
    return value
