"""What a SELECT of readings may hold: each row of its result depends on one row of one file, and on nothing else.

So order, threads, files and retries change no reading. DuckDB parses and plans the SELECT; its tree and its plan before
optimisation are compared with what is allowed. Which rows are left out may depend on a measured value by literal marks
alone (``<> '-9999'``, ``in (...)``): any other condition would make *which cells are missing* depend on the secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...schemas.settings.base import SettingsError

#: The columns of a result; a column of groups has the name that group_by gives.
NEEDED = ("series", "time", "value")

#: Steps of a plan before optimisation that map rows one by one.
_STEPS = {"PROJECTION", "FILTER", "UNNEST", "SEQ_SCAN", "CTE", "CTE_SCAN"}

#: What the other steps are in the words of SQL, and what to use instead.
_WORDS = {
    "WINDOW": "a window function; what depends on other rows is not read by a SELECT",
    "AGGREGATE": "a grouping or an aggregate; a SELECT of readings maps rows one by one",
    "DISTINCT": "DISTINCT; equal readings of a cell count once anyway",
    "ORDER_BY": "ORDER BY; the order of readings does not matter",
    "LIMIT": "LIMIT; all rows are read",
    "TOP_N": "ORDER BY with LIMIT; all rows are read",
    "UNION": "UNION; write one SELECT, and unpivot columns that hold values",
    "DUMMY_SCAN": "no table, or a table function; it reads from `files` alone",
    "SAMPLE": "SAMPLE; all rows are read",
}

#: Functions whose result is not a function of the row, though DuckDB calls some of them stable within a query.
_UNSTABLE = {
    "age", "current_catalog", "current_connection_id", "current_database", "current_date", "current_localtime",
    "current_localtimestamp", "current_query", "current_query_id", "current_role", "current_schema", "current_schemas",
    "current_setting", "current_time", "current_timestamp", "current_transaction_id", "current_user", "currval",
    "error", "gen_random_uuid", "get_current_time", "get_current_timestamp", "getenv", "getvariable", "in_search_path",
    "localtime", "localtimestamp", "nextval", "now", "random", "session_user", "setseed", "setval", "sleep_ms", "stats",
    "today", "transaction_timestamp", "txid_current", "user", "uuid", "uuidv4", "uuidv7", "vector_type", "write_log",
}  # fmt: skip

#: Comparisons with literals that may decide by a measured value which rows are read.
_MARKS = {"COMPARE_EQUAL", "COMPARE_NOTEQUAL", "COMPARE_IN", "COMPARE_NOT_IN", "COMPARE_DISTINCT_FROM",
          "COMPARE_NOT_DISTINCT_FROM", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"}  # fmt: skip
_LOGIC = {"CONJUNCTION_AND", "CONJUNCTION_OR", "OPERATOR_NOT"}


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every mapping of a parsed tree, from the outermost on."""
    left = [tree]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
            left += one.values()
        elif isinstance(one, list):
            left += one


def columns_in(tree: Any) -> set[str]:
    """The columns that an expression reads, in lower case and without the name of a table."""
    found = {one["column_names"][-1].lower() for one in nodes(tree) if one.get("class") == "COLUMN_REF"}
    return found | {name for one in nodes(tree) if one.get("class") == "STAR" for name in ("*",)}


def check_tree(tree: dict[str, Any]) -> None:
    """See that a parsed statement is one SELECT of the needed columns, with functions of the row alone.

    Raises:
        SettingsError: it is not; the message names the part.
    """
    statements = tree["statements"]
    if len(statements) != 1:
        raise _refused(f"holds {len(statements)} statements; write one SELECT")
    select = statements[0]["node"]
    if select["type"] != "SELECT_NODE":
        raise _refused(f"is {_WORDS['UNION']}")
    for one in nodes(select):
        name = one.get("function_name")
        if isinstance(name, str) and name.lower() in _UNSTABLE:
            raise _refused(f"calls {name}, whose result is not a function of the row; leave it out")
        if one.get("class") == "COLUMN_REF" and len(one["column_names"]) == 1 and one["column_names"][0] in _UNSTABLE:
            raise _refused(f"reads {one['column_names'][0]}, which is not a function of the row; leave it out")
        if one.get("class") == "WINDOW":
            raise _refused(f"has {_WORDS['WINDOW']}")
        if one.get("type") == "SUBQUERY" and one.get("class") == "SUBQUERY":
            raise _refused("has a subquery in an expression; a SELECT of readings maps rows one by one")
        if one.get("type") == "JOIN":
            raise _refused("has a join; it maps the rows of `files` one by one (a list is unnested in the select list)")
        if one.get("type") == "BASE_TABLE" and one["table_name"].lower() not in {"files", *_tables(select)}:
            raise _refused(f"reads the table {one['table_name']!r}; the rows are in `files`")
    _check_values(select)


