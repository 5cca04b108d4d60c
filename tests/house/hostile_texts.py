"""Run as a program: expressions from standard input, each on texts that are made of its own parts.

The arguments are the length of the texts, and the seconds of processor time that an expression may take: those, and a
part of one. Standard input is a list of expressions, pickled, each with the functions of it that are called. The number
of each is printed when it is begun; the system ends the process when one takes longer.
"""

from __future__ import annotations

import pickle
import re
import resource
import sys
from collections.abc import Iterator, Sequence
from typing import Any

if sys.version_info >= (3, 11):
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_parse as parser

_ANY = "x1 -/.a"
_OF_CATEGORY = {
    "CATEGORY_DIGIT": "1",
    "CATEGORY_SPACE": " \n",
    "CATEGORY_WORD": "a1",
    "CATEGORY_NOT_DIGIT": "x",
    "CATEGORY_NOT_SPACE": "x",
    "CATEGORY_NOT_WORD": " -",
}


def fits(one: Any) -> str:  # noqa: PLR0911 - a kind of step each
    """Characters that one step of an expression takes."""
    kind, value = one
    name = str(kind)
    if name == "LITERAL":
        return chr(value)
    if name == "NOT_LITERAL":
        return "".join(each for each in _ANY if ord(each) != value)[:2]
    if name == "ANY":
        return "x/"
    if name == "CATEGORY":
        return _OF_CATEGORY[str(value)]
    if name == "RANGE":
        return chr(value[0])
    if name == "IN":
        if str(value[0][0]) == "NEGATE":
            refused = {each for inner in value[1:] for each in fits(inner)}
            return "".join(each for each in _ANY if each not in refused)[:2]
        return "".join(fits(inner)[:1] for inner in value)[:4]
    return ""


def match_of(steps: Any, groups: dict[int, str]) -> str:
    """A text that an expression takes, or nearly: each repetition twice at most, the first of each choice."""
    found = ""
    for kind, value in steps:
        name = str(kind)
        if name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
            least, most, inner = value
            found += match_of(inner, groups) * max(least, 1 if most else 0)
        elif name == "SUBPATTERN":
            groups[value[0] or 0] = match_of(value[3], groups)
            found += groups[value[0] or 0]
        elif name == "BRANCH":
            found += match_of(value[1][0], groups)
        elif name == "GROUPREF":
            found += groups.get(value, "")
        elif name == "ATOMIC_GROUP":
            found += match_of(value, groups)
        elif name not in {"AT", "ASSERT", "ASSERT_NOT"}:
            found += fits((kind, value))[:1]
    return found


def parts(steps: Any) -> Iterator[str]:
    """Characters that some step takes, matches of inner parts, and each choice."""
    for kind, value in steps:
        name = str(kind)
        if name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
            yield match_of(value[2], {})
            yield from parts(value[2])
        elif name == "SUBPATTERN":
            yield match_of(value[3], {})
            yield from parts(value[3])
        elif name == "BRANCH":
            for one in value[1]:
                yield match_of(one, {})
                yield from parts(one)
        elif name in {"ASSERT", "ASSERT_NOT"}:
            yield match_of(value[1], {})
            yield from parts(value[1])
        elif name == "ATOMIC_GROUP":
            yield from parts(value)
        elif name != "AT":
            yield from fits((kind, value))


def texts(expression: re.Pattern[Any], length: int) -> Iterator[str]:
    """Hostile texts, all of about a length."""
    source = expression.pattern
    steps = parser.parse(source, expression.flags & ~re.DEBUG)
    whole = match_of(steps, {})
    beginnings = [whole[:cut] for cut in range(1, min(len(whole), 40))]
    units = dict.fromkeys([whole, whole + "\n", *parts(steps), *beginnings, "\n", " ", " \n", "x", "x "])
    for unit in units:
        if not unit:
            continue
        many = unit * (length // len(unit))
        for before in ("", whole[: len(whole) // 2]):
            yield before + many
            yield before + many + "\n\0\n"


def run(expression: re.Pattern[Any], functions: Sequence[str], length: int) -> None:
    """Call functions of an expression on all its texts."""
    in_bytes = isinstance(expression.pattern, bytes)
    calls = {
        "match": expression.match,
        "fullmatch": expression.fullmatch,
        "search": expression.search,
        "finditer": lambda data: sum(1 for _ in expression.finditer(data)),
        "findall": expression.findall,
        "split": expression.split,
        "sub": lambda data: expression.sub(b"" if in_bytes else "", data),
    }
    chosen = [calls[name] for name in functions]
    for text in texts(expression, length):
        data = text.encode("utf-8", "replace") if in_bytes else text
        for call in chosen:
            call(data)


def main() -> None:
    """Try every expression within its bound."""
    length, bound_s = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number, (expression, functions) in enumerate(pickle.loads(sys.stdin.buffer.read())):
        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime) + 1 + bound_s
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        run(expression, functions, length)


if __name__ == "__main__":
    main()
