"""The systemd units of ``deploy/systemd``, as their lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "systemd"

UNITS = tuple(sorted(one.stem for one in FOLDER.glob("quiltstream-*.service")))

#: What all of them have.
COMMON = FOLDER / "quiltstream-.service.d" / "common.conf"


@dataclass(frozen=True)
class Unit:
    """A unit: its settings in their order, by section."""

    name: str
    lines: tuple[tuple[str, str, str], ...]

    def all(self, key: str) -> list[str]:
        """The values of a setting, in their order."""
        return [value for _, name, value in self.lines if name == key]

    def one(self, key: str, otherwise: str | None = None) -> str:
        """The only value of a setting."""
        found = self.all(key)
        if not found and otherwise is not None:
            return otherwise
        assert len(found) == 1, f"{self.name}: {key} stands {len(found)} times"
        return found[0]


def read_unit(name: str) -> Unit:
    """A unit by its name, with what all have."""
    section, lines = "", list[tuple[str, str, str]]()
    texts = [one.read_text(encoding="utf-8") for one in (FOLDER / f"{name}.service", COMMON)]
    for line in "\n".join(texts).splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            lines.append((section, key, value))
    return Unit(name, tuple(lines))
