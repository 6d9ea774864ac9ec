"""Ads: what is accepted, what is refused, and that nothing is dropped on the way."""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import Any

import classad2
import pytest

from lark_common.classads import values as ad_values
from lark_common.classads.ads import JobAd, MachineAd, parse_post
from lark_common.classads.evaluation import evaluate
from lark_common.classads.parts import whole
from lark_common.classads.text import parse_ad
from lark_common.errors import AdError
from lark_common.runs import AddressType, NetworkType
from tests.fixtures.stored_ads import reparse

JOB = {"Owner": '"bob"', "GlobalJobId": '"s1#12.3#1700000000"'}
MACHINE = {"Machine": '"w1.example"', "Name": '"slot1_2@w1.example"', "LarkInnerAddressIPv4": '"10.64.0.5"'}


def old(entries: dict[str, str]) -> str:
    return "".join(f"{name} = {value}\n" for name, value in entries.items())


def new(entries: dict[str, str]) -> str:
    return "[ " + "; ".join(f"{name} = {value}" for name, value in entries.items()) + " ]"


def post(job: dict[str, str] | None = None, machine: dict[str, str] | None = None) -> tuple[JobAd, MachineAd]:
    return parse_post(f"{old(JOB | (job or {}))}------\n{old(MACHINE | (machine or {}))}".encode(), "text/plain")


def refused(body: str | bytes, media: str = "text/plain") -> AdError:
    with pytest.raises(AdError) as caught:
        parse_post(body if isinstance(body, bytes) else body.encode(), media)
    assert caught.value.reason
    return caught.value


def refused_with(job: dict[str, str] | None = None, machine: dict[str, str] | None = None) -> AdError:
    with pytest.raises(AdError) as caught:
        post(job, machine)
    return caught.value


def test_defaults() -> None:
    job, machine = post()
    assert (job.owner, job.user, job.group, job.started, job.prio) == ("bob", "bob", "", 0, 0)
    assert (job.cluster, job.proc) == (12, 3)
    assert (job.bandwidth, job.inbound, job.outbound, job.accounting) == (None, None, None, None)
    assert (machine.machine, machine.slot) == ("w1.example", "slot1_2@w1.example")
    assert (machine.network_type, machine.address_type) == ("ovs_bridge", "static")
    assert machine.ipv4 == ip_address("10.64.0.5")


def test_both_syntaxes_and_json_say_the_same() -> None:
    want = post()
    plain = json.dumps({"job_ad": old(JOB), "machine_ad": new(MACHINE)})
    objects = {
        "job_ad": {name: json.loads(value) for name, value in JOB.items()},
        "machine_ad": {name: json.loads(value) for name, value in MACHINE.items()},
    }
    for body, media in (
        (f"{new(JOB)}\n------\n{new(MACHINE)}", "text/plain; charset=utf-8"),
        (f"{old(JOB)}------\r\n{new(MACHINE)}", "Text/Plain"),
        (plain, "application/json"),
        (json.dumps(objects), "application/json"),
    ):
        job, machine = parse_post(body.encode(), media)
        assert (job.owner, job.global_job_id) == (want[0].owner, want[0].global_job_id)
        assert (machine.slot, machine.ipv4) == (want[1].slot, want[1].ipv4)


@pytest.mark.parametrize("name", ["a]b", "true", 'x"', "x y", "a//", 'x; Project = "b"'])
@pytest.mark.parametrize("more", ["", 'Args = "a\\nb"; '])
def test_an_ad_that_would_not_read_back_is_refused(name: str, more: str) -> None:
    """HTCondor writes such names without their quotes; in the database stood an ad that nothing could be taken from."""
    with pytest.raises(AdError):
        parse_ad(f"[ Foo = 1 + MY.'{name}'; {more}Project = \"hep\" ]")
    # A worker writes an ad that it has read once more, with what it has added.
    with pytest.raises(AdError, match="quoted name"):
        parse_ad(f"Foo = 1 + MY.'{name}'\nProject = \"hep\"\n")


def test_text_reads_back() -> None:
    odd = {"Args": r'"c:\dir\"', "Env": r'"a=\"x\" ü"', "Req": '(TARGET.Memory >= 10) && stringListMember("a", L)'}
    job, machine = post(odd)
    assert job.ad["Args"] == "c:\\dir\\"
    assert job.ad["Env"] == 'a="x" ü'
    again = reparse(job.text, machine.text)
    assert again == (job, machine)
    assert whole(again[0].ad) == whole(job.ad)


