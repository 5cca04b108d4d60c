"""What Beam and SQLAlchemy are made to remember in the tests is what they find."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
import sqlalchemy as sa
from apache_beam.coders import BytesCoder
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions, TypeOptions
from apache_beam.transforms import core, userstate
from apache_beam.transforms.timeutil import TimeDomain

from ..reflection import remember_reflection

LEFT = userstate.BagStateSpec("left", BytesCoder())
LATER = userstate.TimerSpec("later", TimeDomain.WATERMARK)
LEFT_OF = beam.DoFn.StateParam(LEFT)
LATER_OF = beam.DoFn.TimerParam(LATER)


class Step(beam.DoFn):
    """A step with a state and a timer."""

    def process(
        self, element: Any, window: Any = beam.DoFn.WindowParam, left: Any = LEFT_OF, later: Any = LATER_OF
    ) -> None: ...

    @userstate.on_timer(LATER)
    def ring(self) -> None: ...


#: As if it were one of the package's own.
Ours = type("Ours", (Step,), {"__module__": "quiltstream.elsewhere"})


@pytest.fixture(autouse=True)
def remembering() -> None:
    remember_reflection()
    before = core.get_function_args_defaults
    remember_reflection()
    assert core.get_function_args_defaults is before


@pytest.mark.parametrize("kind", [Step, Ours])
def test_cached_states_and_timers_of_a_step_equal_those_of_beam(kind: type[Step]) -> None:
    read: Any = userstate.get_dofn_specs
    for _ in range(3):
        states, timers = read(kind())
        assert (states, timers) == read.__wrapped__(kind()) == ({LEFT}, {LATER})
        states.clear()


def test_cached_method_parameters_equal_those_of_beam_and_functions_are_not() -> None:
    read: Any = core.get_function_args_defaults
    for _ in range(3):
        names, defaults = read(Step().process)
        assert (names, defaults) == read.__wrapped__(Step().process)
        assert names == ["element", "window", "left", "later"]
        assert len(defaults) == 3
        names.clear()
        assert read(lambda one, two=2: (one, two)) == (["one", "two"], [2])


def test_views_of_options_share_their_values_and_others_have_their_own() -> None:
    for runner in ("PrismRunner", "FlinkRunner"):
        options = PipelineOptions(["--streaming", f"--runner={runner}"])
        first, second = options.view_as(StandardOptions), options.view_as(StandardOptions)
        assert (second.runner, second.streaming) == (runner, True)
        second.runner = "DirectRunner"
        assert first.runner == options.view_as(TypeOptions).view_as(StandardOptions).runner == "DirectRunner"
        assert first.get_all_options() == second.get_all_options() == options.get_all_options()
        with pytest.raises(AttributeError, match="pipeline_type_check"):
            _ = second.pipeline_type_check


def test_a_statement_of_one_engine_is_the_text_of_another_with_its_own_values() -> None:
    table = sa.Table("one", sa.MetaData(), sa.Column("number", sa.Integer), sa.Column("name", sa.Text))
    found: list[list[tuple[int, str]]] = []
    for name in ("a", "b"):
        engine = sa.create_engine("sqlite://")
        with engine.begin() as connection:
            table.create(connection)
            connection.execute(table.insert(), {"number": len(name), "name": name})
            rows = connection.execute(table.select().where(table.c.name == name)).all()
            assert connection.execute(table.select().where(table.c.name == name + name)).all() == []
        found.append([(row.number, row.name) for row in rows])
        engine.dispose()
    assert found == [[(1, "a")], [(1, "b")]]
    cached: Any = sa.create_engine("sqlite://")
    assert cached._compiled_cache is engine._compiled_cache
    assert any("FROM one" in str(text) for text in cached._compiled_cache.values())
