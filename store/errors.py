"""What can go wrong with the ledger of record: five kinds, by what is to be done about them.

Every message says what was found, the limit and the next step; ``details`` have the same as values. No message carries
a password, a noisy count or the text of a database driver, which may quote either. All of these can be pickled, because
workers send them to the process that started the job, and made of a message alone, as Beam does to name the step:
``details`` are empty then.
"""

from __future__ import annotations

import math
import shlex
from typing import Any, ClassVar, Self

from ..privacy.accounting.charges import refusal
from ..privacy.validation import rounded_up
from ..schemas.errors import QuiltstreamError


class StoreError(QuiltstreamError, RuntimeError):
    """The ledger of record cannot do what was asked; nothing was changed by the call that raised it.

    Attributes:
        exit_code: what a command ends with.
        details: what was found, by name; values of settings and of the record that may be shown.
    """

    exit_code: ClassVar[int] = 4

    def __init__(self, message: str = "", /, **details: Any) -> None:
        super().__init__(message)
        self.details = details


class StoreAway(StoreError):  # noqa: N818 - the name says what happened
    """It does not answer, is locked, takes no writes now or has no room: the same call may go well later."""

    exit_code = 75


class StoreDamaged(StoreError):  # noqa: N818 - as above
    """Something in it is not as it was written, or it is no ledger."""


class StoreReplaced(StoreError):  # noqa: N818 - as above
    """The ledger that was known is not at its address: it vanished or is empty, or another or an older one is there.

    It is never waited for and never made anew: what it holds was charged, and a new one would draw it again.
    """


class StoreConflict(StoreError):  # noqa: N818 - as above
    """What is on record, or where the ledger is, does not fit what was asked; ``details`` may name the ``field``."""

    @classmethod
    def of(cls, name: str, field: str, recorded: Any, given: Any, advice: str) -> Self:
        """The error for a name on record that has other content: the field is named as in the settings."""
        message = f"{name}: {field} is {shown(given)}, but on record it is {shown(recorded)}; {advice}"
        return cls(message, name=name, field=field, recorded=recorded, given=given, advice=advice)


class BudgetRefused(StoreError):  # noqa: N818 - as above
    """The domain's budget does not allow what a registration asks for; nothing was recorded."""

    exit_code = 3

    @classmethod
    def of(cls, what: str, reserved: float, asked: float, budget: float, domain: str = "") -> Self:
        """The error of something that would cost ``asked`` more than is reserved of a budget, epsilon.

        ``domain`` is the domain's name, empty where it is on no record yet.
        """
        remaining = max(0.0, budget - reserved)
        needed = reserved + asked
        raised = f" to at least {enough_for(needed)}" if budget < needed < math.inf else ""
        decided = f"the domain's budget{raised} by an explicit decision"
        if raised and not domain:
            decided = f"privacy.budget{raised}"
        elif raised:
            name = f"{'-- ' * domain.startswith('-')}{shlex.quote(domain)}"
            command = f"quiltstream ledger budget LEDGER {name} {enough_for(needed)}"
            decided = f"the domain's budget{raised} by `{command}`, an explicit decision"
        advice = f"add noise (a smaller privacy.epsilon), or raise {decided}"
        message = refusal(what, reserved, asked, budget, "reserved", advice)
        return cls(message, reserved=reserved, asked=asked, remaining=remaining, budget=budget, domain=domain)


def damaged(what: str, why: str) -> StoreDamaged:
    """The error for damage of a part of the ledger, in which no value of a block is named."""
    return StoreDamaged(
        f"ledger: {what} {why}: the record is damaged; restore the newest backup, and know that what was charged after "
        "it is forgotten then; `quiltstream ledger verify` lists everything that is damaged"
    )


#: What to do where a query on record has other content.
QUERY_ADVICE = "a query keeps what its numbers depend on: set it back, or use a new query name, which is charged anew"


def enough_for(loss: float) -> str:
    """A budget for a loss that is finite and above 0, in four digits where these are enough."""
    found = rounded_up(loss, 4)
    return found if float(found) >= loss else repr(loss)


class Words(str):
    """What a message says in the place of a value: it has no quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        """The words."""
        return str(self)


def shown(value: Any, limit: int = 80) -> str:
    """A value for a message, cut where it is long; a setting that is not there is left out."""
    text = "left out" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
