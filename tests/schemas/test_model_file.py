from __future__ import annotations

import json

import pytest

from quiltstream.schemas.model_file import Model, ModelError, Provenance, hash_of_series
from quiltstream.schemas.states import StateSpace

MODEL = Model(
    belief={"kind": "chain", "transition": [[0.9, 0.1], [0.4, 0.6]]},
    states=StateSpace((250.0,), "W"),
    interval_us=1_800_000_000,
    provenance=Provenance(
        method="pooled transition counts", series=2, transitions=10, series_hashes=(hash_of_series("m1"),), notes=("a",)
    ),
    diagnostics={"period": 1},
)


def test_a_model_file_round_trips(tmp_path):
    path = tmp_path / "deep" / "model.json"
    MODEL.save(path)
    assert Model.load(path) == MODEL
    assert [p.name for p in path.parent.iterdir()] == ["model.json"]


def test_the_model_id_depends_only_on_the_inputs_of_the_guarantee():
    other = Model(MODEL.belief, StateSpace((300.0,), "W"), MODEL.interval_us, MODEL.provenance)
    same = Model(MODEL.belief, MODEL.states, MODEL.interval_us, Provenance(method="another way"))
    assert other.model_id != MODEL.model_id
    assert same.model_id == MODEL.model_id


def edited(**changes):
    form = json.loads(MODEL.to_json())
    form.update(changes)
    return json.dumps(form)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        (edited(version=99), "version 99"),
        (edited(belief={"kind": "chain", "transition": [[0.5, 0.5], [0.4, 0.6]]}), "it was edited"),
        (edited(states={"unit": "W"}), "damaged or incomplete"),
        (edited(provenance={"method": "x", "unknown": 1}), "damaged or incomplete"),
        (edited(belief={"transition": float("nan")}), "not JSON, or no numbers of a model"),
        ("[" * 100_000, "not JSON, or no numbers of a model"),
    ],
)
def test_an_invalid_model_file_is_refused(text, message):
    with pytest.raises(ModelError, match=message):
        Model.from_json(text)


def test_a_model_of_other_states_or_slots_is_refused():
    with pytest.raises(ModelError, match=r"its interval is 30min and slots\.interval is 1h"):
        MODEL.check_fits(StateSpace((250.0,), "W"), 3_600_000_000)
    with pytest.raises(ModelError, match="fit a model with the settings' edges"):
        MODEL.check_fits(StateSpace((251.0,), "W"), 1_800_000_000)
    MODEL.check_fits(StateSpace((250.0,), "W"), 1_800_000_000)


def test_the_line_of_a_row_has_no_name_of_a_file():
    for name in ("s20.yaml", "Jane Doe.CSV.gz", "Jane Doe.csv.bz2", "Jane Doe.zip", "/data/jane", "homes\\Jane Doe"):
        assert Provenance("counts", source=name).text == "counts"
    assert Provenance("counts", source="a history in csv").text == "counts; a history in csv"
    assert Provenance("counts", source="London households, 2013").text == "counts; London households, 2013"


@pytest.mark.parametrize(
    ("belief", "said"),
    [
        (StateSpace((250.0,), "W"), r"belief is of the type StateSpace, .*: give belief\.to_dict\(\)"),
        ({"transition": [[1.0]]}, "belief is of the type dict, and must be a dictionary with a kind"),
        ({"kind": "chain", "transition": {1}}, r"belief is not plain JSON data \(.*set.*\): belief\.to_dict"),
    ],
)
def test_a_model_of_what_is_no_plain_belief_is_refused(belief, said):
    with pytest.raises(ModelError, match=said):
        Model(belief, None, None, Provenance(method="given"))