def check_plan(plan: list[Any]) -> None:
    """See that a plan before optimisation maps rows one by one.

    Raises:
        SettingsError: it has another step, which the message names.
    """
    for one in nodes(plan):
        step = one.get("name", "")
        if step.endswith("ARROW_SCAN") or not step or step in _STEPS:
            continue
        raise _refused(f"has {_WORDS.get(step, f'a step that is not row by row ({step})')}")


def _tables(select: dict[str, Any]) -> set[str]:
    """The names that WITH gives."""
    found = set[str]()
    for one in nodes(select):
        entries = one.get("cte_map", {}).get("map", []) if isinstance(one.get("cte_map"), dict) else []
        found |= {str(entry["key"]).lower() for entry in entries}
    return found


def _check_values(select: dict[str, Any]) -> None:
    """See that no condition, series or time depends on a measured value but by literal marks."""
    made = _made(select, _without_conditions)
    measured = _reached({"value"}, made)
    named = _reached({"series", "time"}, _made(select, lambda item: item))
    for one in select["select_list"]:
        if _name_of(one) in {"series", "time"} and (read := columns_in(one) & measured):
            raise _refused(f"makes {_name_of(one)} of {min(read)!r}, which `value` is made of; use another column")
    # a column that only decides how a value is made, such as the meter's name, is public where it names the reading
    measured |= _reached({"value"}, _made(select, lambda item: item)) - named - {"filename", "line"}
    for one in nodes(select):
        conditions = [one.get("where_clause"), one.get("qualify"), one.get("filter")]
        conditions += [check["when_expr"] for check in one.get("case_checks", [])]
        for condition in filter(None, conditions):
            _check_condition(condition, measured)


def _check_condition(condition: dict[str, Any], measured: set[str]) -> None:
    if not columns_in(condition) & measured:
        return
    if condition["type"] in _LOGIC:
        for part in condition.get("children", []):
            _check_condition(part, measured)
        return
    parts = [condition.get("left"), condition.get("right"), *condition.get("children", [])]
    literal = [one for one in parts if one is not None and not columns_in(one) & measured]
    if condition["type"] not in _MARKS or any(columns_in(one) for one in literal):
        column = min(columns_in(condition) & measured)
        raise _refused(
            f"has a condition on {column!r}, which `value` is made of: which cells are missing would depend on what "
            "was measured. Allowed are comparisons with literal marks: = , <> , in (...)"
        )


def _made(select: dict[str, Any], part: Callable[[Any], Any]) -> dict[str, set[str]]:
    """The columns that each name of the statement is made of, by a part of its expression."""
    made: dict[str, set[str]] = {}
    for one in nodes(select):
        for item in one.get("select_list") or []:
            made.setdefault(_name_of(item), set()).update(columns_in(part(item)))
        for name in one.get("unpivot_names") or [] if "pivots" in one else []:
            made.setdefault(str(name).lower(), set()).update(columns_in(one["pivots"]))
    return made


def _without_conditions(item: Any) -> Any:
    """An expression without the conditions of its CASEs."""
    if isinstance(item, dict):
        return {name: _without_conditions(one) for name, one in item.items() if name != "when_expr"}
    return [_without_conditions(one) for one in item] if isinstance(item, list) else item


def _reached(names: set[str], made: dict[str, set[str]]) -> set[str]:
    """Names and the columns that they are made of, under every name on the way."""
    found, fresh = set[str](), names
    while fresh:
        found |= fresh
        fresh = {read for name in fresh for read in made.get(name, set())} - found
    return found


def _name_of(item: dict[str, Any]) -> str:
    alias = item.get("alias") or (item["column_names"][-1] if item.get("class") == "COLUMN_REF" else "")
    return str(alias).lower()


def _refused(why: str) -> SettingsError:
    return SettingsError(f"readings: the SELECT {why}")
