"""The registry of SciTags: the numbers of experiments and their activities, by name. A JSON file in SciTags' own form,
as the project publishes it: ``experiments``, each with ``expName``, ``expId`` and ``activities``, each of these with
``activityName`` and ``activityId``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from lark_common.errors import LarkError
from lark_common.scitags import MOST_ACTIVITY, MOST_EXPERIMENT, Scitag

# An experiment or an activity as a policy has it: its number, or its name in the registry.
Name = int | str

MAX_BYTES: Final = 4 << 20
_SHOWN: Final = 12


class RegistryError(LarkError):
    """A text that is no registry of SciTags; the message names the first mistake."""


@dataclass(frozen=True, slots=True)
class Registry:
    """Numbers by names in lower case: ``experiments``, and the ``activities`` of each experiment's number.

    ``digest`` changes with the file.
    """

    experiments: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    activities: Mapping[int, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))
    digest: str = ""

    def resolve(self, experiment: Name, activity: Name) -> Scitag | None:
        """The numbers of an experiment and an activity; None where the registry lacks one of the names."""
        number = _number(experiment, self.experiments)
        if number is None:
            return None
        second = _number(activity, self.activities.get(number, {}))
        return None if second is None else Scitag(number, second)

    def problem(self, experiment: Name, activity: Name) -> tuple[str, str]:
        """The reason why the two have no numbers, and what is accepted; two empty texts where they have."""
        number = _number(experiment, self.experiments)
        if number is None:
            return f"no experiment {experiment} in the registry", _accepted(self.experiments, MOST_EXPERIMENT)
        known = self.activities.get(number, {})
        if _number(activity, known) is None:
            return f"no activity {activity} of experiment {experiment}", _accepted(known, MOST_ACTIVITY)
        return "", ""


def parse(text: str) -> Registry:
    """The registry that a file holds. Raises RegistryError."""
    if len(text) > MAX_BYTES:
        raise RegistryError(f"the registry is too large; at most {MAX_BYTES} bytes")
    try:
        experiments: dict[str, int] = {}
        activities: dict[int, dict[str, int]] = {}
        for name, number, each in _named(json.loads(text)["experiments"], "exp", MOST_EXPERIMENT):
            experiments[name] = number
            activities[number] = {
                own: value for own, value, _ in _named(each.get("activities", []), "activity", MOST_ACTIVITY)
            }
    except RecursionError:
        raise RegistryError("the registry is nested too deeply") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RegistryError(f"not a registry of SciTags: {error}") from None
    return Registry(experiments, activities, hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16])


def _named(items: Any, prefix: str, most: int) -> Iterator[tuple[str, int, Any]]:
    for each in items:
        name, number = each[f"{prefix}Name"], each[f"{prefix}Id"]
        if not isinstance(name, str) or type(number) is not int or not 1 <= number <= most:
            raise ValueError(f"{name!r:.80} has the number {number!r:.20}; accepted are 1 to {most}")
        yield name.strip().lower(), number, each


def _number(name: Name, known: Mapping[str, int]) -> int | None:
    return known.get(name.lower()) if isinstance(name, str) else name


def _accepted(known: Mapping[str, int], most: int) -> str:
    names = sorted(known)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    listed = ", ".join(names[:_SHOWN]) + more
    return f"a number from 1 to {most}" + (f", or {listed}" if listed else "; there is no registry with names")
