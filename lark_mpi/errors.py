"""The exceptions of this package, apart from the tree of lark_common, which is not installed where jobs run."""


class ReservationError(Exception):
    """A reservation that was not made, with the reason as a sentence; the same on every rank."""


class AwayError(ReservationError):
    """The worker service or its controller does not answer now."""


class NoRoomError(ReservationError):
    """A flow to ``job`` that was asked for at a ``rate``, of which the network has so much ``free`` for it, Mb/s."""

    def __init__(self, sentence: str, job: str, rate: float, free: float) -> None:
        super().__init__(sentence)
        self.job, self.rate, self.free = job, rate, free