def test_a_line_break_in_a_string_survives() -> None:
    body = json.dumps({"job_ad": {"Owner": "bob", "GlobalJobId": "g", "Env": 'a\nb\\"c'}, "machine_ad": old(MACHINE)})
    job, machine = parse_post(body.encode(), "application/json")
    assert reparse(job.text, machine.text)[0].ad["Env"] == 'a\nb\\"c'


@pytest.mark.parametrize("name", ["a.b", "TARGET.x", "true", "Undefined", "is"])
def test_a_name_that_needs_quotes_survives(name: str) -> None:
    for job in (
        json.dumps({"Owner": "bob", "GlobalJobId": "g", name: 7}),
        json.dumps(f'[ Owner = "bob"; GlobalJobId = "g"; \'{name}\' = 7 ]'),
    ):
        body = f'{{"job_ad": {job}, "machine_ad": {json.dumps(old(MACHINE))}}}'
        job_ad, machine_ad = parse_post(body.encode(), "application/json")
        assert reparse(job_ad.text, machine_ad.text)[0].ad[name] == 7


def test_private_attributes_are_not_kept_in_text() -> None:
    _, machine = post(machine={"ClaimId": '"secret"', "_condor_privRemote": '"secret"'})
    assert "secret" not in machine.text
    with_claim = new(MACHINE | {"ClaimId": '"secret"'})
    new_body = f"{new(JOB)}\n------\n{with_claim}"
    assert "secret" not in parse_post(new_body.encode(), "text/plain")[1].text


def test_last_of_equal_names_wins_in_any_case() -> None:
    job, _ = post({"owner": '"alice"', "OWNER": '"carol"'})
    assert job.owner == "carol"


RUBBISH = [
    'Owner = "a"\nFoo = ',
    "a=1\nb",
    "[[",
    "garbage",
    '{"Owner": "a"}',
    "Foo = 1; Owner = 2",
    "Foo = 1 2",
    'Foo = "a" "b"',
    "Foo = 1) + (2",
    "Foo = 1} + {2",
    "Foo = 1, 2",
    "Foo = a = b",
    "Foo == 1",
    "Foo = 0x10",
    "Foo = 9223372036854775808",
    "Foo = 99999999999999999999999",
    "Foo = 1 // comment",
    "Foo = (1",
    'Foo = "open',
    "Fo o = 1",
    "= 1",
    "Foo-Bar = 1",
    "[a = 1] x",
    "[a = 1][b = 2]",
    "[a = 1; b = 2",
    "[a = 1]]",
    "[a = 1 b = 2]",
    "[a = 99999999999999999999]",
    "Foo = " + "(" * 100_000,
    "Foo = " + "(" * 65 + "1" + ")" * 65,
    "Foo = " + "1+" * 100_000 + "1",
    "Foo = x" + ".x" * 100_000,
    "[Foo = x" + ".x" * 100_000 + "]",
    "[Foo = " + "[a=" * 1000 + "1" + "]" * 1000 + "]",
]


@pytest.mark.parametrize("rubbish", RUBBISH, ids=lambda text: text[:20])
def test_rubbish_is_refused_in_either_ad(rubbish: str) -> None:
    separate = rubbish if rubbish.startswith("[") else old(JOB) + rubbish
    refused(f"{separate}\n------\n{old(MACHINE)}")
    separate = rubbish if rubbish.startswith("[") else old(MACHINE) + rubbish
    refused(f"{old(JOB)}------\n{separate}")


def test_rubbish_names_the_attribute() -> None:
    assert refused_with({"Foo": ""}).attribute == "Foo"
    assert refused_with({"Foo": "1 2"}).attribute == "Foo"


def test_bytes_that_are_not_text() -> None:
    latin = f"{old(JOB)}Comment = ".encode() + b'"caf\xe9"\n------\n' + old(MACHINE).encode()
    error = refused(latin)
    assert error.attribute == "Comment"
    assert f"byte {latin.index(0xE9)} " in error.reason
    nul = refused(f'{old(JOB)}Comment = "a\0b"\n------\n{old(MACHINE)}')
    assert (nul.attribute, "NUL" in nul.reason) == ("Comment", True)
    as_json = b'{"job_ad": {"Owner": "b", "Comment": "caf\xe9"}}'
    assert refused(as_json, "application/json").attribute == "Comment"


