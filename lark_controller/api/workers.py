"""Workers and their rules as REST shows them."""

from __future__ import annotations

from dataclasses import dataclass

from lark_common.worker_rules import HostRules


@dataclass(frozen=True, slots=True)
class HostStatus:
    """The rules that a worker enforces for its jobs without a port on a switch; None where they are known already.

    ``revision`` changes with the rules; ``waiting`` are the ids of the jobs whose rules the worker has not confirmed.
    """

    host: str
    revision: str
    rules: HostRules | None = None
    waiting: tuple[str, ...] = ()
