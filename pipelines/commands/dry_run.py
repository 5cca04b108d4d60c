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
from ..console import plural, print_json, results
from ..errors import CommandError, ExitCode, explain
from ..forecast import OPERATOR, Block, Forecast, Row, Table, promise_text, silence_of
from ..on_record import ReplacedError, Standing, check_ledger, known_history, on_record, standing_of, with_newest

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


def _course(
    job: Forecast, account: Standing, admitted: int | None, accepted: Accepted, *, history_lost: bool
) -> Course:
    """Find out what a run will do, by trying its registration in the ledger; nothing is put on record."""
    plan, looked = job.plan, ""
    before = on_record(plan.address, plan.domain.name, plan.query_name)
    needed = {
        "--accept-noise": before.registration is None and not accepted.noise and noise_problem(plan),
        "--accept-stand-in": plan.stand_in and not accepted.stand_in,
        "--accept-cover": covers_few(plan) and not accepted.cover,
    }
    if words := [word for word, one in needed.items() if one]:
        return Course(ExitCode.SETTINGS, f"{_STOPS}, unless it is run with {' and '.join(words)}")
    try:
        sink_of(job.settings, live=job.live)
        looked = _look_for_lost(job.settings, live=job.live, history_lost=history_lost)
        check_ledger(plan.address, undone=True)
        found = _windows(job, account, admitted, len(before.complete), known=before.registration is not None)
    except BudgetRefused as error:
        found = Course(ExitCode.REFUSED, f"nothing is published: {error}")
    except (CommandError, SettingsError, StoreError) as error:
        failure = explain(error)
        found = Course(failure.code, f"{_STOPS}: {failure.text}")
    return replace(found, more=looked)


def _look_for_lost(settings: Settings, *, live: bool, history_lost: bool) -> str:
    """See that the ledger is the one that the job knew, as a run does, and say what was not looked at.

    Raises:
        ReplacedError: it is gone, another one, or an older copy, and not said to be lost.
        CommandError, SettingsError: the sink cannot be read, or is not one of this query.
    """
    looked, ids, sinks = "", list[str](), (settings.sink, settings.rejects)
    written = [settings.path(one.path) for one in sinks if one is not None and one.is_files]
    try:
        with with_newest(settings):
            if live:
                looked = "the run also compares the sink with the ledger, which a dry run of a live job does not"
            elif any(not is_local(path) or os.path.lexists(path) for path in written):
                from ..connectors.files import check_rejects, released_ids  # noqa: PLC0415 - with Beam, see dry

                check_rejects(settings)
                ids = released_ids(settings)
            known_history(settings, ids)
    except ReplacedError:
        if not history_lost:
            raise
        looked = "it goes on without the history that was lost (--history-lost), and marks the account for ever"
    return looked


def _windows(job: Forecast, account: Standing, admitted: int | None, complete: int, *, known: bool) -> Course:
    """What follows from the ledger as it is; a run stops by the errors of the store."""
    plan = job.plan
    if not account.exists and admitted == 0:
        return _published(0, admitted)  # whatever the data say
    left = "" if job.live or plan.resolved or known else "the schedule or the roster comes"
    if left and account.exists and job.roster is not None:
        with Store(plan.address) as store:  # as a registration would, whose windows are not known yet
            store.check_apart(plan.domain, job.roster.series)
    if not (left or account.exists or job.live) and plan.schedule.stop is None:
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


def _charged(plan: Plan, most: int) -> Schedule:
    """The windows of a plan as the account prices them, where a cell counts in so many histograms of each at most."""
    schedule = plan.schedule
    if schedule.start is not None:
        return priced(schedule, plan.losses(most))
    density = max(plan.of_length(slots).noisy.epsilon_dp for slots in schedule.own_lengths) * most
    return Schedule(schedule.size, schedule.every, start=0, stop=None, epsilon_dp=density)


