"""The base class of the errors of the mathematics."""

from __future__ import annotations

from ..schemas.errors import QuiltstreamError


class PrivacyError(QuiltstreamError, ValueError):
    """A belief, a mechanism or an account that cannot do what it was asked for; subclasses say which and why."""