@pytest.mark.parametrize("value", ['"M\\374nchen"', '{ 1, "M\\374nchen" }', 'strcat("M\\374", "nchen")'])
def test_escapes_that_make_something_other_than_utf_8_are_refused_with_the_name(value: str) -> None:
    error = refused(f"{new(JOB | {'Place': value})}\n------\n{old(MACHINE)}")
    assert (error.attribute, "other than UTF-8" in error.reason) == ("Place", True)


def test_separator_and_media_type() -> None:
    assert "------" in refused(old(JOB) + old(MACHINE)).reason
    assert "------" in refused(old(JOB) + "-----\n" + old(MACHINE)).reason
    refused(old(JOB) + "------\n------\n" + old(MACHINE))
    assert "accepted: text/plain" in refused("", "text/html").reason


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{",
        '{"job_ad": {}}',
        '{"job_ad": 1, "machine_ad": {}}',
        '{"job_ad": {}, "machine_ad": {}, "x": 1}',
        '{"job_ad": {"Owner": NaN}, "machine_ad": {}}',
        '{"job_ad": {"Owner": "\\ud800"}, "machine_ad": {}}',
        '{"job_ad": "Owner = \\"\\ud800\\"", "machine_ad": {}}',
        '{"job_ad": {"Owner": "a\\u0000b"}, "machine_ad": {}}',
        '{"job_ad": {"Owner": 99999999999999999999}, "machine_ad": {}}',
        '{"job_ad": {"Owner": "/Expr(1; b = 2)/"}, "machine_ad": {}}',
        '{"job_ad": {"a b": 1}, "machine_ad": {}}',
        '{"job_ad": {"\\ud800": 1}, "machine_ad": {}}',
        '{"job_ad": {"a": ' + "[" * 70 + "]" * 70 + '}, "machine_ad": {}}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:50],
)
def test_json_that_is_refused(body: str) -> None:
    refused(body, "application/json")


def test_json_expressions() -> None:
    body = {
        "job_ad": {"Owner": "bob", "GlobalJobId": "g", "RequestBandwidth": "/Expr(Half * 2)/", "Half": 25, "N": None},
        "machine_ad": {"Machine": "w", "AddressType": "dhcp", "L": [1, {"a": True}]},
    }
    job, machine = parse_post(json.dumps(body).encode(), "application/json")
    assert job.bandwidth == 50
    assert (machine.slot, machine.address_type) == ("w", "dhcp")


JOB_REFUSALS = [
    ("Owner", "3"),
    ("Owner", "undefined"),
    ("Owner", "error"),
    ("Owner", '""'),
    ("Owner", '" bob"'),
    ("Owner", "Nowhere"),
    ("GlobalJobId", "undefined"),
    ("GlobalJobId", "true"),
    ("RequestBandwidth", '"fast"'),
    ("RequestBandwidth", "-1"),
    ("RequestBandwidth", "true"),
    ("RequestBandwidth", 'real("NaN")'),
    ("RequestBandwidth", 'real("INF")'),
    ("InboundConnectivity", '"yes"'),
    ("NetworkAccounting", '"no"'),
    ("ClusterId", '"x"'),
    ("ProcId", "-1"),
    ("JobCurrentStartDate", "1.5"),
    ("AcctGroup", "7"),
]


@pytest.mark.parametrize(("name", "value"), JOB_REFUSALS)
def test_job_attributes_that_are_refused(name: str, value: str) -> None:
    assert refused_with({name: value}).attribute == name


MACHINE_REFUSALS = [
    ("LarkInnerAddressIPv4", value)
    for value in (
        '"10.64.0"', '"10.64.0.256"', '"0.0.0.0"', '"224.0.0.1"', '"127.0.0.1"', '"255.255.255.255"', '"10.64.0.0/24"',
        '"10.64.0.255/24"', '"10.64.0.5/33"', '"10.64.0.5/255.255.0.0"', '"x"', "3", '"2001:db8::1"', "{}",
    )
] + [
    ("LarkInnerAddressIPv6", value)
    for value in ('"::"', '"::1"', '"ff02::1"', '"fe80::1"', '"2001:db8::1%eth0"', '"10.0.0.1"', '"::ffff:a00:1"', "1")
] + [
    ("LarkInnerMacAddress", '"01:00:5e:00:00:01"'),
    ("LarkInnerMacAddress", '"ff:ff:ff:ff:ff:ff"'),
    ("LarkInnerMacAddress", '"00:00:00:00:00:00"'),
    ("LarkInnerMacAddress", '"02:00:00:00:00"'),
    ("LarkExternalInterface", '"much-too-long-a-name"'),
    ("LarkExternalInterface", '"a b"'),
    ("LarkExternalInterface", '"a/b"'),
    ("LarkDatapathId", '"xyz"'),
    ("LarkDatapathId", '"00000000000000000"'),
    ("LarkDatapathId", "0"),
    ("LarkDatapathId", "-1"),
    ("NetworkType", '"vxlan"'),
    ("AddressType", '"dhpc"'),
    ("VLAN", '"chemistry"'),
    ("VLAN", "0"),
    ("VLAN", "4095"),
    ("VLAN", "true"),
    ("Machine", "1"),
    ("Name", '"a\tb"'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), MACHINE_REFUSALS)
