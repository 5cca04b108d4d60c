"""What names of columns and files tell: series, times, values, units, formats; and names in SQL and YAML."""

from __future__ import annotations

import json
import re
from typing import Any

from ...schemas.settings.connectors import SourceFormat

#: Names that are listed at most.
SHOWN = 10
#: Formats by the endings of files, and endings of packed files of text.
FORMATS: dict[str, SourceFormat] = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".csv", ".txt", ".tsv", ".dat"), "csv"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".json": "json",
    ".xml": "greenbutton",
    ".avro": "avro",
}
PACKED = (".gz", ".bz2", ".zip")
#: What may stand between columns, the usual first.
DELIMITERS = (",", ";", "\t", "|")


def _names(*parts: str) -> re.Pattern[str]:
    return re.compile("|".join(parts), re.IGNORECASE)


def _words(parts: str) -> str:
    """Whole words, also between underscores."""
    return rf"(?<![^\W_])({parts})(?![^\W_])"


#: Names of columns of times, and of those of the day.
TIME = _names(r"time|^ts?$|date|stamp|epoch|when|zeit|datum|^stunde$|horodat|^heure$|fecha|^hora$|tijd")
CLOCK = _names(r"^clock_$|^hour$|^time$|time_?of_?day|^(uhr)?zeit$|^stunde$|^heure$|^hora$|^tijd$")
#: Names of columns: of series; both ends of an interval; of values and labels.
SERIES = _names(
    r"household|meter|house|^(home|name|area|site|building)$|usage_?point|person|customer|series|device|sensor|wearer|subject|participant|patient|proband|^user|_?\bid$",
    r"_id$|^dataid$|^nmi$|^mp[ar]n$|^mpxn$|^lclid$|z(ä|ae)hler(?!stand)|z(ä|ae)hlpunkt|messstelle|kunde",
    _words(r"prm|pdl|ean\d{0,18}|(?-i:CUPS|cups)") + r"|aansluiting|compteur|contador",
)
#: A time that is, where there is another one, not that of the reading.
UPDATE = _names(r"update|upload|import_|insert|created|modified|deliver|received")
#: Names of times of UTC and of a local clock.
UTC, LOCAL = _names(r"(?<!o)utc|gmt"), _names(r"lo[ck]al")
BEGIN = _names(r"start|begin|from|onset|d[eé]but", _words("von|desde|inicio"))
END = _names(r"end|stop|until|finish|(^|_)to$", _words("bis|fin|hasta"))
#: A time that is, most likely, the end of the interval whose value stands beside it.
STAMPS_END = _names(_words("bis|ends?|ende|to|until|fin|tot"), "end_?time|zeit_?ende")
VALUE = _names(
    r"kwh|_wh$|^wh$|kw$|power|watt|load|energy|consum|value(?!r)|reading|(?<!ac)(?<!dis)count(?!y|ry)|verbrauch|[eé]nergie",
    r"leistung|wert|valeur|puissance|consommation|valor(?![ai])|verbruik",
    _words("m[3³]"),
)
#: Numbers of intervals within a day; and columns that tell what a row is, not whose it is.
PERIOD = _names(r"period|interval|settlement|^hh$|hour|stunde|heure|^uur$|^hora$|^he$|^slot$")
FLAG = _names(
    r"qual|type|kind|flag|status|state|direction|flow|register|channel|phase|method|reason|metodo|estimat|source|unit"
)
#: Columns that may say which rows count.
QUALITY = _names("qual|valid|status|flag")
#: Values of one series that are told apart by digits: phases, axes; and values that are electric, of whatever unit.
PARTS = _names(r"(?<![^\W_])(l|p|t|v|i|b|u|x|ch|axis|phase|channel|acc\w*|gyro\w*|temp\w*|volt\w*|current)$")
ELECTRIC = _names(
    r"power|load|energ|consum|usage|grid|solar|verbrauch|leistung|puissance|consommation|verbruik|reading_$"
)
#: Counters by their names.
TOTAL = _names(r"total|register|counter|stand(?![a-z])|index|cumul|odometer|import|export|energy")
#: Units of columns, by their names, the first that fits; of mW and MW the latter alone, as it is written.
_HOURS = r"s?[ _-]?(hour|hr|stunde|heure|uur|h(?![^\W_]))"


def _alone(unit: str) -> str:
    return rf"(?<![^\s_(\[])({unit})(?![^\s)\]])"


_UNITS = (
    (_names(r"(nano|micro|milli|giga|tera)[ _-]?watt|watts?[ _-]?se[ck]"), ""),
    (_names(r"kwh[ _]?(/|per)[ _]?h(our)?(?![^\W_])"), "kW"),
    (_names(rf"kwh|kilo[ _-]?watt{_HOURS}"), "kWh"),
    (_names(_alone("(?-i:MWh|MWH)"), rf"mega[ _-]?watt{_HOURS}"), "MWh"),
    (_names(_alone("wh"), rf"watt{_HOURS}"), "Wh"),
    (_names(_alone("(?-i:MW)"), r"mega[ _-]?watt"), "MW"),
    (_names(_alone("kw"), r"kilo[ _-]?watt"), "kW"),
    (_names(_alone("w"), "watt"), "W"),
    (_names(_alone("m[3³]")), "m3"),
)
#: What makes another unit of one before it, but for a reading's own interval, as in KWH/hh.
_PER = _names(
    r"[^\W_]*[\s_()\[\]-]*(/|(?<![^\W_])(per|pro|je|par)(?![^\W_]))(?![\s_]*(hh|half|interval|slot|\d+ ?min))"
)
#: Watts in a unit of power; of one of energy, those of it in a slot of a microsecond.
WATTS = {"MWh": 3_600 * 10**12, "kWh": 3_600 * 10**9, "Wh": 3_600 * 10**6, "MW": 10**6, "kW": 10**3, "W": 1}
ENERGY, POWER = ("MWh", "kWh", "Wh"), ("MW", "kW", "W")


def unit_of(name: str) -> str:
    """The unit that is in the name of a column: at its end, in brackets or between blanks; empty if there is none."""
    found = next(((unit, match) for pattern, unit in _UNITS if (match := pattern.search(name))), None)
    return "" if found is None or _PER.match(name, found[1].end()) else found[0]


def quoted(name: str) -> str:
    """A name of a column in SQL, in quotes but for those that `init` gives."""
    return name if re.fullmatch(r"[a-z]+_|filename", name) else '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def flow(value: Any) -> str:
    """A name, or a list of names, as YAML has it."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(flow, value)) + "]"
    is_plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", str(value)) and str(value).lower() not in _YAML
    return str(value) if is_plain else json.dumps(value, ensure_ascii=False)


_YAML = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
