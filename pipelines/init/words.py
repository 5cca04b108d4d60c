"""What names of columns and files tell: series, times, values, units, formats."""

from __future__ import annotations

import re
import zipfile
from contextlib import suppress
from pathlib import Path

from ...schemas.files import is_file
from ...schemas.settings.connectors import SourceFormat
from ..errors import CommandError

#: Formats by the endings of files, and endings of packed files of text.
FORMATS: dict[str, SourceFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".txt": "csv",
    ".tsv": "csv",
    ".dat": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".xml": "greenbutton",
    ".avro": "avro",
}
PACKED = (".gz", ".bz2", ".zip")
#: What may stand between columns, the usual first.
DELIMITERS = (",", ";", "\t", "|")
#: Names of columns of times, and of those of the day.
TIME = re.compile(
    r"time|^ts$|date|stamp|epoch|when|zeit|datum|^stunde$|horodat|^heure$|fecha|^hora$|tijd", re.IGNORECASE
)
HOUR = re.compile(r"^hour$|^time$|time_?of_?day|^(uhr)?zeit$|^stunde$|^heure$|^hora$|^tijd$", re.IGNORECASE)
#: Names of columns: of series; both ends of an interval; of values and labels.
SERIES = re.compile(
    r"household|meter|house|^home$|person|customer|series|device|sensor|wearer|subject|participant|patient|^user|^id$|_id$|^dataid$|^nmi$|^mp[ar]n$|^mpxn$"
    r"|^lclid$|z(ä|ae)hler(?!stand)|z(ä|ae)hlpunkt|messstelle|kunde"
    r"|(?<![^\W_])(prm|pdl|ean\d{0,18}|(?-i:CUPS))(?![^\W_])|aansluiting|compteur|contador",
    re.IGNORECASE,
)
#: A time that is, where there is another one, not that of the reading.
UPDATE = re.compile(r"update|upload|import_|insert|created|modified|deliver|received", re.IGNORECASE)
#: Names of times of UTC and of a local clock.
UTC, LOCAL = re.compile(r"(?<!o)utc|gmt", re.IGNORECASE), re.compile(r"lo[ck]al", re.IGNORECASE)
BEGIN = re.compile(r"start|begin|from|onset|d[eé]but|(?<![^\W_])(von|desde|inicio)(?![^\W_])", re.IGNORECASE)
END = re.compile(r"end|stop|until|finish|(^|_)to$|(?<![^\W_])(bis|fin|hasta)(?![^\W_])", re.IGNORECASE)
#: A time that is, most likely, the end of the interval whose value stands beside it.
STAMPS_END = re.compile(r"(?<![^\W_])(bis|ends?|ende|to|until|fin|tot)(?![^\W_])|end_?time|zeit_?ende", re.IGNORECASE)
VALUE = re.compile(
    r"kwh|_wh$|^wh$|kw$|power|watt|load|energy|consum|value(?!r)|reading|(?<!ac)(?<!dis)count(?!y|ry)"
    r"|(?<![^\W_])m[3³](?![^\W_])|verbrauch|[eé]nergie|leistung|wert|valeur|puissance|consommation|valor(?![ai])|verbruik",
    re.IGNORECASE,
)
#: Numbers of intervals within a day; and columns that tell what a row is, not whose it is.
PERIOD = re.compile(r"period|interval|settlement|^hh$|hour|stunde|heure|^uur$|^hora$|^he$|^slot$", re.IGNORECASE)
FLAG = re.compile(
    r"qual|type|kind|flag|status|state|direction|flow|register|channel|phase|method|reason|metodo|estimat|source|unit",
    re.IGNORECASE,
)
#: Values of one series that are told apart by digits: phases, axes; and values that are electric, of whatever unit.
PARTS = re.compile(
    r"(?<![^\W_])(l|p|t|v|i|b|u|x|ch|axis|phase|channel|acc\w*|gyro\w*|temp\w*|volt\w*|current)$", re.IGNORECASE
)
ELECTRIC = re.compile(
    r"power|load|energ|consum|usage|grid|solar|verbrauch|leistung|puissance|consommation|verbruik|reading_$",
    re.IGNORECASE,
)
#: Counters by their names.
TOTAL = re.compile(r"total|register|counter|stand(?![a-z])|index|cumul|odometer|import|export|energy", re.IGNORECASE)
#: Units of columns, by their names, the first that fits; of mW and MW the latter alone, as it is written.
_HOURS = r"s?[ _-]?(hour|hr|stunde|heure|uur|h(?![^\W_]))"
_UNITS = tuple(
    (re.compile(name, re.IGNORECASE), unit)
    for name, unit in (
        (r"(nano|micro|milli|giga|tera)[ _-]?watt|watts?[ _-]?se[ck]", ""),
        (r"kwh[ _]?(/|per)[ _]?h(our)?(?![^\W_])", "kW"),
        (rf"kwh|kilo[ _-]?watt{_HOURS}", "kWh"),
        (rf"(?<![^\s_(\[])(?-i:MWh|MWH)(?![^\s)\]])|mega[ _-]?watt{_HOURS}", "MWh"),
        (rf"(?<![^\s_(\[])wh(?![^\s)\]])|watt{_HOURS}", "Wh"),
        (r"(?<![^\s_(\[])(?-i:MW)(?![^\s)\]])|mega[ _-]?watt", "MW"),
        (r"(?<![^\s_(\[])kw(?![^\s)\]])|kilo[ _-]?watt", "kW"),
        (r"(?<![^\s_(\[])w(?![^\s)\]])|watt", "W"),
        (r"(?<![^\s_(\[])m[3³](?![^\s)\]])", "m3"),
    )
)
#: What makes another unit of one before it, but for a reading's own interval, as in KWH/hh.
_PER = re.compile(
    r"[^\W_]*[\s_()\[\]-]*(/|(?<![^\W_])(per|pro|je|par)(?![^\W_]))(?![\s_]*(hh|half|interval|slot|\d+ ?min))",
    re.IGNORECASE,
)
POWER = frozenset({"W", "kW", "MW"})


def format_of(path: Path) -> SourceFormat:
    """The format that a file's name says it has; of a ``.zip`` without another ending that of the file in it."""
    unpacked = without_packing(path)
    if path.suffix.lower() == ".zip" and unpacked.suffix.lower() not in FORMATS and is_file(path):
        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            unpacked = Path(next((member.filename for member in archive.infolist() if not member.is_dir()), ""))
    file_format = FORMATS.get(unpacked.suffix.lower())
    if file_format is None:
        raise CommandError(
            f"{path}: its name does not say what it is; name it with one of the endings {', '.join(FORMATS)}, and "
            f"behind it, where text is packed, one of {', '.join(PACKED)}"
        )
    return file_format


def without_packing(path: Path) -> Path:
    """The name of a file without the ending of its packing."""
    return Path(path.stem) if path.suffix.lower() in PACKED else path


def unit_of(name: str) -> str:
    """The unit that is in the name of a column: at its end, in brackets or between blanks; empty if there is none."""
    found = next(((unit, match) for pattern, unit in _UNITS if (match := pattern.search(name))), None)
    return "" if found is None or _PER.match(name, found[1].end()) else found[0]


def is_other_clock(name: str, zone: str) -> bool:
    """Whether the name of a column of times contradicts the zone that they are read by."""
    return (LOCAL if zone == "UTC" else UTC).search(name) is not None
