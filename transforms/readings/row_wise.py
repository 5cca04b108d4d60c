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

#: What a tree does not hold, by the class of an expression or the type of a table.
_REFUSED = {
    "WINDOW": f"has {_WORDS['WINDOW']}",
    "SUBQUERY": "has a subquery in an expression; a SELECT of readings maps rows one by one",
    "JOIN": "has a join; it maps the rows of `files` one by one (a list is unnested in the select list)",
    "TABLE_FUNCTION": "reads from a function; the rows are in `files`",
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
    return {one["column_names"][-1].lower() for one in nodes(tree) if one.get("class") == "COLUMN_REF"}


def _fields_in(tree: Any) -> set[str]:
    """The columns that an expression reads; of an object of JSON that it takes by a name only ``column.name``."""
    if isinstance(tree, list):
        return {name for one in tree for name in _fields_in(one)}
    if not isinstance(tree, dict):
        return set()
    if (field := _field(tree)) is not None:
        return {field}
    if tree.get("class") == "COLUMN_REF":  # of a table, or a field of a column
        return {".".join(tree["column_names"]).lower(), *columns_in(tree)}
    return {"*"} if tree.get("class") == "STAR" else _fields_in(list(tree.values()))


def _field(node: dict[str, Any]) -> str | None:
    if node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1:
        return node["column_names"][0].lower()
    if node.get("function_name") not in ("->", "->>") and node.get("class") != "LAMBDA":
        return None
    # `a -> 'b'` is parsed as a lambda
    inner, key = [one["expression"] for one in node.get("arguments", ())] or (node["lhs"], node["expr"])
    column, name = _field(inner), key.get("literal", {}).get("text")
    plain = column is not None and isinstance(name, str) and name[:1] not in ("$", "/", "")
    return f"{column}.{name.lower()}" if plain else None


def _within(name: str, other: str) -> bool:
    return name == other or name.startswith(f"{other}.")


def _shared(read: set[str], others: set[str]) -> set[str]:
    """What of the columns and fields that are read is among others, within one of them, or holds one."""
    return {name for name in read if any(_within(name, one) or _within(one, name) for one in others)}


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
        kind = one.get("class") or ("" if one.get("type") == "SUBQUERY" else one.get("type"))
        if isinstance(kind, str) and kind in _REFUSED:
            raise _refused(_REFUSED[kind])
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
        if _name_of(one) in {"series", "time"} and (read := _shared(_fields_in(one), measured)):
            raise _refused(f"makes {_name_of(one)} of {min(read)!r}, which `value` is made of; use another column")
    # a column that only decides how a value is made, such as the meter's name, is public where it names the reading
    measured |= _reached({"value"}, _made(select, lambda item: item)) - named - {"filename", "line"}
    for one in nodes(select):
        conditions = [one.get("where_clause"), one.get("qualify"), one.get("filter")]
        conditions += [check["when_expr"] for check in one.get("case_checks", [])]
        for condition in filter(None, conditions):
            _check_condition(condition, measured)


def _check_condition(condition: dict[str, Any], measured: set[str]) -> None:
    read = _shared(_fields_in(condition), measured)
    if not read:
        return
    if condition["type"] in _LOGIC:
        for part in condition.get("children", []):
            _check_condition(part, measured)
        return
    parts = [condition.get("left"), condition.get("right"), *condition.get("children", [])]
    literal = [one for one in parts if one is not None and not _shared(_fields_in(one), measured)]
    if condition["type"] not in _MARKS or any(map(_fields_in, literal)):
        raise _refused(
            f"has a condition on {min(read)!r}, which `value` is made of: which cells are missing would depend on what "
            "was measured. Allowed are comparisons with literal marks: = , <> , in (...)"
        )


def _made(select: dict[str, Any], part: Callable[[Any], Any]) -> dict[str, set[str]]:
    """The columns that each name of the statement is made of, by a part of its expression."""
    made: dict[str, set[str]] = {}
    for one in nodes(select):
        for item in one.get("select_list") or []:
            made.setdefault(_name_of(item), set()).update(_fields_in(part(item)))
        for name in one.get("unpivot_names") or [] if "pivots" in one else []:
            made.setdefault(str(name).lower(), set()).update(_fields_in(one["pivots"]))
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
        sources = (reads for name in fresh for key, reads in made.items() if _within(name, key))
        fresh = {read for reads in sources for read in reads} - found
    return found


def _name_of(item: dict[str, Any]) -> str:
    alias = item.get("alias") or (item["column_names"][-1] if item.get("class") == "COLUMN_REF" else "")
    return str(alias).lower()


def _refused(why: str) -> SettingsError:
    return SettingsError(f"readings: the SELECT {why}")
