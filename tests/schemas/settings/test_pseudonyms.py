from __future__ import annotations

import copy
import hashlib
import pickle
from pathlib import Path

import pytest

from quiltstream.schemas.model_file import Model, Provenance, hash_of_series
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import (
    EXAMPLE,
    Settings,
    label_model,
    load_settings,
    read_roster,
    under_pseudonyms,
)
from quiltstream.schemas.settings.secrets import PseudonymKey, Pseudonyms

from ...present import present

SECRET = b"0123456789abcdef0123456789abcdef"
KEY = PseudonymKey(SECRET)


def settings_with(folder: Path, readings: str = "pseudonyms: {env: QUILT_KEY}") -> Settings:
    text = EXAMPLE.replace("scale: 2000}", f"scale: 2000, {readings}}}")
    assert text != EXAMPLE
    return load_settings(text, folder=folder)


def test_a_pseudonym_is_blake2b_of_the_name_under_the_key():
    expected = hashlib.blake2b(b"meter 7", key=SECRET, digest_size=16, person=b"quiltstream-name").hexdigest()
    assert KEY.name("meter 7") == expected
    assert len(expected) == 32
    assert KEY.name("meter 8") != expected
    assert PseudonymKey(SECRET[:-1]).name("meter 7") != expected


def test_a_key_is_shown_nowhere_and_is_not_pickled():
    assert repr(KEY) == str(KEY) == "PseudonymKey(...)"
    for carry in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="does not travel"):
            carry(KEY)


def test_a_key_is_read_from_the_place_in_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "key"
    path.write_bytes(SECRET + b"\n")
    monkeypatch.setenv("QUILT_KEY", SECRET.decode())
    for place in (Pseudonyms(env="QUILT_KEY"), Pseudonyms(file=str(path))):
        assert place.key().name("a") == KEY.name("a")
        assert SECRET.decode() not in repr(place)


@pytest.mark.parametrize("secret", ["", "short", "x" * 65])
def test_a_key_of_another_length_is_refused_and_not_quoted(secret: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("QUILT_KEY", secret)
    with pytest.raises(SettingsError, match=f"QUILT_KEY holds a key of {len(secret)} bytes") as caught:
        Pseudonyms(env="QUILT_KEY").key()
    assert secret == "" or f"{secret}" not in str(caught.value).replace("openssl", "")


def test_a_ledger_freezes_the_fingerprint_and_not_the_place_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "key"
    path.write_bytes(SECRET)
    monkeypatch.setenv("QUILT_KEY", SECRET.decode())
    one, other = settings_with(tmp_path), settings_with(tmp_path, f"pseudonyms: {{file: '{path}'}}")
    assert one.readings is not None
    assert other.readings is not None
    assert one.readings.canonical() == other.readings.canonical()
    assert one.readings.canonical()["pseudonyms"] == KEY.fingerprint
    monkeypatch.setenv("QUILT_KEY", SECRET.decode() + "x")
    assert one.readings.canonical() != other.readings.canonical()


def test_a_roster_holds_real_names_and_is_read_under_pseudonyms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("QUILT_KEY", SECRET.decode())
    (tmp_path / "roster.csv").write_text("series,feeder\nm1,f1\nm2,f1\nm2,f2\n", encoding="utf-8")
    plain, hidden = read_roster(load_settings(EXAMPLE, folder=tmp_path)), read_roster(settings_with(tmp_path))
    assert plain is not None
    assert hidden is not None
    assert plain.groups_of == {"m1": ("f1",), "m2": ("f1", "f2")}
    assert hidden.groups_of == {KEY.name("m1"): ("f1",), KEY.name("m2"): ("f1", "f2")}
    ungrouped = present(read_roster(settings_with(tmp_path), grouped=False))
    assert ungrouped.keys == tuple(sorted([KEY.name("m1"), KEY.name("m2")]))
    assert under_pseudonyms(settings_with(tmp_path), ["m1"]) == [KEY.name("m1")]
    assert under_pseudonyms(load_settings(EXAMPLE), ["m1"]) == ["m1"]


def model_of(*names: str) -> Model:
    origin = Provenance(method="counts", series_hashes=tuple(hash_of_series(name) for name in names))
    return Model(belief={"kind": "x"}, states=None, interval_us=None, provenance=origin)


def test_a_model_fitted_on_real_names_is_recognised_under_pseudonyms(tmp_path: Path):
    (tmp_path / "roster.csv").write_text("series,feeder\nm1,f1\n", encoding="utf-8")
    settings = settings_with(tmp_path)
    assert label_model(settings, model_of("m1", "m9")).provenance.from_protected
    assert not label_model(settings, model_of("m9")).provenance.from_protected
    assert not label_model(settings, model_of()).provenance.from_protected
    without = settings.model_copy(update={"roster": None})
    assert label_model(without, model_of("m9")).provenance.from_protected
    assert not label_model(load_settings(EXAMPLE), model_of("m1")).provenance.from_protected
