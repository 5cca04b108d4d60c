"""Every ledger of record: what is on record is read back as it was published."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from quiltstream.schemas.releases import COMPLETENESS, releases_from_batch
from quiltstream.schemas.slots import Window
from quiltstream.store import Store
from quiltstream.store.codec import NoisyBlock
from quiltstream.store.exports import rows_of
from quiltstream.store.specs import BlockToPublish, Registration

from ..present import present
from .proofs import Registered, windows_of
from .samples import SERIES, domain, drafts, query


class ReadingContract(Registered):
    """What reading promises."""

    def test_missing_blocks_are_those_of_the_schedule_without_a_record(self, store: Store) -> None:
        held = store.register(domain(), query(shards=16))
        occupied = sorted({s for s in range(16) if held.query.roster.shard_keys(s, 16)})
        everything = [(w, s) for w in windows_of(held) for s in occupied]
        assert list(store.missing(held)) == everything
        store.publish(held, drafts(held, windows_of(held)[2:3], occupied[:1]))
        assert list(store.missing(held)) == [p for p in everything if p != (windows_of(held)[2], occupied[0])]
        store.publish(held, drafts(held, shards=occupied))
        assert list(store.missing(held)) == []

    def test_windows_are_counted_by_the_completeness_of_their_rows(self, store: Store) -> None:
        held = store.register(domain(), query())
        none = dict.fromkeys(COMPLETENESS, 0)
        assert store.completeness("homes") == {"weekly": none}
        windows = windows_of(held)
        for window, said in zip(windows, ("live", "unavailable", "unavailable"), strict=False):

            def drawn(one: BlockToPublish, said: str = said) -> NoisyBlock:
                return replace(one.draw(), completeness=said)

            store.publish(held, [replace(one, draw=partial(drawn, one)) for one in drafts(held, [window])])
        assert store.completeness("homes") == {"weekly": none | {"live": 1, "unavailable": 2}}

    def test_the_rows_are_read_back_as_they_were_published(
        self, store: Store, registration: Registration, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("quiltstream.store.store.PAGE", 3)
        records = store.publish(registration, drafts(registration)[::-1])
        published = {(r.window, r.shard): rows_of(registration, r) for r in records}
        assert [batch.to_pylist() for batch in store.releases("homes", "weekly")] == [
            published[place].to_pylist() for place in sorted(published)
        ]
        row = releases_from_batch(published[Window(96, 144), 0])[0]
        entry = store.entries()[0]
        assert row.key in SERIES
        assert (row.loss_before, row.loss_after) == (0.0, entry.loss_after)
        assert (row.window_start, row.window_stop) == (96 * 1_800_000_000, 144 * 1_800_000_000)
        assert (row.quilt, row.half_width_95, row.completeness, row.members) == ((15, 13), 190, "live", 1)
        assert row.total == 48
        assert sum(present(row.estimate)) == pytest.approx(48)

    def test_the_summary_contains_the_loss_and_its_sequential_composition(
        self, store: Store, registration: Registration
    ) -> None:
        before = store.summary("homes")
        assert (before.loss, before.charged, before.naive, before.remaining) == (0.0, 0, 0.0, 1.0)
        store.publish(registration, drafts(registration, windows_of(registration)[:3]))
        summary = store.summary("homes")
        assert summary.loss == store.entries()[-1].loss_after
        assert (summary.charged, summary.refused, summary.naive) == (3, 0, 3.0)
        assert summary.reserved_loss == registration.reserved_loss
        (one,) = summary.queries
        assert (one.windows, one.charged, one.blocks, one.epsilon) == (6, 3, 6, 1.0)

    def test_the_exported_log_ends_in_the_heads(self, store: Store, registration: Registration, tmp_path: Path) -> None:
        store.publish(registration, drafts(registration))
        for name in ("log.jsonl", "log.parquet"):
            assert store.export(tmp_path / "new" / name) == store.head("homes").seq + 3
        rows = pq.read_table(tmp_path / "new" / "log.parquet").to_pylist()
        assert rows[-1]["digest"] == store.head("homes").digest
        assert [row["key"] for row in rows][:4] == ["ledger", "mode", "domain/homes", "domain"]
        assert not any(series in row["body"] for row in rows for series in SERIES)
        with pytest.raises(ValueError, match=r"\.csv"):
            store.export(tmp_path / "log.csv")

    def test_a_store_distinguishes_recorded_from_unknown_releases(
        self, store: Store, registration: Registration
    ) -> None:
        store.publish(registration, drafts(registration))
        ids = [i for batch in store.releases("homes", "weekly") for i in batch.column("release_id").to_pylist()]
        assert len(set(ids)) == 30
        assert not store.unknown_releases(ids)
        assert store.unknown_releases([*ids[:2], "0" * 32]) == {"0" * 32}
        assert store.unknown_releases(["0" * 32])
