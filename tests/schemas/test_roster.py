from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.schemas.roster import Roster, RosterError


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("xyz")), min_size=1), st.integers(1, 5))
def test_keys_members_and_shards_follow_from_the_pairs(pairs, shards):
    roster = Roster(tuple(pairs))
    unique = set(pairs)
    assert roster.keys == tuple(sorted({g for _, g in unique}))
    assert roster.members.tolist() == [sum(g == key for _, g in unique) for key in roster.keys]
    assert roster.multiplicity == max(sum(s == one for s, _ in unique) for one in roster.series)
    assert sorted(k for s in range(shards) for k in roster.shard_keys(s, shards)) == list(roster.keys)
    assert Roster.from_dict(roster.to_dict()) == roster
    assert Roster(tuple(reversed(pairs))).digest == roster.digest


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ((), "lists no series"),
        ((("a", None), ("b", "g")), "1 of its 2 rows have no group"),
        ((("", None),), "empty text"),
    ],
)
def test_a_roster_that_cannot_be_used_is_refused(entries, message):
    with pytest.raises(RosterError, match=message):
        Roster(entries)


def test_a_roster_file_is_read_by_its_columns(tmp_path):
    path = tmp_path / "roster.csv"
    path.write_text("\ufeffhome,feeder\nm1,north\nm2,south\n", encoding="utf-8")
    assert Roster.read(path, series="home", group="feeder").entries == (("m1", "north"), ("m2", "south"))
    assert Roster.read(path, series="home").kind == "series"
    with pytest.raises(RosterError, match="it has 2 columns, none of them 'series'"):
        Roster.read(path)
    with pytest.raises(RosterError, match=r"absent\.csv: cannot be read \(No such file or directory\); check the path"):
        Roster.read(tmp_path / "absent.csv")
    path.write_bytes("series;group\nMüller;north\n".encode("latin-1"))
    with pytest.raises(RosterError, match=r"cannot be read as CSV .*; save it as UTF-8 with commas"):
        Roster.read(path)
    path.write_text(f"series,group\nm1,north\n{'m' * 1_000},{'g' * 1_001}\n", encoding="utf-8")
    assert len(Roster.read(path).series) == 2
    with pytest.raises(RosterError, match=r"roster\.csv: row 2 has a name of more than 1,000 characters"):
        Roster.read(path, group="group")
    path.write_text("series;group\nm1;north\n", encoding="utf-8")
    with pytest.raises(RosterError, match="it has 1 column, none of them 'series': put commas between them, or name"):
        Roster.read(path)
