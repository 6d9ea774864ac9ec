"""The kernel's counters of a job's interface, read at its outer end, and the rates between two readings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_DEVICES: Final = Path("/sys/class/net")
MEGA: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Counted:
    """Counters since the interface was made for the job: ``in`` is received by the job. Bytes of L2 frames."""

    bytes_in: int = 0
    bytes_out: int = 0
    packets_in: int = 0
    packets_out: int = 0


def read(port: str) -> Counted | None:
    """The counters of a job, by the device outside of its namespace; None where there is none any more."""
    folder = _DEVICES / port / "statistics"
    try:
        # The outer end sends what the job receives.
        return Counted(
            *(int((folder / name).read_bytes()) for name in ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets"))
        )
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class JobUse:
    """A job's use: ``counted`` at ``at``, since ``began`` (seconds of a clock that only goes on).

    Rates are Mb/s between the last two readings, ``peak`` the highest of them in either direction.
    """

    began: float
    at: float
    counted: Counted = Counted()
    rate_in: float = 0.0
    rate_out: float = 0.0
    peak: float = 0.0

    def reading(self, counted: Counted, at: float, least: float = 1.0) -> JobUse:
        """Add a reading. Less than ``least`` seconds after the last, rates are over the job's whole time."""
        since, before = (self.at, self.counted) if at - self.at >= least else (self.began, Counted())
        seconds = max(at - since, least)
        rate_in = (counted.bytes_in - before.bytes_in) * 8 / MEGA / seconds
        rate_out = (counted.bytes_out - before.bytes_out) * 8 / MEGA / seconds
        return JobUse(self.began, at, counted, rate_in, rate_out, max(self.peak, rate_in, rate_out))

    @property
    def average(self) -> float:
        """Mb/s over the whole time, in the direction that had more."""
        counted = max(self.counted.bytes_in, self.counted.bytes_out)
        return counted * 8 / MEGA / max(self.at - self.began, 1.0)
