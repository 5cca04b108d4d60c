"""A whole settings document: read from text or a file, checked as one, and where its relative paths start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr, ValidationError

from .files import MOST_SETTINGS_BYTES, read_regular, reason
from .sections import Section
from .settings_text import OF_JOBS, Explained, SettingsError, problems_of, read_document

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing with Python 3.11


class Document(Section):
    """The outermost section of a settings file."""

    #: where a message about a mistake sends its reader
    explained: ClassVar[Explained] = OF_JOBS
    _folder: Path = PrivateAttr(default_factory=Path)

    @classmethod
    def parse(cls, document: dict[str, Any], folder: Path | None = None) -> Self:
        """Check a document.

        Args:
            document: the settings as plain data.
            folder: where relative paths start; the current folder if left out.

        Raises:
            SettingsError: with one line for every mistake.
        """
        try:
            settings = cls.model_validate(document)
        except ValidationError as error:
            raise SettingsError(problems_of(error, cls.explained)) from None
        settings._folder = Path() if folder is None else folder  # noqa: SLF001 - its own private attribute
        return settings

    @classmethod
    def load(cls, text: str, *, folder: Path | None = None, name: str = "settings") -> Self:
        """Read the text of a settings file, YAML or JSON.

        Raises:
            SettingsError: it is not a mapping, or a setting is wrong; one line for every mistake.
        """
        return cls.parse(read_document(text, name, cls.explained), folder)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a settings file.

        Raises:
            SettingsError: the file cannot be read, or a setting is wrong.
        """
        try:
            text = read_regular(path, MOST_SETTINGS_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError([f"settings {path}: cannot be read ({reason(error)})"]) from None
        return cls.load(text, folder=path.parent, name=str(path))


__all__ = ["Document"]
