"""Feeds one border: ``python -m tests.fuzz.engine BORDER FOUND SECONDS INPUTS SEED``, or ``… BORDER FILE`` once.

Guided by coverage (Atheris on libFuzzer), which has wheels for Linux on x86_64; elsewhere by blind mutation.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import random
import sys
import time
from pathlib import Path
from typing import NamedTuple, Protocol

CORPUS = Path(__file__).with_name("corpus")
# An input that takes this long, or this much memory, is a finding: borders answer within milliseconds.
INPUT_SECONDS = 5
MEMORY_MB = 1024


class Limit(NamedTuple):
    """The bounds of a run: in seconds and in inputs, 0 for no bound of that kind."""

    seconds: int
    inputs: int


class Border(Protocol):
    """A border's module."""

    DICTIONARY: tuple[bytes, ...]
    MAX_BYTES: int

    def run(self, data: bytes, /) -> None:
        """Give the border one input."""


def border(name: str) -> Border:
    """The module of a border."""
    module: Border = importlib.import_module(f"tests.fuzz.borders.{name}")
    return module


def with_coverage(name: str, found: Path, limit: Limit, seed: int) -> None:
    """Run libFuzzer, which ends the process: status 0, or its own where it has a finding."""
    import atheris

    with atheris.instrument_imports(include=["lark_common", "lark_controller", "lark_worker", "tests.fuzz.borders"]):
        subject = border(name)
    words = found / "dictionary"
    words.write_text("".join(f'"{quoted(word)}"\n' for word in subject.DICTIONARY))
    inputs = found / "inputs"
    inputs.mkdir(exist_ok=True)
    arguments = [
        name, str(inputs), str(CORPUS / name), f"-dict={words}", f"-max_len={subject.MAX_BYTES}",
        f"-max_total_time={limit.seconds}", f"-runs={limit.inputs or -1}",
        f"-seed={seed}", f"-timeout={INPUT_SECONDS}", f"-rss_limit_mb={MEMORY_MB}",
        f"-artifact_prefix={found}/", "-print_final_stats=1",
    ]  # fmt: skip
    atheris.Setup(arguments, subject.run)
    atheris.Fuzz()


def quoted(word: bytes) -> str:
    """A word as libFuzzer's dictionaries have it."""
    return "".join(f"\\x{byte:02x}" for byte in word)


def blind(name: str, found: Path, limit: Limit, seed: int) -> None:
    """Run on mutations of the corpus, the same for the same seed; the input at fault is left in ``found``."""
    subject = border(name)
    chance = random.Random(seed)
    seeds = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())] or [b""]
    end = time.monotonic() + (limit.seconds or math.inf)
    count = 0
    while count < (limit.inputs or math.inf) and time.monotonic() < end:
        data = mutation(chance, seeds, subject.DICTIONARY)[: subject.MAX_BYTES]
        started = time.process_time()
        try:
            subject.run(data)
            if time.process_time() - started > INPUT_SECONDS:
                raise TimeoutError(f"an input took more than {INPUT_SECONDS} s")
        except Exception:
            (found / "crash-blind").write_bytes(data)
            raise
        count += 1
    sys.stderr.write(f"stat::number_of_executed_units: {count}\n")


def mutation(chance: random.Random, seeds: list[bytes], words: tuple[bytes, ...]) -> bytes:
    """One of ``seeds``, changed in one to five places."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(1, 5)):
        start = chance.randint(0, len(data))
        end = min(len(data), start + chance.choice((0, 0, 1, 4, 30)))
        other = chance.choice(seeds)
        middle = chance.randint(0, len(other))
        data[start:end] = chance.choice(
            (
                chance.choice(words or (b"",)),
                chance.randbytes(chance.randint(0, 4)),
                other[middle : middle + chance.randint(0, 64)],
                bytes(data[start:end]) * chance.choice((0, 2, 50)),
            )
        )
    return bytes(data)


def main(arguments: list[str]) -> None:
    """Run, or repeat one input."""
    if len(arguments) == 2:
        border(arguments[0]).run(Path(arguments[1]).read_bytes())
        return
    name, found, limit = arguments[0], Path(arguments[1]), Limit(int(arguments[2]), int(arguments[3]))
    guided = importlib.util.find_spec("atheris") is not None
    (with_coverage if guided else blind)(name, found, limit, int(arguments[4]))


if __name__ == "__main__":
    main(sys.argv[1:])
