"""The reference pages name every key and attribute, and their examples are valid."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from lark_common.classads import ads, evaluation
from lark_common.classads import text as classad_text
from lark_common.errors import PolicyError
from lark_controller.policies import (
    bandwidth,
    block,
    capacity,
    connectivity,
    external,
    file,
    group,
    predicate,
    scitags,
    switches,
    topology,
    transfers,
    wan,
)
from lark_controller.policies import slice as slices
from lark_controller.policies.model import InboundShares
from tests.install.pages import HOW_TO, blocks

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
POLICY = (REFERENCE / "policy.md").read_text(encoding="utf-8")
ADS = (REFERENCE / "ads.md").read_text(encoding="utf-8")

INDENTED = re.findall(r"((?:^    .*\n)+)", POLICY, re.MULTILINE)
EXAMPLES = [text for text in INDENTED if text.lstrip().startswith(("policies", "topology", "scitags"))]


# What the parts of a policy on the how-to pages name without having it, and the site's policy has.
SITE: Final = {
    "switches": {
        "core1": {
            "datapath": "00000000000000c1",
            "role": "core",
            "ports": {
                "lan": 1,
                "wan": {"port": 2, "next_hop": "02:00:00:00:00:01"},
                "wan-fast": {"port": 3, "next_hop": "02:00:00:00:00:02"},
            },
        }
    },
    "groups": {"group_cms": {}},
}


def parts(page: Path) -> list[str]:
    """The parts of a policy on a page."""
    heads = tuple(f"{key}:" for key in file.KEYS)
    found = (re.sub(r"(?m)^ *#.*\n", "", block) for block in blocks(page.read_text()))
    return [text for text in found if text.startswith(heads)]


@pytest.mark.parametrize(
    "key",
    sorted(
        {
            *file.KEYS,
            *file.NETWORK_KEYS,
            *file.EDGE_KEYS,
            *block.KEYS,
            *slices.KEYS,
            *wan.KEYS,
            *connectivity.KEYS,
            *group.KEYS,
        }
        | {*switches.KEYS, *switches.PORT_KEYS, *connectivity.REACHES, *InboundShares, *wan.ACTIONS, *file.KINDS}
        | {*topology.KEYS, *topology.LINK_KEYS, *topology.HOST_KEYS, *topology.RESERVES, *topology.REFUSED}
        | {*bandwidth.KEYS, *bandwidth.MODES, *transfers.KEYS}
        | {*scitags.KEYS, *scitags.SECTION_KEYS, *scitags.FLOWS}
        | {*external.KEYS, *external.RULE_KEYS, *external.REFUSED}
        | {*capacity.KEYS}
    ),
)
def test_every_key_is_described(key: str) -> None:
    assert re.search(rf"[`.{{ *]{key}[`.:,}} *]", POLICY)


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_are_valid(text: str) -> None:
    file.load("version: 1\n" + "".join(line[4:] for line in text.splitlines(keepends=True)))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 6


def test_parts_of_a_policy_on_the_how_to_pages_are_valid() -> None:
    found = [(page.name, text) for page in sorted(HOW_TO.glob("*.md")) for text in parts(page)]
    assert len(found) >= 12
    refused = {}
    for name, text in found:
        own = yaml.safe_load(text)
        try:
            file.load(yaml.safe_dump({"version": 1, **SITE, **own}, allow_unicode=True, sort_keys=False))
        except PolicyError as error:
            refused[name, text] = str(error)
    assert refused == {}


def test_ads_example_is_accepted() -> None:
    lines = ADS[ADS.index("## Example") :].splitlines()[2:]
    job, machine = ads.parse_post("\n".join(line[4:] for line in lines).encode(), "text/plain")
    assert (job.group, machine.datapath) == ("group_cms.prod", 0xE1)


def read_from_ads() -> set[str]:
    """The attributes that are looked up in the ads of a post, by the names in the code."""
    calls = [each for each in ast.walk(ast.parse(Path(ads.__file__).read_text())) if isinstance(each, ast.Call)]
    first = [each.args[0] for each in calls if isinstance(each.func, ast.Attribute) and each.args]
    names = {each.value for each in first if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return {name for name in names if re.fullmatch(r"[A-Z]\w+", name)}


def test_every_attribute_that_is_read_is_documented() -> None:
    named = {name for words in re.findall(r"`([^`]*)`", ADS) for name in re.findall(r"\w+", words)}
    read = read_from_ads()
    assert {"Owner", "VLAN", "RemoteHost"} <= read
    assert {name for name in read if not {name, f"Lark{name}"} & named} == set()


@pytest.mark.parametrize("name", sorted(classad_text.PRIVATE_ATTRIBUTES))
def test_what_is_left_out_of_ads_is_named(name: str) -> None:
    assert f"`{name}`" in ADS.lower()


def test_the_table_of_functions_says_what_is_accepted() -> None:
    rows = [line.split("|")[1:4] for line in ADS[ADS.index("## Functions") :].splitlines() if line.startswith("| `")]
    names = [(name.lower(), ad, policy) for cell, ad, policy in rows for name in re.findall(r"`(\w+)`", cell)]
    assert {name for name, ad, _ in names if ad.strip() == "yes"} == evaluation.FUNCTIONS
    assert {name for name, _, policy in names if policy.strip() == "yes"} == predicate.FUNCTIONS
    assert len({name for name, _, _ in names}) == len(names)
