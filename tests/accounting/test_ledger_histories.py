"""Any sequence of readings, restarts, wraps, reconnects and crashes: the account has what could be known."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.readings import CountKind, FlowReading, PortReading
from lark_controller.accounting.usage import NOTHING, Usage
from tests.accounting.test_ledger import job, opened, used
from tests.fixtures.databases import NOW


class Accounts(RuleBasedStateMachine):
    """A job's port and flows, with the truth beside them; whatever happens, the account has what could be known."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = opened()
        self.at = NOW
        # What the port's counters show, what of it was read, and what is true.
        self.shown = [0, 0, 0, 0]
        self.flows = {kind: [0, 0] for kind in CountKind}
        self.read_flows = {kind: [0, 0] for kind in CountKind}
        self.true = [0, 0, 0, 0]
        self.true_flows = {kind: [0, 0] for kind in CountKind}
        self.unread = [0, 0, 0, 0]
        self.written: dict[str, Usage] = {}
        self.stored = NOTHING
        self.saved: tuple[str, Usage] = ("", NOTHING)
        self.size = 2**64
        self.replaced = False
        # Flows may have counted what no port has; ports were read after flows.
        self.lost, self.level = False, True

    @initialize(bits=st.sampled_from((32, 64)))
    def hardware(self, bits: int) -> None:
        """A switch whose byte counters have so many bits, and are near the end of 32."""
        self.size = 2**bits
        self.unread = self.shown = [1000, 4_200_000_000, 1000, 4_100_000_000]
        self.shown = list(self.shown)
        self._read()

    @rule(
        packets=st.tuples(st.integers(1, 9), st.integers(1, 9)),
        size=st.sampled_from((60, 1500, 64_000, 2_000_000)),
        kind=st.sampled_from(list(CountKind)),
    )
    def traffic(self, packets: tuple[int, int], size: int, kind: CountKind) -> None:
        """Packets both ways, and one of them counted by a flow."""
        new = [packets[0], packets[0] * size, packets[1], packets[1] * size]
        self.unread = [one + two for one, two in zip(self.unread, new, strict=True)]
        for place, value in enumerate(new):
            self.shown[place] = (self.shown[place] + value) % (self.size if place in (1, 3) else 2**64)
        for place, value in enumerate((1, size)):
            self.flows[kind][place] += value

    @rule()
    def poll(self) -> None:
        """The switch is asked."""
        self._read()

    def _read(self) -> None:
        self.at += 10
        readings = [FlowReading(kind, *values) for kind, values in self.flows.items() if any(values)]
        self.ledger.read(1, self.at, PortReading(*self.shown), readings, port_age=self.at - NOW)
        self.true = [one + two for one, two in zip(self.true, self.unread, strict=True)]
        self.unread = [0, 0, 0, 0]
        self.level = True
        for kind in CountKind:
            self._seen(kind)
        self.level = True

    def _seen(self, kind: CountKind) -> None:
        self.level = self.level and self.flows[kind] == self.read_flows[kind]
        for place in range(2):
            self.true_flows[kind][place] += self.flows[kind][place] - self.read_flows[kind][place]
            self.read_flows[kind][place] = self.flows[kind][place]

    @rule()
    def the_port_is_made_anew(self) -> None:
        """Its counters begin at 0; what nobody had read is lost, and the next reading comes before the next packet."""
        self.replaced = self.lost = True
        self.shown = [0, 0, 0, 0]
        self.unread = [0, 0, 0, 0]
        self._read()

    @rule(kind=st.sampled_from(list(CountKind)))
    def a_flow_is_removed(self, kind: CountKind) -> None:
        """The switch says what it had counted."""
        if any(self.flows[kind]):
            self.replaced = True
            self.ledger.flow_gone(1, FlowReading(kind, *self.flows[kind]))
            self._seen(kind)
            self.flows[kind] = [0, 0]
            self.read_flows[kind] = [0, 0]

    @rule(kept=st.booleans())
    def the_switch_reconnects(self, kept: bool) -> None:
        """With its flows, or without; what it had counted for lost flows since the last reading nobody knows."""
        if not kept:
            self.replaced = True
            self.flows = {kind: [0, 0] for kind in CountKind}
            self.read_flows = {kind: [0, 0] for kind in CountKind}
        there = [FlowReading(kind, *values) for kind, values in self.flows.items()] if kept else []
        self.ledger.flows_there(1, there)
        if kept:
            for kind in CountKind:
                self._seen(kind)

    @rule()
    def it_is_written(self) -> None:
        """A transaction: the new use is added to what is stored, beside the readings."""
        for entry in (entries := self.ledger.entries(self.ledger.changed())):
            self.stored = self.stored.plus(entry.new)
            self.saved = (entry.readings, self.stored)
        self.ledger.wrote(entries)
        self.replaced = False
        assert self.stored == used(self.ledger)

    @precondition(lambda self: not self.replaced)
    @rule()
    def the_controller_crashes(self) -> None:
        """And goes on from what is stored; the next reading has all that came since, of ports and flows that are still
        there."""
        self.ledger = Ledger()
        self.ledger.resume(job(), "group_cms", *self.saved)
        self._read()

    @invariant()
    def the_account_has_the_truth(self) -> None:
        """Nothing lost, nothing doubled."""
        usage = used(self.ledger)
        assert [usage.packets_out, usage.bytes_out, usage.packets_in, usage.bytes_in] == self.true
        flows = self.true_flows
        wan_out, wan_in = flows[CountKind.WAN_OUT][1], flows[CountKind.WAN_IN][0] + flows[CountKind.WAN_IN_IPV6][0]
        assert usage.wan_bytes_out <= min(wan_out, usage.bytes_out)
        assert usage.wan_packets_in <= min(wan_in, usage.packets_in)
        if self.level and not self.lost:
            assert (usage.wan_bytes_out, usage.wan_packets_in) == (wan_out, wan_in)
        assert usage.policy_drops_out == flows[CountKind.DROP_OUT][0]
        assert usage.policy_drops_in == flows[CountKind.DROP_IN][0] + flows[CountKind.DROP_IN_IPV6][0]


Accounts.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAccounts = Accounts.TestCase