def test_machine_attributes_that_are_refused(name: str, value: str) -> None:
    assert refused_with(machine={name: value}).attribute == name


@pytest.mark.parametrize(("given", "read"), [("77", 77), ('"physics"', "physics"), ("undefined", None)])
def test_a_job_may_ask_for_a_vlan_by_number_or_by_name(given: str, read: object) -> None:
    assert post({"RequestedVLAN": given})[0].requested_vlan == read


@pytest.mark.parametrize("given", ["0", "4095", "true", '" physics"', "1.5"])
def test_what_no_vlan_can_be_called_is_refused(given: str) -> None:
    refused_with({"RequestedVLAN": given})


def test_a_vlan_needs_a_number() -> None:
    assert "number" in refused_with(machine={"VLAN": '"chemistry"'}).reason


ACCEPTED: list[tuple[str, str, str, Any]] = [
    ("LarkInnerAddressIPv4", '"10.64.0.7/16"', "ipv4", ip_address("10.64.0.7")),
    ("InnerAddressIPv6", '"2001:db8::7/64"', "ipv6", ip_address("2001:db8::7")),
    ("LarkInnerMacAddress", '"02-00-00-00-00-0A"', "mac", "02:00:00:00:00:0a"),
    ("ExternalInterface", '"veth-7"', "port", "veth-7"),
    ("LarkDatapathId", '"00:00:00:00:00:00:00:c0"', "datapath", 0xC0),
    ("LarkDatapathId", '"0xC0"', "datapath", 0xC0),
    ("LarkDatapathId", "192", "datapath", 0xC0),
    ("NetworkType", '"NAT"', "network_type", "nat"),
    ("NetworkType", '"null"', "network_type", "none"),
    ("NetworkType", "undefined", "network_type", "ovs_bridge"),
    ("AddressType", '"local"', "address_type", "static"),
    ("AddressType", '"Controller"', "address_type", "controller"),
    ("VLAN", "100", "vlan", 100),
    ("LarkVLAN", "100", "vlan", 100),
    ("VLAN", "1/0", "vlan", None),
    ("AvailBandwidth", "1000", "available_bandwidth", 1000.0),
]


@pytest.mark.parametrize(("name", "value", "field", "want"), ACCEPTED)
def test_machine_attributes_that_are_accepted(name: str, value: str, field: str, want: Any) -> None:
    assert getattr(post(machine={name: value})[1], field) == want


def test_prefixed_names_win_unless_undefined() -> None:
    assert post(machine={"VLAN": "1", "LarkVLAN": "2"})[1].vlan == 2
    assert post(machine={"VLAN": "1", "LarkVLAN": "undefined"})[1].vlan == 1


def test_values_are_those_of_the_directory() -> None:
    assert set(ad_values.NETWORK_TYPES.values()) == {each.value for each in NetworkType}
    assert set(ad_values.ADDRESS_TYPES.values()) == {each.value for each in AddressType}


@pytest.mark.parametrize(
    ("extra", "missing"),
    [
        ({}, True),
        ({"AddressType": '"dhcp"'}, False),
        ({"AddressType": '"controller"'}, False),
        ({"NetworkType": '"none"'}, False),
        ({"NetworkType": '"nat"'}, True),
        ({"LarkInnerAddressIPv6": '"2001:db8::1"'}, False),
    ],
)
def test_when_an_address_is_needed(extra: dict[str, str], missing: bool) -> None:
    machine = {"LarkInnerAddressIPv4": "undefined", **extra}
    if missing:
        assert refused_with(machine=machine).attribute == "LarkInnerAddressIPv4"
    else:
        assert post(machine=machine)[1].ipv4 is None


PAPER = 'ifThenElse(TARGET.OutboundConnectivity, ifThenElse(TARGET.InboundConnectivity, "bridge", "NAT"), "null")'


