"""A communicating application: in every round each node sends as much to every other and waits for what they send.

    python3 -m experiments.exchange RANK --hosts A,B,C,D [--port P] [--bytes N] [--rounds R] [--compute SECONDS]

One process a node; all have the same list of hosts, and RANK is the place of its own in it. The traffic is that of
MPI's all-to-all: N-1 flows out of every node and N-1 into it, each a TCP connection of its own. One round more comes
before and does not count. It prints ``{"seconds": …}``, the time from the first counted round's begin to the last one's
end. Standard library only, since it runs where the project is not installed.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass

CONNECT_SECONDS = 30
CHUNK = 65536
# Payload of one round travels as zeros; nothing on the way compresses.
ZEROS = bytes(CHUNK)


class ExchangeError(Exception):
    """A node cannot be reached, or left early."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Connections with every other node, by rank: ``out`` for what is sent to it, ``back`` for what comes from it.

    One connection for both would have each flow's acknowledgements wait behind the other's data, which costs a fourth
    of the rate (L. Zhang, S. Shenker, D. D. Clark, "Observations on the Dynamics of a Congestion Control Algorithm: The
    Effects of Two-Way Traffic", 1991), and measures TCP, not what was reserved.
    """

    out: dict[int, socket.socket]
    back: dict[int, socket.socket]

    def close(self) -> None:
        """Close all of them."""
        for each in (*self.out.values(), *self.back.values()):
            each.close()


def connect(rank: int, hosts: list[str], port: int) -> Peers:
    """Two connections with every other node; each calls for what it sends. Raises ExchangeError after 30 s."""
    deadline = time.monotonic() + CONNECT_SECONDS
    family = socket.AF_INET6 if ":" in hosts[rank] else socket.AF_INET
    peers = Peers({}, {})
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((hosts[rank], port))
        listener.listen(len(hosts))
        for other in range(len(hosts)):
            if other != rank:
                peers.out[other] = _call(rank, (hosts[other], port), deadline)
        for _ in range(len(hosts) - 1):
            listener.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                peer, _address = listener.accept()
                peer.settimeout(max(0.1, deadline - time.monotonic()))
                said = peer.recv(1)
            except TimeoutError:
                raise ExchangeError(f"rank {rank}: {CONNECT_SECONDS} s passed before every node had called") from None
            if not said:
                raise ExchangeError(f"rank {rank}: a node left before it said its rank")
            peers.back[said[0]] = peer
    for peer in (*peers.out.values(), *peers.back.values()):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setblocking(False)
    return peers


def _call(rank: int, where: tuple[str, int], deadline: float) -> socket.socket:
    while True:
        try:
            peer = socket.create_connection(where, timeout=2)
        except OSError as error:
            if time.monotonic() > deadline:
                raise ExchangeError(f"rank {rank}: {where[0]} port {where[1]} does not answer: {error}") from None
            time.sleep(0.05)
        else:
            peer.sendall(bytes([rank]))
            return peer


def play(peers: Peers, size: int) -> None:
    """One round: ``size`` bytes to every node and from every node. Raises ExchangeError where one has left."""
    to_send = dict.fromkeys(peers.out, size)
    to_read = dict.fromkeys(peers.back, size)
    with selectors.DefaultSelector() as selector:
        for rank, peer in peers.out.items():
            selector.register(peer, selectors.EVENT_WRITE, rank)
        for rank, peer in peers.back.items():
            selector.register(peer, selectors.EVENT_READ, rank)
        while selector.get_map():
            for key, ready in selector.select():
                rank = key.data
                if ready & selectors.EVENT_WRITE:
                    to_send[rank] -= peers.out[rank].send(ZEROS[: min(CHUNK, to_send[rank])])
                    done = not to_send[rank]
                else:
                    got = len(peers.back[rank].recv(min(CHUNK, to_read[rank])))
                    if not got:
                        raise ExchangeError(f"rank {rank} has left")
                    to_read[rank] -= got
                    done = not to_read[rank]
                if done:
                    selector.unregister(key.fileobj)


def run(rank: int, hosts: list[str], port: int, size: int, rounds: int, compute: float) -> float:
    """Play all rounds with ``compute`` seconds of rest after each; answers the seconds that they took."""
    peers = connect(rank, hosts, port)
    try:
        # One round is free: connections have found their rates. Then one of a byte, so that nobody
        # begins before everybody is there.
        play(peers, size)
        play(peers, 1)
        began = time.monotonic()
        for _ in range(rounds):
            play(peers, size)
            if compute:
                time.sleep(compute)
        return time.monotonic() - began
    finally:
        peers.close()


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(
        prog="exchange", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("rank", type=int)
    parser.add_argument("--hosts", required=True, help="comma-separated addresses, one a node")
    parser.add_argument("--port", type=int, default=7700)
    parser.add_argument("--bytes", type=int, default=1_000_000, help="to each other node in each round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--compute", type=float, default=0.0, help="seconds of rest after each round")
    given = parser.parse_args()
    try:
        seconds = run(given.rank, given.hosts.split(","), given.port, given.bytes, given.rounds, given.compute)
    except (ExchangeError, OSError) as error:
        print(f"exchange: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"rank": given.rank, "seconds": round(seconds, 4)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
