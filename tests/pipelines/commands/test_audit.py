"""``quiltstream audit``: what it derives again, and that each layer of a forged ledger is found by the next look."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from quiltstream.pipelines.commands import ledger as command
from quiltstream.privacy import Ledger
from quiltstream.privacy.mechanisms.histogram import FixedTotalHistogram
from quiltstream.privacy.models.classes import MixingBounds
from quiltstream.schemas.ledger import LedgerEntry
from quiltstream.schemas.releases import releases_from_batch
from quiltstream.store import tables
from quiltstream.store.store import Store
from quiltstream.transforms.plan import make_plan
from quiltstream.transforms.sinks import read_release_rows

from ...released import write_rows
from ...store.forging import reseal
from .. import jobs
from ..jobs import Job, call


def looked(*words: str | Path) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """The exit code, and the differences by look."""
    done = call("audit", *words, "--json")
    said = json.loads(done.out)
    assert said["passed"] == (done.code == 0)
    return done.code, {look["name"]: look["differences"] for look in said["looks"]}


def test_a_consistent_ledger_passes_every_check_of_the_audit(ran: Job) -> None:
    code, found = looked(ran.settings)
    assert (code, list(found)) == (0, ["record", "charges", "noise", "releases", "settings", "published"])
    assert not any(found.values())
    done = call("audit", ran.settings)
    assert done.said("Pass: every number on record follows")
    assert done.said("density and decision of 7 charges and refusals")
    # a ledger alone has neither settings nor a sink to be held against
    assert set(looked(ran.ledger)[1]) == {"record", "charges", "noise", "releases"}
    assert looked(ran.ledger, "--releases", ran.sink)[1]["published"] == []


def test_settings_of_another_query_are_reported_with_the_differing_field(copy: Job) -> None:
    document = yaml.safe_load(copy.settings.read_text(encoding="utf-8"))
    for change, field in (
        ({"model": {"pi_min": 0.05, "gap": 0.25}}, "model.gap"),
        ({"privacy": {"epsilon": 0.5, "budget": 1.0}}, "privacy.epsilon"),
        ({"states": {"edges": [250, 500], "unit": "W"}}, "states.edges"),
    ):
        copy.settings.write_text(yaml.safe_dump(document | change), encoding="utf-8")
        code, found = looked(copy.settings)
        assert code == 4
        assert [one["what"].startswith(f"{field} is ") for one in found["settings"]] == [True], found["settings"]
        assert not any(differences for name, differences in found.items() if name != "settings")


def test_published_rows_that_differ_from_the_record_are_reported(copy: Job) -> None:
    table = read_release_rows(copy.sink)
    rows = table.to_pylist()
    rows[3]["counts"][0] += 1
    rows[4]["release_id"] = "0" * 32
    write_rows(copy.sink, "parquet", table.from_pylist(rows, schema=table.schema))
    code, found = looked(copy.settings)
    assert code == 4
    assert sorted(one["what"] for one in found["published"]) == [
        "counts differ from the record", "is published and not on record",
    ]  # fmt: skip
    (copy.folder / "other.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    assert (
        "holds no releases" in looked(copy.ledger, "--releases", copy.folder / "other.csv")[1]["published"][0]["what"]
    )


def forge(made: Job, depth: int) -> None:
    """Rewrite the ledger as if every density had been half as large, so deep, with all digests made anew.

    0: a loss alone; 1: densities and losses of the charges; 2: those of the query as well; 3: its scale and band, too.
    """
    engine = sa.create_engine(f"sqlite:///{made.ledger}")
    with engine.begin() as connection:
        rows = connection.execute(sa.select(tables.charges).order_by(tables.charges.c.sequence)).mappings().all()
        account = Ledger(MixingBounds(0.05, 0.3))
        for row in rows:
            values: dict[str, Any] = {"loss_after": row["loss_after"] / 2}
            if depth:
                charge = account.charge(row["window_start"], row["window_stop"], row["epsilon_dp"] / 2)
                values = {
                    "epsilon_dp": charge.epsilon_dp,
                    "loss_before": charge.loss_before,
                    "loss_after": account.loss,
                }
            connection.execute(tables.charges.update().where(tables.charges.c.id == row["id"]).values(**values))
        query = connection.execute(sa.select(tables.queries)).mappings().one()
        values = {}
        if depth > 1:
            values = {name: query[name] / 2 for name in ("epsilon_dp", "release_epsilon_dp")}
            connection.execute(tables.domains.update().values(reserved_loss=account.loss))
        if depth > 2:
            scale = 2 * Fraction(query["scale"])
            band = FixedTotalHistogram(5, scale).half_width(0.95)
            header = json.loads(query["header"]) | {
                "half_width_95": band,
                "scale": float(scale),
                "scale_exact": str(scale),
            }
            values |= {"scale": str(scale), "header": json.dumps(header)}
        if values:
            connection.execute(tables.queries.update().values(**values))
        reseal(connection)
    engine.dispose()


@pytest.mark.parametrize(("depth", "look"), [(0, "record"), (2, "noise"), (3, "settings")])
def test_each_layer_of_a_forged_ledger_is_found_by_its_audit_check(depth: int, look: str, copy: Job) -> None:
    forge(copy, depth)
    code, found = looked(copy.settings)
    assert code == 4
    first = next(name for name, differences in found.items() if differences)
    assert first == look, found
    assert call("audit", copy.settings).said(found[look][0]["what"].split(";")[0])


def test_an_entry_is_checked_against_its_query_and_the_budget(ran: Job) -> None:
    with Store(f"sqlite:///{ran.ledger}") as store:
        entries = store.entries()
        registered = {pair: held for pair in store.queries() if (held := store.registered(*pair)) is not None}
    assert not list(command.charges_that_differ(entries, registered))
    for change, text in (
        ({"epsilon_dp": entries[2].epsilon_dp / 2}, "epsilon_dp is "),
        ({"loss_after": 1.5}, "it was charged, and 1.5 is above 1"),
        ({"decision": "refused", "loss_after": 0.5}, "it was refused, and 0.5 is not above 1"),
    ):
        forged = [*entries[:2], LedgerEntry.from_dict(entries[2].to_dict() | change), *entries[3:]]
        (one,) = command.charges_that_differ(forged, registered)
        assert one.row == "entry 3 of domain 'streets'"
        assert one.what.startswith(text)


def test_a_query_is_checked_against_the_density_and_band_of_its_scale(ran: Job) -> None:
    with Store(f"sqlite:///{ran.ledger}") as store:
        (pair,) = store.queries()
        held = store.registered(*pair)
    assert held is not None
    assert not list(command.noise_that_differs({pair: held}))
    for change, text in (
        ({"release_epsilon_dp": held.query.release_epsilon_dp / 2}, "a release loses "),
        ({"header": held.query.header | {"half_width_95": 7}}, "half_width_95 is 7; by the law of its noise "),
        ({"scale": 2 * held.query.scale}, "a release loses "),
    ):
        forged = replace(held, query=replace(held.query, **change))
        assert next(command.noise_that_differs({pair: forged})).what.startswith(text)


def test_counts_that_do_not_sum_to_their_public_total_are_reported(ran: Job) -> None:
    rows = {row.release_id: row.to_dict() for row in releases_from_batch(read_release_rows(ran.sink))}
    with Store(f"sqlite:///{ran.ledger}") as store:
        entries = store.entries()
    assert not list(command.releases_that_differ(rows, entries))
    name = next(iter(rows))
    rows[name]["counts"][0] += 1
    rows[name]["loss_after"] += 0.1
    found = [one.what for one in command.releases_that_differ(rows, entries)]
    assert found[0] == "its losses are not those of its charge"
    assert found[1].startswith("its counts add up to ")


def test_a_row_of_a_merged_ledger_is_of_one_of_its_windows_charges(ran: Job) -> None:
    rows = {row.release_id: row.to_dict() for row in releases_from_batch(read_release_rows(ran.sink))}
    with Store(f"sqlite:///{ran.ledger}") as store:
        entries = store.entries()
    flagged = [replace(one, loss_before=one.loss_before + 1, loss_after=one.loss_after + 1) for one in entries]
    assert not list(command.releases_that_differ(rows, [*entries, *flagged]))
    assert len(list(command.releases_that_differ(rows, flagged))) == len(rows)


def test_an_audit_passes_while_a_job_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, windows = jobs.job(tmp_path), {"size": "1d", "start": "2024-03-01"}
    stops = iter(["2024-03-03", "2024-03-04", "2024-03-05"])

    def publish_one_more() -> None:
        jobs.change(made, windows=windows | {"stop": next(stops)})
        call("run", made.settings).ended(0)

    def followed(function: Callable[..., Any]) -> Callable[..., Any]:
        def follow(*given: Any) -> Any:
            with monkeypatch.context() as patched:
                patched.setattr(Store, "entries", entries)
                found = function(*given)
                publish_one_more()
            return found

        return follow

    entries = Store.entries
    publish_one_more()
    monkeypatch.setattr(command, "make_plan", followed(make_plan))
    monkeypatch.setattr(Store, "entries", followed(entries))
    code, found = looked(made.settings)
    assert (code, next(stops, None)) == (0, None), found


def test_a_missing_ledger_is_reported(tmp_path: Path) -> None:
    assert call("audit", tmp_path / "absent.db").code == 2
