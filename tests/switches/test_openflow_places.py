"""Places for connections, and those who give them up when there is none left."""

from __future__ import annotations

import random

import pytest

from lark_controller.switches.openflow.places import Peer, Places


def placed(held: dict[int, str]) -> Places[int]:
    places: Places[int] = Places()
    for place, host in held.items():
        places[place] = Peer.at(host)
    return places


def come(places: Places[int], hosts: list[str]) -> None:
    """Let newcomers take the places that are given up for them."""
    for host in hosts:
        peer = Peer.at(host)
        if (oldest := places.to_make_room(peer)) is not None:
            del places[oldest]
            places[max(places, default=0) + 1] = peer


def test_who_has_most_places_makes_room() -> None:
    def chosen(newcomer: str, *held: str) -> int | None:
        return placed(dict(enumerate(held))).to_make_room(Peer.at(newcomer))

    one, two, three = "192.0.2.1", "192.0.2.2", "192.0.2.3"
    assert chosen(three, one, two, two) == 1
    assert chosen(two, one, two, two) is None
    assert chosen(three, one, two) is None
    # One machine may have all addresses of an IPv6 /64.
    flood = [f"2001:db8:0:1::{number}" for number in range(1, 5)]
    assert chosen(one, *flood) == 0
    assert chosen("2001:db8:0:2::1", *flood) == 0
    assert chosen("2001:db8:0:1::9", *flood) is None
    # Of one network the host with most, so that a neighbour of a pool's workers takes no place from them.
    assert chosen("2001:db8:0:1::9", *flood, flood[2]) == 2
    assert chosen(flood[2], *flood, flood[2]) is None


POOL = [f"2001:db8:0:101::{number:x}" for number in range(1, 41)]


@pytest.mark.parametrize(
    "many",
    [
        [f"2001:db9:0:{number:x}::1" for number in range(256)],
        [f"2001:db9:0:{number:x}::1" for number in range(0, 65_536, 200)],
        # A /56 beside the pool's in one /48.
        [f"2001:db8:0:{number:x}::1" for number in range(0x200, 0x300)],
        [f"192.0.2.{number}" for number in range(256)],
    ],
)
def test_whoever_has_many_networks_takes_no_place_with_each(many: list[str]) -> None:
    places = placed(dict(enumerate(POOL)))
    come(places, many)
    assert sum(peer.host in POOL for peer in places.values()) == len(POOL) // 2
    # Those who are put out come again, and get no less.
    come(places, POOL + many)
    assert sum(peer.host in POOL for peer in places.values()) == len(POOL) // 2


@pytest.mark.parametrize("flood", ["2001:db8:0:101::", "2001:db8:0:1ff::", "2001:db8:0:200::", "2001:db9::"])
def test_one_network_with_most_places_keeps_no_neighbour_out(flood: str) -> None:
    places = placed({number: f"{flood}ffff:{number:x}" for number in range(100)})
    pool = [f"2001:db8:0:{number:x}::1" for number in range(0x110, 0x130)]
    come(places, pool)
    assert {peer.host for peer in places.values()} >= set(pool)


def test_places_are_counted_as_they_come_and_go() -> None:
    rng, held, places = random.Random(5), dict[int, str](), Places[int]()
    hosts = [*POOL[:5], "2001:db8:0:102::1", "2001:db8:1::1", "192.0.2.1", "192.0.2.2", "198.51.100.1", "?"]
    for step in range(3000):
        if held and rng.random() < (0.3 if step < 2000 else 0.8):
            gone = rng.choice(list(held))
            del held[gone], places[gone]
        else:
            # One that comes again is the youngest.
            place = rng.randrange(50)
            held.pop(place, None)
            held[place] = rng.choice(hosts)
            places[place] = Peer.at(held[place])
        assert dict(places) == {place: Peer.at(host) for place, host in held.items()}
        if held:
            newcomer = Peer.at(rng.choice(hosts))
            _check(held, newcomer, places.to_make_room(newcomer))
    for place in held:
        del places[place]
    assert not any((places._of_host, places._hosts, places._networks, places._within))


def _check(held: dict[int, str], newcomer: Peer, oldest: int | None) -> None:
    """Compare with a count of all."""
    peers = [Peer.at(host) for host in held.values()]
    networks = [peer.network for peer in peers]
    if oldest is None:
        alike = sum(newcomer.networks[0] in peer.networks for peer in peers)
        assert alike + 1 >= max(map(networks.count, networks))
        return
    giver = Peer.at(held[oldest])
    assert networks.count(giver.network) == max(map(networks.count, networks))
    assert next(place for place, host in held.items() if host == giver.host) == oldest
    if giver.network != newcomer.network:
        assert networks.count(newcomer.network) + 1 < networks.count(giver.network)
