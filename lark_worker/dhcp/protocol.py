"""The states of a DHCP client (RFC 2131, section 4.4, figure 5) as calculation: events in, messages and outcomes out.

No clock and no socket: every call is given the time, and :attr:`Client.wakes` is when to call again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address
from random import Random
from typing import Final

from lark_worker.dhcp.lease import Lease, granted
from lark_worker.dhcp.message import EVERYBODY, NOWHERE, Kind, Message, Option

# Pauses between transmissions in seconds. RFC 2131 begins at 4 s on a slow Ethernet and leaves the times to what is
# known of the network (section 4.1); a job that waits on a data centre's LAN is what is known here.
_REBOOT: Final = (0.2, 0.4, 0.8)
_REQUEST: Final = (0.5, 1.0, 2.0)
_DISCOVER_FIRST, _DISCOVER_LONGEST = 0.5, 64.0
# Pauses double so often at most: by far enough for the longest, while a power of two without a bound overflows.
_DOUBLED: Final = 8
# While a lease is renewed, half of what is left is waited for, and a minute at least (section 4.4.5).
_RENEW_LEAST: Final = 60.0
_WANTED: Final = bytes(
    (Option.MASK, Option.ROUTES, Option.ROUTERS, Option.NAMESERVERS, Option.DOMAIN, Option.MTU, Option.T1, Option.T2)
)
_MAX_SIZE: Final = (1472).to_bytes(2, "big")


class State(Enum):
    """The client's states; INIT and INIT-REBOOT are over as soon as they begin."""

    SELECTING = "selecting"
    REQUESTING = "requesting"
    REBOOTING = "rebooting"
    BOUND = "bound"
    RENEWING = "renewing"
    REBINDING = "rebinding"


@dataclass(frozen=True, slots=True)
class Send:
    """A message to send, to everybody or to one server, from the address that the client has."""

    message: Message
    source: IPv4Address
    target: IPv4Address


@dataclass(frozen=True, slots=True)
class Bound:
    """A lease: new, renewed, or the cached one taken up."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Lost:
    """The end of a lease: refused by its server, or expired (``reason``)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ignored:
    """An answer that grants no lease, such as one of seconds (``reason``)."""

    reason: str


Outcome = Send | Bound | Lost | Ignored


