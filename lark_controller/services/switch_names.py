"""The names of switches and their hosts, and the switch that a word means. For the loop's thread.

A datapath id comes first, then what the policy says, then the hosts of the jobs that are at a switch. A switch's own
description (``other_config:dp-desc``) is anybody's who has a bridge: it names a switch only where nothing else has that
name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from lark_common.errors import NotFoundError
from lark_controller.policies.switches import IDENTITY
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.reconcile.switch import SwitchState, dpid_text


@dataclass(frozen=True, slots=True)
class SwitchNames:
    """The hosts of the known switches, by datapath id: those of the policy and of jobs, and those that are but what a
    switch says of itself. ``taken`` are the names of hosts whose jobs are elsewhere, in lower case."""

    loop: Reconciler
    known: Mapping[int, str]
    described: Mapping[int, str]
    taken: Collection[str]

    @classmethod
    def of(cls, loop: Reconciler) -> Self:
        """The names as they are now, at a cost that grows with the switches and not with their jobs."""
        known: dict[int, str] = {}
        said: dict[int, str] = {}
        for datapath in known_switches(loop):
            desired = loop.desired_of(datapath)
            spec = desired.policy.switches.get(datapath)
            if spec is not None and spec.host:
                known[datapath] = spec.host
            elif (attached := next(desired.present_at(datapath), None)) is not None:
                # Ads tell at which switch a job is.
                known[datapath] = attached.job.host
            elif (state := loop.switches.get(datapath)) is not None and state.description:
                said[datapath] = state.description
        taken = {host.lower() for host in (*known.values(), *loop.desired.ruled.hosts())}
        words = loop.desired.policy.switch_words
        described = {
            datapath: text
            for datapath, text in said.items()
            if text.lower() not in taken and text.lower() not in words and not IDENTITY.fullmatch(text)
        }
        return cls(loop, known, described, taken)

    def host(self, datapath: int) -> str:
        """A switch's host: the one that the policy names, else that of the jobs there, else the switch's description
        where that is no other's name; empty where it is not known."""
        return self.known.get(datapath) or self.described.get(datapath, "")

    def name(self, datapath: int) -> str:
        """A switch's name: the policy's, else its description where that is no other's name, else its datapath id."""
        state = self.loop.switches.get(datapath) or SwitchState(datapath)
        desired = self.loop.desired_of(datapath)
        label = state.label(desired)
        if datapath in desired.policy.switches or datapath in self.described:
            return label
        other = label.lower() in self.taken and label.lower() != self.known.get(datapath, "").lower()
        return dpid_text(datapath) if other else label

    def found(self, text: str) -> int:
        """A switch's datapath id from its id (hexadecimal), its name, or its host's name with or without the domain;
        names are in any case. Raises NotFoundError."""
        number = _number(text)
        known = is_known(self.loop, number)
        if known and IDENTITY.fullmatch(_plain(text)):
            return number
        found = self._declared(text)
        if len(found) == 1:
            return found[0]
        found = found or _on_host(self.known, text)
        if not found and known:
            return number
        found = found or _on_host(self.described, text)
        if len(found) > 1:
            listed = ", ".join(map(dpid_text, found))
            raise NotFoundError(
                f"{len(found)} switches are called {text}, by their names or hosts: {listed}; accepted: one of these"
            )
        if not found:
            raise NotFoundError(f"no switch has the name, datapath id or host {text}")
        return found[0]

    def _declared(self, text: str) -> list[int]:
        """The declared switches of that name, or else of one that differs in case."""
        names = {datapath: spec.name for datapath, spec in self.loop.desired.policy.switches.items()}
        whole = [datapath for datapath, name in names.items() if name == text]
        return whole or [datapath for datapath, name in names.items() if name.lower() == text.lower()]


def known_switches(loop: Reconciler) -> list[int]:
    """The switches that are declared, have been connected since this start, or have jobs, which wait for them."""
    return sorted({*loop.switches, *loop.desired.policy.switches, *loop.desired.edges()})


def away_switches(loop: Reconciler) -> list[str]:
    """The names of the known switches that are not connected, in order."""
    away = [each for each in known_switches(loop) if (state := loop.switches.get(each)) is None or state.link is None]
    names = SwitchNames.of(loop) if away else None
    return [] if names is None else sorted(map(names.name, away))


def is_known(loop: Reconciler, datapath: int) -> bool:
    """True for one of these switches."""
    return datapath in loop.switches or datapath in loop.desired.policy.switches or loop.desired.count_at(datapath) > 0


def _plain(text: str) -> str:
    return text.removeprefix("0x").replace(":", "")


def _number(text: str) -> int:
    try:
        return int(_plain(text), 16)
    except ValueError:
        return -1


def _on_host(hosts: Mapping[int, str], text: str) -> list[int]:
    """The switches on the host of this name, or else on hosts whose names begin with it before the domain."""
    name = text.lower()
    lower: Iterable[tuple[int, str]] = [(datapath, host.lower()) for datapath, host in hosts.items()]
    whole = [datapath for datapath, host in lower if name and host == name]
    return whole or [datapath for datapath, host in lower if name and host.partition(".")[0] == name]
