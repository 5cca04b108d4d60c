"""Series that two domains of a ledger have: what the commands say, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from quiltstream.schemas.releases import releases_from_batch
from quiltstream.store.store import Store
from quiltstream.transforms.sinks import read_release_rows

from ..jobs import Done, call, job, readings, write_csv

TOGETHER = "what the two tell together is in no account"


def settings(folder: Path, name: str, **changes: object) -> Path:
    """Settings of another job over the same readings and the same ledger."""
    document = yaml.safe_load((folder / "settings.yaml").read_text(encoding="utf-8"))
    document |= {"sink": {"parquet": f"{name}.parquet"}, "rejects": {"csv": f"{name}-rejects.csv"}, **changes}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that has run, and beside it the settings of two others."""
    made = job(tmp_path_factory.mktemp("shared") / "job", privacy={"epsilon": 1.0, "budget": 3.0})
    assert call("run", made.settings).code == 0
    settings(made.folder, "renamed", domain="streets-again")
    settings(made.folder, "coarse", domain="coarse", states={"edges": [500], "unit": "W"})
    return made.folder


@pytest.mark.night
@pytest.mark.parametrize("words", [("--dry-run",), ()])
def test_a_renamed_domain_is_refused_and_publishes_nothing(folder: Path, words: tuple[str, ...]) -> None:
    done = call("run", *words, folder / "renamed.yaml").ended(
        4,
        "domain 'streets-again': 6 of its series are in domain 'streets' of this ledger",
        "it is the same domain under another name",
    )
    assert not any(f"m{number}" in done.err for number in range(1, 7))
    assert not (folder / "renamed.parquet").exists()
    with Store(f"sqlite:///{folder}/ledger.db", create=False) as store:
        assert store.domains() == ("streets",)


@pytest.mark.night
@pytest.mark.parametrize("words", [("--dry-run",), ()])
def test_another_state_process_is_refused_until_the_settings_name_the_other_domain(
    folder: Path, words: tuple[str, ...]
) -> None:
    call("run", *words, folder / "coarse.yaml").ended(
        4, "whose state process is another one (states.edges differs)", "set shares_series_with: [streets]"
    )


@pytest.mark.night
def test_a_reading_of_another_domains_series_is_a_reject_without_a_roster(tmp_path: Path) -> None:
    """A sender may name any series; live jobs leave these out as well."""
    assert call("run", job(tmp_path).settings).code == 0
    rows = [(name.replace("m", "n"), stamp, value) for name, stamp, value in readings()]
    write_csv(tmp_path / "others.csv", [*rows, ("m1", "2024-05-01T00:00Z", 0.5)])
    open_ = {"roster": None, "group_by": None, "windows": {"size": "1d", "start": "2024-03-01"}}
    done = call(
        "run", settings(tmp_path, "others", domain="others", source={"csv": "others.csv"}, **open_), "--json"
    ).ended(0)
    assert json.loads(done.out)["operator_only"]["rejected"] == {"not-in-roster": 1}
    assert "m1" not in done.out + done.err
    found = releases_from_batch(read_release_rows(tmp_path / "others.parquet"))
    assert {row.key for row in found} == {name for name, *_ in rows}
    assert len(found) == 8 * 6  # the days of the honest readings


@pytest.mark.night
def test_the_unaccounted_joint_loss_of_two_processes_is_reported_everywhere(folder: Path) -> None:
    both = settings(folder, "both", domain="both", states={"edges": [600], "unit": "W"}, shares_series_with=["streets"])

    def said(done: Done, other: str) -> bool:
        assert done.code == 0, done.err
        return done.said(f"6 series of this domain are in domain {other} of the ledger too: {TOGETHER}")

    assert said(call("run", "--dry-run", both), "streets")
    assert said(call("run", both), "streets")
    assert said(call("run", folder / "settings.yaml"), "both")
    assert said(call("run", "--dry-run", folder / "settings.yaml"), "both")
    shown = call("ledger", "show", folder / "ledger.db")
    assert said(shown, "streets")
    assert said(shown, "both")
    assert shown.said("allowed to have series of domain streets, over another state process")
    assert call("ledger", "export", folder / "ledger.db", "-o", folder / "out").code == 0
    accounts = json.loads((folder / "out" / "domains.json").read_text(encoding="utf-8"))
    assert {one["name"]: one["shares"] for one in accounts} == {
        "both": [{"domain": "streets", "series": 6, "declared": True}],
        "streets": [{"domain": "both", "series": 6, "declared": True}],
    }


def test_a_second_source_of_the_same_values_enters_by_a_word_on_record(tmp_path: Path) -> None:
    """The history in a file with plain columns goes on in a file of another layout."""
    made = job(tmp_path / "job", readings(days=7), privacy={"epsilon": 1.0, "budget": 3.0})
    call("run", made.settings).ended(0)
    lines = ["id;at;w", *(f"{m};{t.replace('-03-', '-04-')};{v * 2000}" for m, t, v in readings(days=7))]
    (made.folder / "later.csv").write_text("\n".join(lines), encoding="utf-8")
    select = {"select": 'select id as series, "at" as time, num(w) as value from files', "unit": "W", "scale": 1}
    again = {
        "source": {"csv": "later.csv", "delimiter": ";"}, "readings": select, "query": "later",
        "windows": {"size": "7d", "start": "2024-04-01", "stop": "2024-04-08"},
    }  # fmt: skip
    call("run", settings(made.folder, "refused", **again)).ended(4, "domain 'streets': readings")
    call("run", settings(made.folder, "unknown", **again, same_values_as="none")).ended(4, "same_values_as names query")
    word = settings(made.folder, "later", **again, same_values_as="daily")
    call("run", "--dry-run", word).ended(0, "taken at your word for the values of query daily")
    call("run", word).ended(0)
    said = "query later derives the values of query daily otherwise"
    call("ledger", "show", made.folder / "ledger.db").ended(0, said)
