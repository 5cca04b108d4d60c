"""Options of runners under which the promise would not hold, or data would be logged: refused before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from ..schemas.settings import SettingsError

#: What is looked for in the names and values of options, and why it is refused.
_REFUSED = {
    "at_least_once": (
        "an at-least-once mode may hand a sum over twice, so that a changed reading moves a histogram by more than its "
        "noise was calibrated for; leave it out: exactly-once is the default"
    ),
    "hot_key_logging": (
        "the runner would write keys into its log as they are, where more people read them than the rows are meant "
        "for; leave it out"
    ),
}


def check_modes(options: PipelineOptions) -> None:
    """Refuse at-least-once modes and the logging of hot keys, by whichever option they are asked for.

    They may stand in options of their own, among the service options, or among the experiments of any spelling.

    Args:
        options: Beam's; also those that only the runner knows.

    Raises:
        SettingsError: naming each.
    """
    given = options.get_all_options(drop_default=True, retain_unknown_options=True)
    problems: list[str] = []
    for name, value in given.items():
        for written in _written(name, value):
            plain = written.lower().replace("-", "_")
            problems += [f"{written}: {why}" for mode, why in _REFUSED.items() if mode in plain]
    if problems:
        raise SettingsError(problems)


def _written(name: str, value: Any) -> Iterable[str]:
    """An option as somebody would write it; one that is switched off is none."""
    if value is None or str(value).lower() in ("false", "[]"):
        return ()
    if value is True:
        return (f"--{name}",)
    values: list[Any] = value if isinstance(value, list) else [value]
    return (f"--{name}={part}" for one in values for part in str(one).split(","))


__all__ = ["check_modes"]
