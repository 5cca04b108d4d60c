"""``init`` on layouts of files: read right, left open by a question, or refused; the cases are in ``layouts.yaml``."""

from __future__ import annotations

import bz2
import csv
import datetime as dt
import gzip
import io
import itertools
import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ...depth import some
from ..jobs import call

EDGES = [250, 500, 1000, 2000]
TYPES = {
    "timestamp": pa.timestamp("us"), "date32": pa.date32(), "int64": pa.int64(), "double": pa.float64(),
    "decimal": pa.decimal128(9, 3), "text": pa.utf8(), "dictionary": pa.dictionary(pa.int32(), pa.utf8()),
}  # fmt: skip
Case = dict[str, Any]
Row = dict[str, Any]


def cases() -> Iterator[Any]:
    """Each case of the table, and of those with ``each`` one for each of its texts."""
    table = yaml.safe_load(Path(__file__).with_name("layouts.yaml").read_text(encoding="utf-8"))
    for one in itertools.chain.from_iterable(table.values()):
        for given in map(str, one.get("each", [""])):
            text, _, watts = given.partition("|")
            case = _with({name: part for name, part in one.items() if name != "each"}, text)
            yield pytest.param(case | ({"watts": float(watts)} if watts else {}), id=f"{one['name']} {text}".strip())


def _with(part: Any, text: str) -> Any:
    if isinstance(part, dict):
        return {name: _with(one, text) for name, one in part.items()}
    return part.replace("EACH", text) if isinstance(part, str) else part


def rows_of(case: Case) -> list[Row]:
    """The readings of a case: what its columns can hold."""
    base = {"start": "2024-03-01", "meters": 3, "count": 96, "step": 30, "late": 0} | case.get("base", {})
    step, zone, texts = dt.timedelta(minutes=float(base["step"])), case.get("clock", "UTC"), case.get("texts", [""])
    made, start, at = list[Row](), dt.datetime.fromisoformat(base["start"]), itertools.count()
    for k in range(base["meters"]):
        total = 1000.0 * (k + 1)
        for n in range(base["count"] + case.get("register", False)):
            v = round(0.25 + 0.5 * ((k + n) % 5), 2)
            late = dt.timedelta(
                seconds=float(base["late"]) * (n > 0) * (1 if float(base["late"]) < 0 else (n * 7 % 11) / 10)
            )
            t, number = start + n * step + late, next(at)
            local = t.replace(tzinfo=dt.UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
            row = {
                "m": f"Zähler {k + 1}", "k": k + 1, "n": n, "t": t, "e": t + step, "l": local, "h": t.hour + 1,
                "p": t.hour * 2 + t.minute // 30 + 1, "v": v, "c": str(v).replace(".", ","), "r": round(total, 3),
                "R": f"{total:.3f}".replace(".", ","), "x": texts[number % len(texts)], "part": "ab"[number % 2],
                "d": (t - dt.datetime(1899, 12, 30)) / dt.timedelta(days=1),
                "u": int(t.replace(tzinfo=dt.UTC).timestamp()),
            }  # fmt: skip
            total += v
            made += [row] if not case.get("twice") else [row | {"x": one} for one in texts * (3 - len(texts))]
    return made


def wide_of(case: Case, rows: list[Row]) -> list[dict[str, str]]:
    """The lines of a table with a column for each meter, or for each time."""
    names: dict[tuple[Any, ...], dict[str, str]] = defaultdict(dict)
    for row in rows:
        t, wide = row["t"], case["wide"]
        if wide == "meters":
            key, name = (t,), f"{case['names']}{row['k']}"
        else:
            key, name = (row["k"], None if case.get("by") else t.date()), f"HH{row['p']}"
            name = name if wide == "HH" else f"{row['e']:%-H:%M}" if wide == "end" else f"{t:{wide}}"
        line = names[key] or {one: text.format(**row) for one, text in case["columns"].items()}
        names[key] = line | {name: str(row["v"]).replace(".", case.get("decimal", "."))}
    return [line | case.get("beside", {}) for line in names.values()]


def written(case: Case, folder: Path) -> str:
    """Write the files of a case; the first one's name."""
    rows, files = rows_of(case), defaultdict[str, list[dict[str, str]]](list)
    name = case.get("file", "x.csv")
    if "wide" in case:
        files[name] = wide_of(case, rows)
    else:
        for row in rows:
            files[name.format(**row)].append({one: text.format(**row) for one, text in case["columns"].items()})
    for one, lines in files.items():
        (folder / one).parent.mkdir(parents=True, exist_ok=True)
        (folder / one).write_bytes(packed(one, encoded(case, one, lines)))
    return next(iter(files))


def encoded(case: Case, name: str, lines: list[dict[str, str]]) -> bytes:
    """Lines in the format that a file's name says."""
    if ".json" in name:
        texts = [json.dumps(line) for line in lines]
        if case.get("objects"):
            texts = [
                json.dumps({one: json.loads(f) if f[0] == "{" else f for one, f in line.items()}) for line in lines
            ]
        document = f"[{', '.join(texts)}]"
        document = f'{{"{case["nested"]}": {document}}}' if "nested" in case else document
        return (document if name.endswith(".json") else "\n".join(texts)).encode()
    buffer = io.BytesIO()
    if name.endswith(".parquet"):
        table = pa.Table.from_pylist(lines)
        for one, kind in case.get("types", {}).items():
            column = table[one].dictionary_encode() if kind == "dictionary" else table[one].cast(TYPES[kind])
            table = table.set_column(table.column_names.index(one), one, column)
        pq.write_table(table, buffer)
        return buffer.getvalue()
    if name.endswith(".avro"):
        *texts, last = lines[0]
        fields = [*({"name": one, "type": "string"} for one in texts), {"name": last, "type": ["null", "double"]}]
        rows = [line | {last: float(line[last])} for line in lines]
        fastavro.writer(buffer, {"type": "record", "name": "r", "fields": fields}, rows)
        return buffer.getvalue()
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=case.get("delimiter", ","), lineterminator="\n")
    if case.get("header", True) is True:
        writer.writerow(list(lines[0]))
    writer.writerows(line.values() for line in lines)
    above = [case["above"]] if "above" in case else []
    above += [case["header"]] if isinstance(case.get("header"), str) else []
    body = "\n".join([*above, text.getvalue() + case.get("below", "")])
    return body.encode(case.get("encoding", "utf-8"))


