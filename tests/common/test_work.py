"""No ad costs more than linear in its size, whatever stands in it: accepted or refused, in every syntax."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from lark_common.classads import text as ad_text
from lark_common.classads.ads import parse_post
from lark_common.classads.text import parse_ad
from lark_common.errors import AdError
from lark_controller.policies.facts import facts
from tests.fixtures.stored_ads import reparse
from tests.fixtures.work import assert_linear

JOB = 'Owner = "bob"\nGlobalJobId = "s1#12.3#1700000000"\n'
MACHINE = 'Machine = "w1.example"\nLarkInnerAddressIPv4 = "10.64.0.5"\n'
# Eight times the first is what one expression may have; eight times the second is a quarter of what a post may have.
EXPRESSION = 2_000
SIZE = 8_000
# What is read of every job, and more that a policy may ask for.
NAMES = frozenset({"requestbandwidth", "jobprio", "owner", "a0", "a1", "a2", "a3", "l", "e", "x"})


def lines(unit: Callable[[int], str]) -> Callable[[int], str]:
    """Job ads of so many characters, made of lines."""

    def make(size: int) -> str:
        return "".join(unit(number) for number in range(size // len(unit(9999))))

    return make


SHAPES: dict[str, Callable[[int], str]] = {
    "attributes": lines(lambda n: f"a{n} = {n}\n"),
    "the same attribute": lines(lambda _: "a = 1\n"),
    "references": lines(lambda n: f"a{n} = a{n + 1}\n"),
    "doubling": lines(lambda n: f"a{n} = a{n + 1} + a{n + 1}\n"),
    "doubling of texts": lines(lambda n: f"a{n} = strcat(a{n + 1}, a{n + 1})\n"),
    "many for each": lambda size: "RequestBandwidth = " + " + ".join(f"a{n}" for n in range(60)) + "\n"
    + lines(lambda n: f"a{n} = {'1 + ' * 500}1\n")(size),
    "all of one": lambda size: f'X = "{"x" * size}"\n' + "".join(f"a{n} = strcat(X, X)\n" for n in range(4)),
    "calls": lines(lambda n: f'a{n} = regexp("(a+)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!")\n'),
    "long names": lambda size: "RequestBandwidth = " + " + ".join(["a" * 200] * (size // 203)) + "\n",
    "one long name": lambda size: f"RequestBandwidth = {'a' * size}\n",
    "names and blanks": lambda size: f"RequestBandwidth = {'a   ' * (size // 4)}\n",
    "a long call": lambda size: f"RequestBandwidth = {'f' * (size // 2)}{' ' * (size // 2)}(1)\n",
    "quoted names": lambda size: "RequestBandwidth = " + "'a b' + " * (size // 8) + "1\n",
    "scopes": lambda size: f"RequestBandwidth = {'MY.' * (size // 3)}a\n",
    "a list": lambda size: f"L = {{ {'1,' * (size // 2)} 1 }}\nRequestBandwidth = L[0]\n",
    "deep lists": lines(lambda n: f"a{n} = {'{' * 60}1{'}' * 60}\n"),
    "deep records": lines(lambda n: f"a{n} = {'[a=' * 60}1{']' * 60}\n"),
    "deep parentheses": lines(lambda n: f"a{n} = {'(' * 60}1{')' * 60}\n"),
    "too deep": lambda size: f"a = {'(' * size}\n",
    "operators": lambda size: f"RequestBandwidth = {'-' * size}1\n",
    "questions": lambda size: f"RequestBandwidth = {'1?' * (size // 2)}1\n",
    "a string": lambda size: f'E = "{"a" * size}"\n',
    "backslashes": lambda size: f'E = "{chr(92) * size}"\n',
    "an open string": lambda size: 'E = "' + chr(92) + '"' * (size // 2) + "x\n",
    "quotes": lambda size: f"E = {chr(34) * size}\n",
    "single quotes": lambda size: f"E = {chr(39) * size}\n",
    "digits": lambda size: f"E = {'1' * size}\n",
    "long digits": lambda size: "E = {" + ",".join(["1" * 30 + "."] * (size // 32)) + "}\n",
    "a long line": lambda size: "a" * size + "\n",
    "a long attribute": lambda size: "a" * size + " = 1\n",
    "blanks": lambda size: " " * size + "x\n",
    "brackets": lambda size: "[{" * (size // 2) + "\n",
    "empty lines": lambda size: "\n" * size,
    "almost a separator": lambda size: ("------" + " " * 200 + "x\n") * (size // 208),
    "comments": lambda size: "E = " + "/*" * (size // 2) + "\n",
    "NUL": lambda size: "a" * size + "\0",
    "not UTF-8": lines(lambda n: f'a{n} = strcat("\\374", "a")\n'),
}  # fmt: skip


def forget() -> None:
    """Have every expression checked as if for the first time."""
    ad_text._remembered.cache_clear()


def read(body: tuple[bytes, str]) -> None:
    """A post as the controller handles it, with what a policy asks for."""
    forget()
    try:
        job, machine = parse_post(*body)
        facts(job, machine, (NAMES, NAMES))
        reparse(job.text, machine.text)
    except AdError:
        return


@pytest.mark.parametrize("size", [EXPRESSION, SIZE])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_ad_in_old_syntax_costs_what_it_is_long(shape: str, size: int) -> None:
    assert_linear(read, lambda size: (f"{JOB}{SHAPES[shape](size)}------\n{MACHINE}".encode(), "text/plain"), size)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_ad_in_new_syntax_costs_what_it_is_long(shape: str) -> None:
    def make(size: int) -> tuple[bytes, str]:
        return f"[ {(JOB + SHAPES[shape](size)).replace(chr(10), ';')} ]\n------\n{MACHINE}".encode(), "text/plain"

    assert_linear(read, make, SIZE)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_ad_in_json_costs_what_it_is_long(shape: str) -> None:
    def make(size: int) -> tuple[bytes, str]:
        job = {"Owner": "bob", "GlobalJobId": "g"}
        for line in SHAPES[shape](size).split("\n"):
            name, _, expression = line.partition(" = ")
            job[name] = f"/Expr({expression})/"
        return json.dumps({"job_ad": job, "machine_ad": MACHINE}).encode(), "application/json"

    assert_linear(read, make, SIZE)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_worker_s_own_reading_costs_what_the_ad_is_long(shape: str) -> None:
    def only_read(text: str) -> None:
        forget()
        try:
            parse_ad(text)
        except AdError:
            return

    assert_linear(only_read, lambda size: JOB + SHAPES[shape](size), SIZE)


JSON: dict[str, Callable[[int], dict[str, object]]] = {
    "members": lambda size: {f"a{n}": n for n in range(size // 12)},
    "a list": lambda size: {"a": [1] * (size // 3)},
    "lists": lambda size: {"a": [[1]] * (size // 5)},
    "records": lambda size: {"a": [{"b": 1}] * (size // 10)},
    "expressions": lambda size: {"a": ["/Expr(b + c)/"] * (size // 17)},
    "a string": lambda size: {"a": '\\"' * (size // 4)},
}


@pytest.mark.parametrize("shape", JSON)
def test_values_of_json_cost_what_they_are_long(shape: str) -> None:
    def make(size: int) -> tuple[bytes, str]:
        body = {"job_ad": {"Owner": "bob", "GlobalJobId": "g", **JSON[shape](size)}, "machine_ad": MACHINE}
        return json.dumps(body).encode(), "application/json"

    assert_linear(read, make, SIZE)
