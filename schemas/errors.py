"""The base class of all errors that have a name of their own."""

from __future__ import annotations


class QuiltstreamError(Exception):
    """Base class of every error that this package defines; most are a ``ValueError`` or a ``RuntimeError`` as well.

    A wrong argument of a function is a plain ``ValueError`` that names the argument, the value and the limit.
    """