class Client:
    """One interface's client. Not thread-safe.

    ``cached`` is an earlier lease that has not expired: it is requested by INIT-REBOOT (section 3.2), or, ``held``,
    taken as the lease that the interface still has.
    """

    def __init__(self, mac: bytes, draw: Random, cached: Lease | None = None, *, held: bool = False) -> None:
        self.state = State.BOUND if held else State.SELECTING
        self.lease = cached if held else None
        self.wakes = 0.0
        self._mac = mac
        self._draw = draw
        self._cached = cached
        self._xid = 0
        self._began = 0.0
        self._sent_at = 0.0
        self._tries = 0
        self._refusals = 0
        self._offer: Message | None = None

    @property
    def waits_for_answers(self) -> bool:
        """True while an answer may come."""
        return self.state is not State.BOUND

    def start(self, now: float) -> list[Outcome]:
        """Request a lease, or continue the one that is held."""
        if self.lease is not None:
            return self._bound_at(now)
        if self._cached is not None and self._cached.expires > now:
            self._enter(State.REBOOTING, now)
            return self._transmit(now)
        return self._discover(now)

    def tick(self, now: float) -> list[Outcome]:
        """Act on the time: retransmit, give up, renew, expire."""
        if now < self.wakes:
            return []
        if self.lease is not None:
            return self._bound_at(now)
        pauses = {State.REBOOTING: _REBOOT, State.REQUESTING: _REQUEST}.get(self.state)
        if pauses is not None and self._tries >= len(pauses):
            # A server without a record of the client stays silent (section 4.3.2).
            return self._discover(now)
        return self._transmit(now)

    def receive(self, message: Message, now: float) -> list[Outcome]:
        """Handle a server's message; any but an answer to this client's last message changes nothing."""
        if message.xid != self._xid or message.mac != self._mac or not self.waits_for_answers:
            return []
        if self.state is State.SELECTING:
            if message.kind is not Kind.OFFER or len(message.options.get(Option.SERVER, b"")) != 4:
                return []
            self._offer = message
            # The same transaction goes on (section 4.4.1).
            self.state, self._tries = State.REQUESTING, 0
            return self._transmit(now)
        if message.kind is Kind.NAK:
            return self._refused(now)
        if message.kind is not Kind.ACK:
            return []
        try:
            lease = granted(message, self._sent_at)
        except ValueError as error:
            return [Ignored(str(error))]
        if lease.expires <= now:
            return []
        self._refusals = 0
        self.lease = self._cached = lease
        self.state, self._tries = State.BOUND, 0
        self.wakes = max(now, lease.renews)
        return [Bound(lease)]

    def take_cached(self, now: float) -> list[Outcome]:
        """Use the cached lease for the rest of its time where no server has answered, as section 3.2 allows."""
        if self.lease is not None or self._cached is None or self._cached.expires <= now:
            return []
        self.lease = self._cached
        self.state, self._tries = State.BOUND, 0
        return [Bound(self.lease), *self._bound_at(now)]

    def _bound_at(self, now: float) -> list[Outcome]:
        """Renew, rebind or expire a lease, by the time."""
        lease = self.lease
        assert lease is not None
        if now >= lease.expires:
            self.lease = self._cached = None
            return [Lost("the lease has expired"), *self._discover(now)]
        if now < lease.renews:
            self.state, self.wakes = State.BOUND, lease.renews
            return []
        state = State.RENEWING if now < lease.rebinds else State.REBINDING
        if state is not self.state:
            self._enter(state, now)
        return self._transmit(now)

    def _refused(self, now: float) -> list[Outcome]:
        had = self.lease is not None
        self.lease = self._cached = None
        self._refusals += 1
        outcomes = self._discover(now)
        if self._refusals > 1:
            # A server that offers and then refuses is not asked for ever.
            self.wakes = now + min(_DISCOVER_LONGEST, 2.0 ** min(self._refusals, _DOUBLED))
            outcomes = []
        return [Lost("the server refuses the lease"), *outcomes] if had else outcomes

    def _discover(self, now: float) -> list[Outcome]:
        self._enter(State.SELECTING, now)
        return self._transmit(now)

    def _enter(self, state: State, now: float) -> None:
        self.state, self._tries, self._began = state, 0, now
        self._offer = None
        self._xid = self._draw.getrandbits(32)

    def _transmit(self, now: float) -> list[Outcome]:
        """The message of this state; sets when to act next."""
        lease = self.lease
        self._tries += 1
        self._sent_at = now
        options: dict[int, bytes] = {
            Option.CLIENT: b"\x01" + self._mac,
            Option.MAX_SIZE: _MAX_SIZE,
            Option.WANTED: _WANTED,
        }
        kind, own, target = Kind.REQUEST, NOWHERE, EVERYBODY
        match self.state:
            case State.SELECTING:
                kind = Kind.DISCOVER
                if self._cached is not None:
                    options[Option.REQUESTED] = self._cached.address.packed
                pause = min(_DISCOVER_FIRST * 2 ** min(self._tries - 1, _DOUBLED), _DISCOVER_LONGEST)
            case State.REQUESTING:
                assert self._offer is not None
                options[Option.REQUESTED] = self._offer.yours.packed
                options[Option.SERVER] = self._offer.options[Option.SERVER]
                pause = _REQUEST[self._tries - 1]
            case State.REBOOTING:
                assert self._cached is not None
                options[Option.REQUESTED] = self._cached.address.packed
                pause = _REBOOT[self._tries - 1]
            case _:
                assert lease is not None
                own = lease.address
                renewing = self.state is State.RENEWING
                target = lease.server if renewing else EVERYBODY
                end = lease.rebinds if renewing else lease.expires
                left = math.inf if math.isinf(end) else (end - now) / 2
                pause = min(max(left, _RENEW_LEAST), end - now)
        if self.lease is None:
            # Clients that were started together do not stay together (section 4.1).
            pause *= self._draw.uniform(0.9, 1.1)
        self.wakes = now + pause
        message = Message(kind, self._xid, self._mac, own, seconds=int(now - self._began), options=options)
        return [Send(message, own, target)]
