"""A cover of networks, compared with a look at each of them."""

from __future__ import annotations

from ipaddress import ip_network

from hypothesis import given
from hypothesis import strategies as st

from lark_common.runs import Network
from lark_controller.policies.cover import Cover

# Few addresses, so that networks hold each other, touch and repeat.
_FOUR = st.integers(26, 32).flatmap(
    lambda length: st.integers(0, (1 << length - 24) - 1).map(
        lambda place: ip_network(((10 << 24) + (place << 32 - length), length))
    )
)
_SIX = st.integers(124, 128).flatmap(
    lambda length: st.integers(0, (1 << length - 123) - 1).map(
        lambda place: ip_network(((0x20010DB8 << 96) + (place << 128 - length), length))
    )
)
_NETWORKS = st.lists(_FOUR | _SIX, max_size=12)


def lies_in(one: Network, other: Network) -> bool:
    first, last = int(one.network_address), int(one.broadcast_address)
    return one.version == other.version and (
        int(other.network_address) <= first and last <= int(other.broadcast_address)
    )


@given(_NETWORKS, _FOUR | _SIX)
def test_a_cover_is_its_networks(added: list[Network], asked: Network) -> None:
    cover = Cover()
    for network in added:
        cover.add(network)
    assert cover.networks == tuple(dict.fromkeys(added))
    assert cover.contains(asked) == any(lies_in(asked, each) for each in added)
    found = cover.overlapping(asked)
    sharing = [each for each in added if lies_in(asked, each) or lies_in(each, asked)]
    assert (found in sharing) if sharing else (found is None)


def test_the_widest_of_those_that_hold_a_network_is_named() -> None:
    cover = Cover()
    for text in ("10.0.0.64/26", "10.0.0.0/24", "10.0.0.128/25", "2001:db8::/64"):
        cover.add(ip_network(text))
    assert cover.overlapping(ip_network("10.0.0.70")) == ip_network("10.0.0.0/24")
    assert cover.overlapping(ip_network("0.0.0.0/0")) == ip_network("10.0.0.0/24")
    assert cover.overlapping(ip_network("::/0")) == ip_network("2001:db8::/64")
    assert cover.overlapping(ip_network("10.0.1.0/24")) is None
    # The numbers of an IPv4 network are those of an IPv6 one far below.
    assert cover.overlapping(ip_network("::10.0.0.0/120")) is None


def test_the_first_of_several_within_a_network_is_named() -> None:
    cover = Cover()
    for text in ("10.0.0.192/26", "10.0.0.0/32", "10.0.0.255/32"):
        cover.add(ip_network(text))
    assert cover.overlapping(ip_network("10.0.0.0/24")) == ip_network("10.0.0.0/32")
    assert cover.overlapping(ip_network("10.0.0.128/25")) == ip_network("10.0.0.192/26")
    assert cover.networks == tuple(map(ip_network, ("10.0.0.192/26", "10.0.0.0/32", "10.0.0.255/32")))