@pytest.mark.parametrize(
    ("inbound", "outbound", "want"),
    [
        ("true", "true", "bridge"),
        ("false", "true", "nat"),
        ("true", "false", "none"),
        ("true", "undefined", "ovs_bridge"),
    ],
)
def test_network_type_by_expression_over_the_job(inbound: str, outbound: str, want: str) -> None:
    job, machine = post({"InboundConnectivity": inbound, "OutboundConnectivity": outbound}, {"NetworkType": PAPER})
    assert machine.network_type == want
    assert job.inbound is (inbound == "true")


def test_a_machine_may_ask_for_the_job_s_attribute_of_the_same_name() -> None:
    assert post({"VLAN": "7"}, {"VLAN": "TARGET.VLAN"})[1].vlan == 7


@pytest.mark.parametrize(
    "lines",
    [
        {"RequestBandwidth": "RequestBandwidth + 1"},
        {"RequestBandwidth": "A + A", "A": "RequestBandwidth"},
        {"RequestBandwidth": "A40", "A0": "1"} | {f"A{n}": f"A{n - 1} + A{n - 1}" for n in range(1, 41)},
        {"RequestBandwidth": "'A40'", "A0": "1"} | {f"A{n}": f"'A{n - 1}' + 'A{n - 1}'" for n in range(1, 41)},
        {"RequestBandwidth": 'eval("1+1")'},
        {"RequestBandwidth": "[a = 1; b = a + a; c = b + b].c"},
        {"RequestBandwidth": "R.c", "R": "[a = 1; b = a + a; c = b + b]"},
        {"RequestBandwidth": "int(Long)", "Long": '"' + "9" * 10000 + '"'},
    ],
    ids=range(8),
)
def test_expressions_without_a_bound_are_refused(lines: dict[str, str]) -> None:
    assert refused_with(lines).attribute == "RequestBandwidth"


@pytest.mark.parametrize(
    ("lines", "group"),
    [
        ({"AcctGroup": '"g.a"', "AccountingGroup": '"x.bob"'}, "g.a"),
        ({"AccountingGroup": '"group_cms.prod.bob"'}, "group_cms.prod"),
        ({"AccountingGroup": '"group_cms.other"', "AcctGroupUser": '"other"'}, "group_cms"),
        ({"AccountingGroup": '"bob"'}, ""),
        ({"AccountingGroup": '"group_cms"'}, "group_cms"),
        ({"AcctGroup": "undefined"}, ""),
    ],
)
def test_accounting_group(lines: dict[str, str], group: str) -> None:
    assert post(lines)[0].group == group


def test_slot_falls_back() -> None:
    bare = {"Name": "undefined"}
    assert post(machine=bare)[1].slot == "w1.example"
    assert post({"RemoteHost": '"slot7@w1.example"'}, bare)[1].slot == "slot7@w1.example"
    assert post(machine={"Machine": "undefined"})[1].machine == "w1.example"
    assert refused_with(machine={"Name": "undefined", "Machine": "undefined"}).attribute == "Machine"


def test_numbers_of_the_job_id() -> None:
    assert post({"ClusterId": "7", "ProcId": "0"})[0].proc == 0
    assert post({"GlobalJobId": '"odd"'})[0].cluster == 0


def test_that_a_lease_is_over_is_said_for_dhcp_alone() -> None:
    ads = 'Owner = "a"\nGlobalJobId = "s#1.0#1"\n------\nMachine = "w"\nLarkLeaseOver = true\n'
    assert parse_post(f'{ads}AddressType = "dhcp"\n'.encode(), "text/plain")[1].lease_over
    for wrong in ('AddressType = "controller"\n', 'AddressType = "dhcp"\nLarkInnerAddressIPv4 = "10.64.0.1"\n'):
        with pytest.raises(AdError, match="LeaseOver"):
            parse_post(f"{ads}{wrong}".encode(), "text/plain")


def test_attributes_that_an_ad_does_not_have_are_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(ad: classad2.ClassAd, name: str, target: classad2.ClassAd) -> Any:
        asked.append(name.lower())
        return evaluate(ad, name, target)

    monkeypatch.setattr(ad_values, "evaluate", counted)
    job_ad, machine_ad = post({"acctgroup": '"cms"', "REQUESTBANDWIDTH": "5"}, {"larkVLAN": "7", "vlan": "8"})
    assert (job_ad.group, job_ad.bandwidth, machine_ad.vlan) == ("cms", 5.0, 7)
    there = {name.lower() for name in (*JOB, *MACHINE, "AcctGroup", "RequestBandwidth", "LarkVLAN", "VLAN")}
    assert set(asked) <= there
