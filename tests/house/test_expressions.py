"""Every regular expression of the package takes time in proportion to its text, whatever the text is.

The expressions are found, not listed: those that a module holds, and those that stand in a call. Each is tried on texts
that are made of its own parts: one character or one match again and again, with an end that fits and one that does not.
Nothing is timed against a clock. A child process has a bound of processor time which is many times what a linear
expression takes, and is ended by the system when it is passed; one that grows with the square passes it by far. A push
tries an eighth of them on short texts, and only what passes the bound there, as a busy machine may make it do, on long
ones.
"""

from __future__ import annotations

import ast
import importlib
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ..tiers import TIER, some
from .tree import all_modules, module_name

#: Characters of a text, and seconds of processor time for all texts of one expression: what grows with the square takes
#: seconds for each text of 80,000. The slowest linear one here takes half of the bounds.
SHORT, LONG = (20_000, 1), (80_000, 9)

FUNCTIONS = {"match", "fullmatch", "search", "finditer", "findall", "sub", "split"}

#: Expressions that are made of a setting while a job runs, and so are no constants: (module, function).
MADE = {
    # the name of a project and of a topic, in the settings of the operator
    ("schemas.settings.connectors", "fullmatch"),
    # the name of an option of Kafka, escaped, in a text of its client
    ("transforms.kafka.client", "search"),
}


class Found(NamedTuple):
    """An expression, where it is, and the functions that are called of it; none where that is not seen."""

    place: str
    expression: re.Pattern[Any]
    functions: tuple[str, ...] = ()


def held(value: Any, place: str, depth: int = 3) -> Iterator[Found]:
    """The expressions in a value, also within containers."""
    if isinstance(value, re.Pattern):
        yield Found(place, value)
    elif depth and isinstance(value, dict):
        for key, one in value.items():
            yield from held(one, f"{place}[{key!r}]", depth - 1)
    elif depth and isinstance(value, (tuple, list, set, frozenset)):
        for number, one in enumerate(value):
            yield from held(one, f"{place}[{number}]", depth - 1)
    elif depth and isinstance(value, type) and value.__module__.startswith("quiltstream"):
        for name, one in vars(value).items():
            yield from held(one, f"{place}.{name}", depth - 1)


def modules() -> Iterator[tuple[str, Path]]:
    for path in all_modules():
        if "migrations" not in path.parts:  # which Alembic alone imports
            yield module_name(path).removeprefix("quiltstream."), path


def called(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(function, first argument) of calls such as ``re.sub(...)``, other than ``re.compile``, which gives a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "re" and node.func.attr in FUNCTIONS:
                yield node.func.attr, node.args[0]


@cache
def expressions() -> list[Found]:
    """All of them; importing every module takes too long for the collection of tests."""
    found: dict[re.Pattern[Any], Found] = {}
    for name, path in modules():
        module = importlib.import_module(f"quiltstream.{name}")
        text = path.read_text()
        for key, value in vars(module).items():
            for one in held(value, f"{name}.{key}"):
                used = tuple(sorted(set(re.findall(rf"\b{key}\.(\w+)\(", text)) & FUNCTIONS))
                found.setdefault(one.expression, Found(one.place, one.expression, used))
        for function, argument in called(ast.parse(text)):
            if isinstance(argument, ast.Constant) and isinstance(argument.value, (str, bytes)):
                expression = re.compile(argument.value)
                found.setdefault(expression, Found(f"{name}: re.{function}", expression, (function,)))
    return list(found.values())


#: What runs in the child: it knows nothing of the package.
CHILD = Path(__file__).with_name("hostile_texts.py")


def slow(expressions: Sequence[Found], length: int, bound_s: int) -> list[Found]:
    """The expressions that do not go through all their texts of a length within so much processor time."""
    found: list[Found] = []
    left = list(expressions)
    while left:
        asked = [(one.expression, one.functions or tuple(FUNCTIONS)) for one in left]
        done = subprocess.run(
            [sys.executable, "-I", str(CHILD), str(length), str(bound_s)],
            input=pickle.dumps(asked),
            check=False,
            capture_output=True,
        )
        begun = [int(word) for word in done.stdout.split()]
        if done.returncode == -signal.SIGXCPU:
            found.append(left[begun[-1]])
            left = left[begun[-1] + 1 :]
            continue
        assert done.returncode == 0, done.stderr.decode()
        assert len(begun) == len(left)
        return found
    return found


@pytest.mark.assures("payloads", "No regular expression takes more than linear time, whatever text comes")
def test_every_regular_expression_takes_linear_time():
    suspects = expressions() if TIER == "nightly" else slow(some(expressions(), 8), *SHORT)
    assert [one.place for one in slow(suspects, *LONG)] == []


def test_every_computed_regular_expression_is_listed_with_its_reason():
    made = {
        (name, function)
        for name, path in modules()
        for function, argument in called(ast.parse(path.read_text()))
        if not isinstance(argument, ast.Constant)
    }
    assert made == MADE


KNOWN_TO_GROW: dict[str, Callable[[], re.Pattern[Any]]] = {
    # what stood here for the addresses of Green Button: 240 kB took 28 s
    "greedy": lambda: re.compile(r"^(.*/UsagePoint/[^/]+)(?:/.*)?$"),
    "lazy": lambda: re.compile(rb"<a>(.*?)</a>"),
    "nested": lambda: re.compile(r"(?:\w+\s?)+;"),
    "blanks": lambda: re.compile(r"\s+$"),
}


def test_quadratic_regular_expressions_are_reported():
    right = Found("right", re.compile("a+"), ("match",))
    known = [Found(name, made()) for name, made in KNOWN_TO_GROW.items()]
    assert [one.place for one in slow([right, *known, right], SHORT[0], 0)] == list(KNOWN_TO_GROW)


def test_expressions_are_found_where_they_are():
    places = {one.place for one in expressions()}
    assert {"transforms.payloads.presets.dsmr._LINE", "transforms.payloads.parsing._VAST"} <= places
    assert any(place.startswith("pipelines.live.restarts._SYMPTOMS[") for place in places)
    assert "pipelines.commands.init: re.sub" in places