def _budget(plan: Plan, account: Standing, budget: float, admitted: int | None, first: float) -> str:
    alone = ", on an empty account," if account.budget is not None else ""
    told = f"{budget:g}"
    if budget != plan.domain.budget:
        told += f" on record, {plan.domain.budget:g} in the settings"
    if admitted is None:
        return f"{told}: it allows{alone} the whole schedule"
    if admitted:
        return f"{told}: it allows{alone} the first {plural(admitted, 'window')} only; the rest will be refused"
    enough = ";"
    if math.isfinite(first):
        enough = f", which costs {first:.4g}; raise privacy.budget to at least {enough_for(first)}, or"
    return (
        f"{told}: it does not allow even the first window{enough} lower privacy.epsilon, which adds noise: the run "
        "will be refused"
    )


def _table(job: Forecast, accepted: Accepted, *, history_lost: bool) -> Table:
    """What a job will do, with the words of the operator."""
    settings, plan = job.settings, job.plan
    account, cost = standing_of(plan, job.roster), job.cost
    budget = plan.domain.budget if account.budget is None else account.budget
    stop = Ledger(belief_from_dict(plan.domain.belief), budget).admitted_prefix(job.charged)
    admitted = None if stop is None else replace(job.charged, stop=stop).windows
    run = _course(job, account, admitted, accepted, history_lost=history_lost)
    hopeless, stand_in = noise_problem(plan), stand_in_text(plan) if plan.stand_in else ()
    naive = len(plan.schedule) * plan.epsilon if plan.schedule.bounded else None
    adding = "naive adding never ends" if naive is None else f"naive adding says {naive:g}"
    silence, data = silence_of(settings) if job.live else None, job.left_to_data()
    frozen = "as public, window by window" if job.live else "as public, and frozen by the first run"
    left = (f"{', '.join(data)}: left out, so taken from the data, {frozen}",) if data else ()
    to_see = [*(one.text for one in account.shares), *job.cautions()]
    if settings.estimate is not None and plan.estimated is None:
        counting = f"the run counts first, which costs {settings.estimate.epsilon:g} more, and estimates its model"
        to_see.append(f"model.estimate: {counting}; noise and loss are those of model.estimate.start")
    drowns, told = "THE NOISE DROWNS THE COUNTS; the error of a bin that each of these leaves", job.of_history()
    return Table(
        f"{plan.query_name} over {plan.domain.name}: nothing was read, nothing is charged",
        (
            Row("query", plan.query_name),
            Row("domain", plan.domain.name),
            *job.schedule(),
            *job.noise(),
            Row("schedule_loss", cost["loss"], "promise", f"epsilon {promise_text(cost['loss'])}"),
            Row("naive_loss", naive, "loss", f"{cost['loss']:.9g} for the whole schedule; {adding}", detail=True),
            Row("admitted", admitted, "budget", _budget(plan, account, budget, admitted, cost["alone"])),
            Row("account", asdict(account), "ledger", account.text, detail=not account.exists),
            Row("silence", silence, "silence", silence),
            Row("run", asdict(run), "run", str(run)),
            Row("budget", budget),
            Row("from_data", data),
            Row("operator_only", {"of_history": told}),
        ),
        (
            Block("cautions", "Look at this first", to_see),
            job.assumptions(),
            Block("hopeless", drowns, hopeless, hopeless[1:-1], prose=True),
            Block("stand_in", "THE BELIEF IS A STAND-IN", stand_in, () if hopeless else stand_in[1:], prose=True),
            Block("", "Of the data", left),
            Block("", OPERATOR, told),
        ),
        ExitCode.OK if run.code is None else run.code,
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

    Where that depends on data it is 0. Beam is imported only where a model is estimated: it takes as long as all the
    rest.
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
    roster = constant_roster(settings) if plan.roster is None else plan.roster
    job = Forecast(settings, plan, roster, _charged(plan, 1 if roster is None else roster.multiplicity), goes_on)
    told = _table(job, accepted, history_lost=history_lost)
    if as_json:
        print_json(told.to_dict())
    else:
        told.show(results(), every=every)
    return told.code