def packed(name: str, data: bytes) -> bytes:
    """Bytes packed as a file's name says."""
    if name.endswith(".zip"):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("inner/x.csv", data)
        return buffer.getvalue()
    return {".gz": gzip.compress, ".bz2": bz2.compress}.get(Path(name).suffix, bytes)(data)


def right_of(case: Case) -> dict[str, Any]:
    """What the generator wrote: series, readings, the first instant, and readings in each bin."""
    rows = rows_of(case)
    step = float({"step": 30, **case.get("base", {})}["step"])
    values = np.array([row["v"] for row in rows]) * case.get("watts", 60_000 / step)
    if case.get("register"):  # a rise for each two stands
        values = values[[row["n"] < 96 for row in rows]]
    found = np.bincount(np.searchsorted(EDGES, values, side="right"), minlength=len(EDGES) + 1)
    first = f"{min(row['t'] for row in rows):%Y-%m-%dT%H:%M:%SZ}"
    right = {"series": len({row["k"] for row in rows}), "readings": len(values), "first": first, "bins": found.tolist()}
    if "texts" in case or "below" in case:
        del right["bins"]
    if float({"late": 0, **case.get("base", {})}["late"]) > 0:
        del right["first"]
    return right | case.get("right", {})


@pytest.mark.parametrize("case", some(list(cases()), 4))
def test_a_layout_is_read_right_or_left_open(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = written(case, tmp_path)
    given = case.get("init", "FILE")
    words = [file if one == "FILE" else one for one in given.split()] if given.startswith("FILE") else [given]
    done = call("init", *words, "-o", "settings/settings.yaml")
    if "refused" in case:
        code, why = case["refused"]
        done.ended(code, why)
        return
    done.ended(0)
    path = tmp_path / "settings" / "settings.yaml"
    text = path.read_text(encoding="utf-8")
    asked = list(_open(text))
    if case.get("asks") == "ANY":
        assert asked
        return
    assert sorted(set(asked)) == sorted(case.get("asks", []))
    assert "states.edges" not in asked or not re.search(r"^  # edges: \[[^E]", text, re.MULTILINE), (
        "no value is in the file"
    )
    if asked and "answers" not in case:
        call("run", path).ended(2, "is ???, an open question")
        return
    for name, answer in case.get("answers", {}).items():
        text = re.sub(rf"^  {name}: .*$", f"  {name}: {answer}", text, flags=re.MULTILINE)
    settings = yaml.safe_load(text) | {"states": {"edges": EDGES, "unit": "W"}}
    settings.pop("bins", None)
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    found = json.loads(call("check", "--json", path).ended(0).out)
    found["bins"] = [round(share * found["readings"]) for share in found["bins"].values()]
    right = right_of(case)
    assert {name: found[name] for name in right} == right


def _open(text: str) -> Iterator[str]:
    """The keys that are open, with their sections."""
    section = ""
    for line in text.splitlines():
        if found := re.match(r"(\s*)(\w+):\s*(\?\?\?)?", line):
            section = section if found[1] else found[2]
            if found[3]:
                yield f"{section}.{found[2]}" if found[1] else found[2]


def test_no_two_cases_have_one_name() -> None:
    names = [one.id for one in cases()]
    assert len(set(names)) == len(names) > 150
