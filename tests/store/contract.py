"""What every ledger of record promises; the tests of each engine inherit all of it."""

from __future__ import annotations

from .beliefs import BeliefContract
from .budget_contract import BudgetContract
from .calendar_contract import CalendarContract
from .continuity_contract import ContinuityContract
from .integrity_contract import IntegrityContract
from .population_contract import PopulationContract
from .process_contract import ProcessContract
from .publishing_contract import PublishingContract
from .reading_contract import ReadingContract
from .registration_contract import RegistrationContract
from .rosters import RosterContract
from .version_contract import VersionContract


class StoreContract(
    RegistrationContract,
    PopulationContract,
    PublishingContract,
    BudgetContract,
    CalendarContract,
    ReadingContract,
    IntegrityContract,
    ProcessContract,
    VersionContract,
    ContinuityContract,
    BeliefContract,
    RosterContract,
):
    """Inherit it together with an engine."""
