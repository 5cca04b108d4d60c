"""Readings of messages by JMESPath: what ``readings.each`` finds are readings, of which the others say the parts.

Expressions begin at ``payload``, ``text`` (the payload as text), ``topic`` (its levels), ``header``, ``key`` and
``stamp``. ``each`` finds an object or an array of them, and ``of`` finds in each of these its own. ``series``,
``time``, ``value`` and ``units`` begin at the object as well: at its fields, at ``it`` and, beside ``of``, at ``each``
for the outer one. No field of a message hides what stands beside it. ``null`` and ``false`` are passed over, as is a
reading without a value where ``value`` ends in ``|| false``; an error costs its document alone.

Of ``where``, a part that names only what is beside the payload is asked before the payload is parsed, one that names
only the message before ``each``, and any other one of every reading.

A step over an array, and an argument of a function, is counted: a document has so many as it has bytes, times
:data:`STEPS_A_BYTE`. So no expression takes more than a time in proportion to the message.

>>> sorted(root_names(parsed("each", "topic[1] != 'x' && payload.a[?b == `1`].c")))
['payload', 'topic']
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import jmespath
import numpy as np
import yaml
from jmespath import exceptions, functions, parser, visitor

from ...schemas.readings import LENGTH, LONGEST_NAME, RANK, RejectReason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.readings import Constant, Readings
from ...schemas.settings.recipes import RECIPES
from .columns import Rows
from .messages import Messages, instant_of, last_header, text_of, topics, whole_text
from .parsing import Parsed, parse_json, parse_json_text
from .units import FIELDS, converted, plain

CASES = Path(__file__).with_name("expression_cases.yaml")

#: Where expressions begin; the first needs the payload parsed.
NAMES = ("payload", "text", "topic", "header", "key", "stamp")
_BESIDE = frozenset(NAMES[1:])

#: Counted steps of a document: some, and so many for each byte.
_STEPS, STEPS_A_BYTE = 10_000, 8
_CHARACTERS_A_STEP = 16

#: Expressions inside one another.
MOST_DEPTH = 40

#: When the samples of recipes came, 2026-01-05T12:00:00Z.
SAMPLED_US = 1_767_614_400_000_000

#: A node of an expression, as the library has it.
Node = Any
#: From payloads, and the numbers of their messages, to what they hold.
Parse = Callable[[Sequence[bytes], Sequence[int]], Parsed]

#: A longer part of a joined name is none: a message could repeat it for each of its readings.
LONGEST_PART = 200


def joined(parts: Sequence[Any]) -> Any:
    """The parts with ``/`` between them, null if one is missing; different parts never make one name.

    A slash inside one of several parts is ``~1`` and a tilde ``~0``, as in JSON Pointer (RFC 6901, section 3).
    """
    if any(one is None or one == "" for one in parts):
        return None
    if not all(type(one) is int or (type(one) is str and len(one) <= LONGEST_PART) for one in parts):
        return []
    texts = [str(one) for one in parts]
    if len(texts) > 1:
        texts = [one.replace("~", "~0").replace("/", "~1") for one in texts]
    return _short("/".join(texts))


class Functions(functions.Functions):
    """The functions of the language, and ours."""

    @functions.signature({"types": ["array"]})
    def _func_name(self, parts: Any) -> Any:
        """Texts and whole numbers as one name, with ``/`` between them; null if one of them is missing."""
        return joined(parts)

    @functions.signature({"types": ["array"]})
    def _func_elements(self, array: Any) -> Any:
        """The array; anything else is an error, where JMESPath would find nothing."""
        return array

    @functions.signature({"types": ["object"]})
    def _func_fields(self, given: Any) -> Any:
        """The fields of an object as an array of ``{name: ..., value: ...}``."""
        return [{"name": name, "value": value} for name, value in given.items()]

    @functions.signature({"types": []})
    def _func_json(self, text: Any) -> Any:
        """What a text of JSON holds; what is no text any more stays, and of a blank text nothing is."""
        if text is None or type(text) in {dict, list}:
            return text
        return parse_json_text(text) if text.strip() else None

    @functions.signature({"types": []})
    def _func_base64(self, text: Any) -> Any:
        """The text that a text of Base64 holds."""
        return None if text is None else base64.b64decode(text, validate=True).decode("utf-8")

    @functions.signature({"types": ["object"]})
    def _func_zip(self, arrays: Any) -> Any:
        """Arrays that run side by side, ``{a: [1, 2], b: [3, 4]}``, as an array of objects."""
        if not all(type(one) is list for one in arrays.values()):
            raise ValueError("no array")
        return [dict(zip(arrays, each, strict=True)) for each in zip(*arrays.values(), strict=True)]


class _TooManyError(ValueError):
    """An expression takes more steps than its message may."""


class _Interpreter(visitor.TreeInterpreter):
    """Evaluates expressions, whose steps it counts."""

    def __init__(self) -> None:
        super().__init__(jmespath.Options(custom_functions=Functions()))
        self.left = 0

    def visit_counted(self, node: Node, value: Any) -> Any:
        return self.count(self.visit(node["children"][0], value))

    def count(self, found: Any) -> Any:
        kind = type(found)
        if kind is list or kind is dict:
            self.left -= len(found) + 1
        elif kind is str:
            self.left -= len(found) // _CHARACTERS_A_STEP + 1
        if self.left < 0:
            raise _TooManyError
        return found

    def holds(self, node: Node, value: Any) -> bool:
        found = self.visit(node, value)
        return not (found is None or found is False or found in ("", [], {}))


def parsed(setting: str, text: str) -> Node:
    """The tree of an expression.

    Raises:
        SettingsError: it does not parse, or a function in it is none; it says where.
    """
    try:
        tree = parser.Parser().parse(text).parsed
    except exceptions.ParseError as error:
        at = min(int(error.lex_position or 0), len(text))
        near = text[at:].split(maxsplit=1)[:1]
        where = f"near {near[0][:20]!r}" if near else "at its end"
        raise SettingsError(f"readings.{setting} is no JMESPath at character {at + 1}, {where}") from None
    except (ValueError, RecursionError):
        raise SettingsError(f"readings.{setting} is no JMESPath: it is empty, or nested too deeply") from None
    return _checked(setting, tree, 0)


def _checked(setting: str, node: Node, depth: int) -> Node:
    """A tree whose functions are there, with the nodes that may take long counted."""
    if depth > MOST_DEPTH:
        raise SettingsError(f"readings.{setting} has more than {MOST_DEPTH} expressions inside one another")
    kind, given = node["type"], node["children"]
    if kind == "field" and node["value"] in _WORDS:
        return {"type": "literal", "value": _WORDS[node["value"]], "children": []}
    if kind in _CHAINS and kind != "pipe" and given[0]["type"] == "not_expression":
        raise SettingsError(f"readings.{setting}: ! is of the first name alone; write !(...) around what it is to deny")
    children = [_checked(setting, one, depth + 1) if isinstance(one, dict) else one for one in given]
    if kind == "function_expression":
        _check_call(setting, node["value"], len(children))
        return _counted({**node, "children": [one if one["type"] == "expref" else _counted(one) for one in children]})
    if kind in {"projection", "filter_projection", "value_projection", "flatten"}:
        made = {**node, "children": [_counted(children[0]), *children[1:]]}
        return _counted(made) if kind == "flatten" else made
    if kind == "comparator" and not any(one["type"] == "literal" for one in given):
        children = [_counted(one) for one in children]
    return {**node, "children": children}


#: Names that JMESPath looks for as fields, and everybody means as values.
_WORDS = {"null": None, "true": True, "false": False}


#: What ``|| false`` at the end of ``value`` makes, and no message can.
_PASSED = object()


def _counted(node: Node) -> Node:
    return {"type": "counted", "children": [node]}


def _check_call(setting: str, name: str, count: int) -> None:
    known = Functions.FUNCTION_TABLE
    if name not in known:
        raise SettingsError(f"readings.{setting}: {name}() is no function; there are {', '.join(sorted(known))}")
    taken = known[name]["signature"]
    more = bool(taken and taken[-1].get("variadic"))
    if count < len(taken) or (count > len(taken) and not more):
        raise SettingsError(f"readings.{setting}: {name}() takes {len(taken)} arguments, and {count} are given")


#: Nodes of which only the first child begins where they do.
_CHAINS = frozenset(
    {"subexpression", "index_expression", "pipe", "projection", "filter_projection", "value_projection", "flatten"}
)


def root_names(node: Node) -> set[str]:
    """The names that an expression begins at; ``@`` for the whole."""
    kind, children = node["type"], [one for one in node["children"] if isinstance(one, dict)]
    if kind == "field":
        return {node["value"]}
    if kind in {"current", "identity"}:
        return {"@"}
    if kind == "expref":
        return set()
    return set().union(*map(root_names, children[:1] if kind in _CHAINS else children))


def _all_names(node: Node) -> set[str]:
    inner = [_all_names(one) for one in node["children"] if isinstance(one, dict)]
    return {node["value"]}.union(*inner) if node["type"] == "field" else set().union(*inner)


def _within(node: Node) -> list[Node]:
    return [one for one in node["children"] if isinstance(one, dict)]


def _ends(node: Node) -> set[str]:
    """The fields that an expression ends at; ``@`` for the whole."""
    if node["type"] in {"field", "current", "identity"}:
        return {node.get("value", "@")}
    inner = _within(node)
    return set().union(*map(_ends, inner[-1:] if node["type"] in {"subexpression", "pipe"} else inner))


def _weighs(node: Node, value: set[str], *, functions: bool) -> bool:
    """Whether an expression asks for more of a value than whether it is there, or is one of some marks.

    Args:
        node: the expression.
        value: the fields that the value ends at.
        functions: whether a function of the value asks for more, as in a condition it does.
    """
    kind, inner = node["type"], _within(node)
    if kind == "comparator" or (kind == "function_expression" and functions):
        marked = not all(map(root_names, inner))
        asked = {"eq", "ne"} if kind == "comparator" else {"contains"}
        if set().union(*map(_ends, inner)) & value and node["value"] not in {"type", "not_null"}:
            return not (marked and node["value"] in asked)
    return any(_weighs(one, value, functions=functions) for one in inner)


def _conjuncts(node: Node) -> list[Node]:
    if node["type"] == "and_expression":
        return [part for one in node["children"] for part in _conjuncts(one)]
    return [node]


def _holders(node: Node) -> Iterator[Node]:
    """The objects that an expression goes through to its fields, each as an expression."""
    if node["type"] == "subexpression":
        first, *rest = node["children"]
        if len(rest) == 1 and rest[0]["type"] == "field":
            yield first
            yield from _holders(first)
    elif node["type"] == "or_expression":
        for one in node["children"]:
            yield from _holders(one)


class Expressions:
    """The expressions of the settings, which make rows of messages; it belongs to one worker.

    Args:
        readings: what the settings say.
        group: the attribute with the group; ``None`` without groups.

    Raises:
        SettingsError: an expression cannot be used.
    """

    def __init__(self, readings: Readings, group: str | None) -> None:
        said: dict[str, object] = {"series": readings.series, "time": readings.time, "value": readings.value}
        if readings.units is not None:
            said["units"] = readings.units
        if readings.length is not None and readings.length_us is None:
            said[LENGTH.name] = readings.length
        if readings.cell == "rank":
            said[RANK.name] = RANK.name
        if group is not None:
            said[f"attributes.{group}"] = readings.attributes.get(group)
        trees: dict[str, Node] = {
            name: {"type": "literal", "value": text.constant, "children": []}
            if isinstance(text, Constant)
            else parsed(name, str(text))
            for name, text in said.items()
        }
        last = trees["value"]["children"][-1:]
        if trees["value"]["type"] == "or_expression" and last[0]["type"] == "literal" and last[0]["value"] is False:
            last[0]["value"] = _PASSED
        self._names = list(said)
        self._parts: Node = {"type": "multi_select_list", "children": list(trees.values())}
        self._each = parsed("each", readings.each or "")
        self._of = None if readings.of is None else parsed("of", readings.of)
        where = _conjuncts(parsed("where", readings.where)) if isinstance(readings.where, str) else []
        self._first = [one for one in where if root_names(one) <= _BESIDE]
        self._message = [one for one in where if one not in self._first and root_names(one) <= {*NAMES}]
        self._row = [one for one in where if one not in self._first and one not in self._message]
        unknown = root_names(self._each) - {*NAMES, "@"}
        if unknown:
            raise SettingsError(
                f"readings.each begins at {min(unknown)!r}; it begins at one of {', '.join(NAMES)}: write for example "
                f"payload.{min(unknown)}"
            )
        every = [*trees.values(), *where, self._each, *([] if self._of is None else [self._of])]
        named = set[str]().union(*map(_all_names, every))
        # under `each: "@"` the message itself is the reading, whose payload need not be one
        whole = any("@" in root_names(one) for one in every if one is not self._each or one["type"] != "current")
        self.needs_payload = "payload" in named or whole
        self._beside = [name for name in NAMES[1:] if name in named or whole]
        self._has_units, self._has_group = readings.units is not None, group is not None
        self._wanted = readings.unit.strip()
        # fields of units that the settings look at themselves
        self._apart = _all_names(trees["series"]) & FIELDS
        chosen = [self._each, *where, *([] if self._of is None else [self._of])]
        ends = _ends(trees["value"])
        ends |= {"it", "@"} if ends & {"it", "@"} else set()
        asking = {"value": (trees["value"], False), "each": (self._each, True), "of": (self._of, True)}
        asking |= {"where": ({"type": "and_expression", "children": where}, True)}
        for name, (tree, is_condition) in asking.items():
            if tree is not None and _weighs(tree, ends, functions=is_condition):
                raise SettingsError(
                    f"readings.{name} asks how large a value is, and which readings there are would depend on that; "
                    "ask for marks alone, by == or != or contains() with a text"
                )
        self._chosen_by = set[str]().union(*map(_all_names, chosen)) & FIELDS - self._apart
        around = [one for name in ("value", "time") for one in _holders(trees[name])]
        self._holders = [one for one in around if not root_names(one) & {*NAMES}]
        self._interpreter = _Interpreter()

    def rows(self, messages: Messages, chosen: list[int], parse: Parse) -> list[Rows]:
        """The readings of messages."""
        beside = self._all_beside(messages, chosen)
        bad: dict[int, RejectReason] = {}
        kept = list[int]()
        for number in chosen:
            self._interpreter.left = _STEPS
            try:
                if all(self._interpreter.holds(one, beside[number]) for one in self._first):
                    kept.append(number)
            except Exception:  # noqa: BLE001 - whatever it raises is about this message alone
                bad[number] = RejectReason.MALFORMED_ROW
        if not self.needs_payload:
            return [self._made(messages, Parsed([None] * len(kept), kept, bad), beside)]
        payloads: list[Any] = [messages.payloads[number] for number in kept]
        return [self._made(messages, parse(payloads, kept), beside), *([Rows(bad=bad)] if bad else [])]

    def _all_beside(self, messages: Messages, chosen: list[int]) -> dict[int, dict[str, Any]]:
        """What stands beside the payload of each message, as far as it is asked for."""
        columns: dict[str, list[Any]] = {}
        if "topic" in self._beside:
            given = topics(messages, chosen)
            levels = {one: one.split("/" if "/" in one else ".") for one in set(given)}
            columns["topic"] = [levels[one] for one in given]
        if "text" in self._beside:
            columns["text"] = [whole_text(messages.payloads[one]) for one in chosen]
        if "stamp" in self._beside:
            columns["stamp"] = [instant_of(int(messages.stamps_us[one])) for one in chosen]
        if "key" in self._beside:
            columns["key"] = [text_of(messages.keys[one]) for one in chosen]
        if "header" in self._beside:
            columns["header"] = [
                {name: text_of(last_header(messages.headers[one], name)) for name, _ in messages.headers[one]}
                for one in chosen
            ]
        if not columns:
            return {one: {} for one in chosen}
        each = zip(*columns.values(), strict=True)
        return {one: dict(zip(columns, values, strict=True)) for one, values in zip(chosen, each, strict=True)}

    def _made(self, messages: Messages, documents: Parsed, beside: dict[int, dict[str, Any]]) -> Rows:
        bad, whose, parts = dict(documents.bad), list[int](), list[list[Any]]()
        interpreter, visit, tree = self._interpreter, self._interpreter.visit, self._parts
        payloads, value = messages.payloads, 2
        for number, document in zip(documents.message, documents.values, strict=True):
            interpreter.left = _STEPS + STEPS_A_BYTE * len(payloads[number] or b"")
            try:
                scopes = list(self._scopes({"payload": document, **beside[number]}))
                found = [one for one in (visit(tree, scope) for scope in scopes) if one[value] is not _PASSED]
                differ = not self._has_units and len(scopes) > 1 and self._differ(scopes)
            except Exception:  # noqa: BLE001 - whatever it raises is about this document alone, and may quote it
                bad.setdefault(number, RejectReason.MALFORMED_ROW)
                continue
            if differ:
                bad.setdefault(number, RejectReason.MIXED_UNITS)
                continue
            parts += found
            whose += [number] * len(found)
        return self._in_one_unit(whose, parts, bad)

    def _scopes(self, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What the expressions of each reading begin at."""
        interpreter = self._interpreter
        if not all(interpreter.holds(one, message) for one in self._message):
            return
        for each in _spread(interpreter.count(interpreter.visit(self._each, message))):
            outer = {**each, **message, "it": each} if type(each) is dict else {**message, "it": each}
            if self._of is None:
                inner: Iterator[dict[str, Any]] = iter((outer,))
            else:
                inner = (
                    {**outer, **(one if type(one) is dict else {}), **message, "each": each, "it": one}
                    for one in _spread(interpreter.count(interpreter.visit(self._of, outer)))
                )
            for scope in inner:
                if all(interpreter.holds(one, scope) for one in self._row):
                    yield scope

    def _in_one_unit(self, whose: list[int], parts: list[list[Any]], bad: dict[int, RejectReason]) -> Rows:
        if not parts:
            return Rows(bad=bad)
        columns: dict[str, Any] = dict(zip(self._names, zip(*parts, strict=True), strict=True))
        groups = [_short(one) for one in columns[self._names[-1]]] if self._has_group else None
        series, times, values = (columns[name] for name in ("series", "time", "value"))
        more = {one.name: columns[one.name] for one in (LENGTH, RANK) if one.name in columns}
        rows = Rows(whose, [_short(one) for one in series], times, values, groups, more, bad)
        if not self._has_units:
            return rows
        rows.values, other = converted(list(values), list(columns["units"]), self._wanted)
        for number in np.unique(np.array(whose)[other]).tolist():
            bad.setdefault(number, RejectReason.MIXED_UNITS)
        return rows.without(other)

    def _differ(self, scopes: list[dict[str, Any]]) -> bool:
        """Whether readings of a document say different units.

        By a field that is asked for in ``each``, ``of`` or ``where``, one that says nothing is of the unit of the
        others; one that ``series`` names may differ.
        """
        visit = self._interpreter.visit
        saying = ([one["it"], one.get("each"), *(visit(holder, one) for holder in self._holders)] for one in scopes)
        for objects in zip(*saying, strict=True):
            dicts = [one if type(one) is dict else {} for one in objects]
            for name in FIELDS.intersection(chain.from_iterable(dicts)) - self._apart:
                said = {plain(one.get(name)) for one in dicts}
                if len(said - {None} if name in self._chosen_by else said) > 1:
                    return True
        return False


