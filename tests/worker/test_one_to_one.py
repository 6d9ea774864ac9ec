"""The table of a Linux gateway, as a value."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from lark_worker.rules.one_to_one import Mapped, script, table
from lark_worker.rules.render import limited
from lark_worker.rules.table import Table

EXTERNAL, OWN = IPv4Address("198.51.100.65"), IPv4Address("10.64.0.1")


def made(*opened: str) -> Table:
    mapped = [Mapped(EXTERNAL, OWN, opened)]
    return table("t", "wan", [IPv4Network("198.51.100.64/30")], [IPv4Network("10.64.0.0/24")], mapped)


def spans(*opened: str) -> list[str]:
    return [each.removesuffix(f" : {OWN}").rpartition(" . ")[2] for each in made(*opened).sets["in_ports"].elements]


def test_spans_of_ports_of_one_job_do_not_overlap() -> None:
    assert spans("tcp/70-90", "tcp/80", "tcp/85-95", "tcp/96", "tcp/98", "tcp/70-90") == ["70-96", "98"]
    assert spans("udp/80", "tcp/80") == ["80", "80"]
    assert made("tcp", "tcp/80").sets["in_protocols"].elements == (f"{EXTERNAL} . tcp : {OWN}",)


def test_a_change_touches_the_elements_that_go_or_come_and_no_others() -> None:
    before, after = (Mapped(EXTERNAL, OWN, opened) for opened in (("tcp/80", "tcp/90"), ("tcp/80-85", "tcp/90", "any")))
    assert script("delete", "t", [before], [after]).splitlines() == [
        f"delete element inet t in_ports {{ {EXTERNAL} . tcp . 80 : {OWN} }}",
        f"delete element inet t out_ports {{ {OWN} . tcp . 80 : {EXTERNAL} }}",
    ]
    assert script("add", "t", [after], [before]).splitlines() == [
        f"add element inet t in_whole {{ {EXTERNAL} : {OWN} }}",
        f"add element inet t in_ports {{ {EXTERNAL} . tcp . 80-85 : {OWN} }}",
        f"add element inet t out_whole {{ {OWN} : {EXTERNAL} }}",
        f"add element inet t out_ports {{ {OWN} . tcp . 80-85 : {EXTERNAL} }}",
    ]
    assert script("add", "t", [before], [before]) == ""


def test_the_rate_is_looked_at_before_the_count() -> None:
    """Counting costs the kernel time or memory, for a flood as well."""
    gateway = table("t", "wan", [IPv4Network("198.51.100.64/30")], [IPv4Network("10.64.0.0/24")], [], 50)
    for rules in (limited(50, "counter name c"), gateway.chains["limited"].rules):
        assert ["limit rate over 3/second" in rule for rule in rules] == [True, False] * (len(rules) // 2)
        assert ["ct count over 50" in rule for rule in rules] == [False, True] * (len(rules) // 2)
