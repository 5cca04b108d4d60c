"""``run --dry-run``: what a job will do and cost, and what of it is most likely not meant.

Everything follows from the settings, the model and the roster. The ledger of record is looked at, never changed.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ...privacy.accounting.ledger import Ledger
from ...privacy.accounting.schedules import Schedule
from ...privacy.models.serialisation import belief_from_dict
from ...schemas.roster import Roster
from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import Accepted, Settings, read_settings
from ...store.accounts import priced
from ...store.errors import BudgetRefused, StoreError, enough_for
from ...store.store import Store
from ...transforms.checks import check_plan, check_record, covers_few, noise_problem, stand_in_text
from ...transforms.formats.paths import is_local
from ...transforms.plan import Plan, constant_roster, make_plan
from ...transforms.registration import register
from ..connectors.job_io import check_apart, refuse_topics, sink_of
from ..console import lines, plural, print_json, results
from ..errors import CommandError, ExitCode, explain
from ..forecast import (
    OPERATOR,
    Block,
    Line,
    Table,
    assumptions,
    belief_text,
    cautions,
    left_to_data,
    of_history,
    of_noise,
    of_schedule,
    promise_text,
    silence_of,
)
from ..on_record import ReplacedError, Standing, check_ledger, known_history, on_record, standing_of, with_newest

#: Lines of a dry run without --all.
_MOST = 20

_STOPS = "it stops before anything is charged"


@dataclass(frozen=True, slots=True)
class Course:
    """What ``run`` will do, by the settings and the ledger as they are now."""

    code: ExitCode | None  # its exit code, with which the dry run ends, too; ``None`` where that depends on data
    text: str
    more: str = ""  # what becomes of a history that was lost, or what was not looked at

    def __str__(self) -> str:
        code = "" if self.code is None else f" (exit code {self.code.value})"
        return f"{self.text}{code}" + (f"; {self.more}" if self.more else "")


@dataclass(frozen=True, slots=True)
class _Job:
    """A job that is asked about."""

    settings: Settings
    plan: Plan
    live: bool  # whether its source goes on
    history_lost: bool  # the operator's word about the ledger
    accepted: Accepted  # and about the noise and the belief

    def course(self, roster: Roster | None, account: Standing, admitted: int | None, *, hopeless: bool) -> Course:
        """Find out what a run will do, by trying its registration in the ledger; nothing is put on record."""
        plan = self.plan
        before = on_record(plan.address, plan.domain.name, plan.query_name)
        needed = {
            "--accept-noise": hopeless and before.registration is None and not self.accepted.noise,
            "--accept-stand-in": plan.stand_in and not self.accepted.stand_in,
            "--accept-cover": covers_few(plan) and not self.accepted.cover,
        }
        if words := [word for word, one in needed.items() if one]:
            return Course(ExitCode.SETTINGS, f"{_STOPS}, unless it is run with {' and '.join(words)}")
        looked = ""
        try:
            sink_of(self.settings, live=self.live)
            looked = self.look_for_lost()
            check_ledger(plan.address, undone=True)
            found = self.windows(roster, account, admitted, len(before.complete), known=before.registration is not None)
        except BudgetRefused as error:
            found = Course(ExitCode.REFUSED, f"nothing is published: {error}")
        except (CommandError, SettingsError, StoreError) as error:
            failure = explain(error)
            found = Course(failure.code, f"{_STOPS}: {failure.text}")
        return replace(found, more=looked)

    def look_for_lost(self) -> str:
        """See that the ledger is the one that the job knew, as a run does, and say what was not looked at.

        Raises:
            ReplacedError: it is gone, another one, or an older copy, and not said to be lost.
            CommandError, SettingsError: the sink cannot be read, or is not one of this query.
        """
        settings, looked, ids = self.settings, "", list[str]()
        written = [
            settings.path(one.path) for one in (settings.sink, settings.rejects) if one is not None and one.is_files
        ]
        try:
            with with_newest(settings):
                if settings.sink is not None and self.live:
                    looked = "the run also compares the sink with the ledger, which a dry run of a live job does not"
                elif any(not is_local(path) or os.path.lexists(path) for path in written):
                    from ..connectors.files import check_rejects, released_ids  # noqa: PLC0415 - with Beam, see dry

                    check_rejects(settings)
                    ids = released_ids(settings)
                known_history(settings, ids)
        except ReplacedError:
            if not self.history_lost:
                raise
            looked = "it goes on without the history that was lost (--history-lost), and marks the account for ever"
        return looked

    def windows(
        self, roster: Roster | None, account: Standing, admitted: int | None, complete: int, *, known: bool
    ) -> Course:
        """What follows from the ledger as it is; a run stops by the errors of the store."""
        plan = self.plan
        if not account.exists and admitted == 0:
            return _published(0, admitted)  # whatever the data say
        left = "" if self.live or plan.resolved or known else "the schedule or the roster comes"
        if left and account.exists and roster is not None:
            with Store(plan.address) as store:  # as a registration would, whose windows are not known yet
                store.check_apart(plan.domain, roster.series)
        if not (left or account.exists or self.live) and plan.schedule.stop is None:
            left = "how many windows there are comes"
        if left:
            return Course(None, f"{left} from the data: known once they are read")
        if not account.exists:
            return _published(0, admitted)
        made = register(plan, trial=True)
        schedule, stop = made.query.schedule, made.admitted_stop
        if schedule.stop is None:
            return Course(None, "it publishes each window when it closes, as far as the budget allows it")
        if complete == len(schedule):
            return Course(ExitCode.OK, "nothing is charged: every window is on record, and the same rows come out")
        return _published(complete, None if stop is None else schedule.ended_by(stop))


def _published(complete: int, admitted: int | None) -> Course:
    done = f"; {plural(complete, 'window')} on record stay as they are" if complete else ""
    if admitted is None:
        return Course(ExitCode.OK, f"it publishes every window{done}")
    if not admitted:
        return Course(ExitCode.REFUSED, "nothing is published: the budget does not allow even the first window")
    text = f"it publishes the first {plural(admitted, 'window')}, and the rest is refused for ever{done}"
    return Course(ExitCode.REFUSED, text)


def forecast(job: _Job) -> Table:
    """Say what a job will do, with the words of the operator."""
    settings, plan = job.settings, job.plan
    roster = constant_roster(settings) if plan.roster is None else plan.roster
    charged = _charged(plan, 1 if roster is None else roster.multiplicity)
    account = standing_of(plan, roster)
    budget = plan.domain.budget if account.budget is None else account.budget
    stop = Ledger(belief_from_dict(plan.domain.belief), budget).admitted_prefix(charged)
    admitted = None if stop is None else replace(charged, stop=stop).windows
    hopeless, stand_in = noise_problem(plan), stand_in_text(plan) if plan.stand_in else ()
    run = job.course(roster, account, admitted, hopeless=bool(hopeless))
    noise = of_noise(plan, roster, charged)
    (cost,) = (one.value for one in noise if one.name == "cost")
    naive = len(plan.schedule) * plan.epsilon if plan.schedule.bounded else None
    adding = "naive adding never ends" if naive is None else f"naive adding says {naive:g}"
    silence, data = silence_of(settings) if job.live else None, left_to_data(plan, settings, live=job.live)
    frozen = "as public, window by window" if job.live else "as public, and frozen by the first run"
    left = (f"{', '.join(data)}: left out, so taken from the data, {frozen}",) if data else ()
    to_see = (*(one.text for one in account.shares), *cautions(settings, plan, endless=job.live))
    if settings.estimate is not None and plan.estimated is None:
        counting = f"the run counts first, which costs {settings.estimate.epsilon:g} more, and estimates its model"
        to_see = (*to_see, f"model.estimate: {counting}; noise and loss are said here for model.estimate.start")
    drowns = "THE NOISE DROWNS THE COUNTS; the error of a bin that each of these leaves"
    told = of_history(plan)
    return Table(
        f"{plan.query_name} over {plan.domain.name}: nothing was read, nothing is charged",
        (
            Line("query", plan.query_name),
            Line("domain", plan.domain.name),
            *of_schedule(plan, roster, endless=job.live),
            *noise,
            Line("schedule_loss", cost["loss"], "promise", f"epsilon {promise_text(cost['loss'])}"),
            Line("naive_loss", naive, "loss", f"{cost['loss']:.9g} for the whole schedule; {adding}", every=True),
            Line("belief", belief_text(plan.model.provenance), "belief", belief_text(plan.model.provenance)),
            Line("admitted", admitted, "budget", _budget(plan, account, budget, admitted, cost["alone"])),
            Line("account", asdict(account), "ledger", account.text, every=not account.exists),
            Line("silence", silence, "silence", silence),
            Line("run", asdict(run), "run", str(run)),
            Line("budget", budget),
            Line("set_budget", plan.domain.budget),
            Line("from_data", data),
            Line("operator_only", {"of_history": told}),
        ),
        (
            Block("cautions", "Look at this first", to_see, to_see),
            assumptions(plan),
            Block("hopeless", drowns, hopeless, hopeless[1:-1], lines),
            Block("stand_in", "THE BELIEF IS A STAND-IN", stand_in, () if hopeless else stand_in[1:], lines),
            Block("", "", left, left),
            Block("", OPERATOR, told, told),
        ),
        ExitCode.OK if run.code is None else run.code,
        _MOST,
    )


def _charged(plan: Plan, most: int) -> Schedule:
    """The windows of a plan as the account prices them, where a cell counts in so many histograms of each at most."""
    schedule = plan.schedule
    if schedule.start is not None:
        return priced(schedule, plan.losses(most))
    density = max(plan.of_length(slots).noisy.epsilon_dp for slots in schedule.own_lengths) * most
    return Schedule(schedule.size, schedule.every, start=0, stop=None, epsilon_dp=density)


def _budget(plan: Plan, account: Standing, budget: float, admitted: int | None, first: float) -> str:
    alone = ", on an empty account," if account.budget is not None else ""
    said = f"{budget:g}"
    if budget != plan.domain.budget:
        said += f" on record, {plan.domain.budget:g} in the settings"
    if admitted is None:
        return f"{said}: it allows{alone} the whole schedule"
    if admitted:
        return f"{said}: it allows{alone} the first {plural(admitted, 'window')} only; the rest will be refused"
    enough = ";"
    if math.isfinite(first):
        enough = f", which costs {first:.4g}; raise privacy.budget to at least {enough_for(first)}, or"
    return (
        f"{said}: it does not allow even the first window{enough} lower privacy.epsilon, which adds noise: the run "
        "will be refused"
    )


def dry(
    path: Path,
    *,
    as_json: bool,
    every: bool = False,
    live: bool = False,
    history_lost: bool = False,
    accepted: Accepted = Accepted(),  # noqa: B008 - a frozen value
) -> int:
    """Say what a settings file would do, in a live run or in one that ends; return the exit code of that run.

    Where that depends on data it is 0.

    Beam is imported only where a model is estimated: it takes as long as all the rest.
    """
    # it says what a run would, also where a run would stop
    settings = read_settings(path).accepting(Accepted(noise=True, stand_in=True, cover=True))
    check_apart(settings)
    source = settings.source
    goes_on = live or (source is not None and (source.broker is not None or source.stdin is not None))
    if not goes_on:
        refuse_topics(settings)
    elif source is not None and source.broker is None and settings.readings is not None:
        settings.readings.check_followed()
    if settings.estimate is None:
        plan = make_plan(settings)
    else:
        from ..estimation import estimated_plan  # noqa: PLC0415 - with Beam, as said above
        from ..preflight import Word  # noqa: PLC0415 - likewise

        plan = estimated_plan(settings, settings.estimate, None, Word())
    check_plan(plan, live=goes_on)
    check_record(plan, live=goes_on)
    said = forecast(_Job(settings, plan, goes_on, history_lost, accepted))
    if as_json:
        print_json(said.to_dict())
    else:
        said.show(results(), every=every)
    return said.code