def _spread(found: Any) -> Sequence[Any]:
    if found is None or found is False:
        return ()
    return found if type(found) is list else (found,)


def _short(name: Any) -> Any:
    """A name; what is too long for one is none, and not kept."""
    return [] if type(name) is str and len(name) > LONGEST_NAME else name


def cases() -> list[dict[str, Any]]:
    """The table of cases: expression, what it is given, and what it makes of it."""
    return yaml.safe_load(CASES.read_text(encoding="utf-8"))


def outcome_of(expression: str, given: Any) -> Any:
    """What an expression makes of a value; ``"an error"`` for an error."""
    interpreter = _Interpreter()
    interpreter.left = _STEPS
    try:
        return interpreter.visit(parsed("each", expression), given)
    except Exception:  # noqa: BLE001 - which one is of the library's version
        return "an error"


def samples_of(recipe: str | None) -> Messages:
    """The shipped messages of a recipe, at :data:`SAMPLED_US`; none without one."""
    given = [] if recipe is None else RECIPES[recipe].messages
    bodies = [one["payload"] if isinstance(one["payload"], str) else json.dumps(one["payload"]) for one in given]
    return Messages(
        payloads=[one.encode() for one in bodies],
        topics=[one.get("topic", "meters") for one in given],
        keys=[None] * len(given),
        headers=[tuple((name, value.encode()) for name, value in one.get("headers", {}).items()) for one in given],
        stamps_us=np.full(len(given), SAMPLED_US),
        positions=np.arange(len(given)),
    )


def digest(readings: Readings) -> str:
    """What the expressions of the settings make of the messages of their recipe, and the language of its cases.

    Another one means that the same text reads otherwise.
    """
    language = json.dumps([outcome_of(one["expression"], one["given"]) for one in cases()])
    found = hashlib.blake2b(language.encode(), digest_size=16)
    samples = samples_of(readings.recipe)
    for rows in Expressions(readings, None).rows(samples, list(range(len(samples))), parse_json):
        bad = sorted((number, reason.value) for number, reason in rows.bad.items())
        made = zip(rows.message, rows.series, rows.times, rows.values, strict=True)
        found.update(repr((list(made), bad)).encode())
    return found.hexdigest()
