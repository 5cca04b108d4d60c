"""The checks of a job, in the order in which every way of running it makes them, before anything is charged or written.

First :func:`check_command`: what follows from the settings and Beam's options alone, before a ledger is looked for or a
file is read. Then, with a plan, :func:`preflight`: the plan itself (``transforms.checks``, which also checks a
``PrivateHistograms`` of a pipeline of one's own), the source, whether the sink can be written, and the ledger with what
is known of it. What differs between a run that ends and a live one is a :class:`Way`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from apache_beam.options.pipeline_options import PipelineOptions

from ..schemas.settings.job import Settings
from ..store.address import StoreAddress, forget
from ..store.store import Store
from ..transforms.checks import check_hosts, check_plan, check_record
from ..transforms.plan import Plan, ledger_address
from .connectors.job_io import check_apart
from .on_record import check_ledger, known_history, memory_of, with_ledger
from .runners import runner_name


class Way(Protocol):
    """How a job is run: until its data end, or live."""

    @property
    def live(self) -> bool:
        """Whether its source never ends."""
        ...

    def check_kinds(self, settings: Settings) -> None:
        """See that there is a sink, and that source, sink and rejects are of the kinds that such a job has."""
        ...

    def check_reading(self, settings: Settings, options: PipelineOptions) -> None:
        """See that the runner can read the source, and that secrets are there."""
        ...

    def look_at(self, settings: Settings, source: Any) -> None:
        """Refuse a source by its first readings, once it is sure that the ledger can be written."""
        ...

    def unknown_ids(self, settings: Settings, store: Store) -> list[str]:
        """The names of the releases in the sink which may be on no record."""
        ...

    def source(self, settings: Settings, plan: Plan) -> Any:
        """The reading of the source, whose mistakes are found now."""
        ...

    def make_places(self, settings: Settings) -> None:
        """Make the folders of sink and rejects, and try to write there."""
        ...


@dataclass(frozen=True, slots=True)
class Word:
    """What an operator says about a ledger that lacks what was published."""

    history_lost: bool = False  # go on although it does
    emptied: bool = False  # by that word, a ledger was made just now in the place of one that was emptied


@dataclass(frozen=True)
class Preflight:
    """A job whose checks have passed."""

    settings: Settings  # with the name of their ledger, where there is one
    plan: Plan
    source: Any
    lacking: int | None  # releases that the account is to be marked as lacking; ``None`` where it is not to be


def check_command(settings: Settings, options: PipelineOptions, way: Way) -> None:
    """What can be said before a ledger is looked for and a file is read."""
    check_hosts(runner_name(options), StoreAddress(settings.ledger_url))
    way.check_kinds(settings)
    check_apart(settings)


def preflight(settings: Settings, plan: Plan, options: PipelineOptions, way: Way, word: Word) -> Preflight:
    """Everything else, in one order."""
    if word.history_lost:
        forget(plan.address)
    way.check_kinds(settings)
    check_plan(plan, live=way.live)
    check_record(plan, live=way.live)
    way.check_reading(settings, options)
    source = way.source(settings, plan)
    emptied = word.emptied
    if plan.address.store_id is None:
        settings, made = with_ledger(settings, history_lost=word.history_lost)
        plan, emptied = replace(plan, address=ledger_address(settings)), emptied or made
    way.make_places(settings)
    memory_of(settings)
    with Store(plan.address) as store:
        ids = way.unknown_ids(settings, store)
    lacking = known_history(settings, ids, history_lost=word.history_lost, emptied=emptied)
    check_ledger(plan.address)
    way.look_at(settings, source)
    return Preflight(settings, plan, source, lacking)
