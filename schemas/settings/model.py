"""The settings of a model that a job estimates itself, once, when it begins: from what, and how sure of it.

What an estimate may be made of is the heart of it (theory section 7, item 5): a chain read off the very series that it
is to protect makes noise and account functions of their secrets. Sound are series outside the domain, and transition
counts that are released with noise and charged. Anything else is possible and labelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from ..errors import ArgumentError
from ..model_file import Model
from ..slots import SlotGrid, parse_duration
from .base import Duration, Number, Positive, Section
from .connectors import Delimiter, Encoding, OneConnector, Paths

#: What ``model`` is where nothing is known yet: bounds that no data were used for, set by the interval.
STAND_IN = "stand-in"

#: Beliefs fitted on public histories, which come with the package (``examples/shipped_models.py`` fits them).
SHIPPED = ("london", "nhanes")


def shipped(name: str) -> str:
    """The file of a belief that comes with the package."""
    return str(Path(__file__).parents[1] / "models" / f"{name}.json")


def fitting(unit: str, interval_us: int) -> dict[str, Model]:
    """Beliefs that come with the package, whose states are in this unit and whose slots are made of whole ones."""
    made = {name: Model.load(Path(shipped(name))) for name in SHIPPED}
    return {
        name: one
        for name, one in made.items()
        if one.states is not None and one.states.unit == unit and (one.interval_us or 1) % interval_us == 0
    }


def init_with(name: str) -> str:
    """The command that writes settings with the slots and states of a belief that comes with the package."""
    return f"`quiltstream init DATA --model {name} --force`"


def weakness(model: Model) -> str:
    """Where most of its own history loses more than a belief that comes with the package promises; empty for none."""
    memory = model.diagnostics["cover"]["checks"]["memory"]
    if 2 * memory["within"] >= memory["series"]:
        return ""
    return (
        f"weak beyond two slots of memory: so looked at, {memory['within']} of its {memory['series']} series lose at "
        f"most epsilon 1, and the others up to {memory['largest']:.2f}"
    )


def shipped_text(found: Mapping[str, Model]) -> str:
    """How to take one of the beliefs that fit, or that none comes with the package."""
    ways = {init_with(name): weakness(one) for name, one in found.items()}
    text = " or ".join(f"{way} ({weak})" if weak else way for way, weak in ways.items())
    return (
        f"take a belief of others: {text}, which writes the settings anew and asks again what was answered"
        if text
        else "for this unit and interval no belief comes with the package: fit one on a history of other series"
    )


#: What an estimate is made of, but for files of other series.
Origin = Literal["counts", "readings"]


def _origin(value: Any) -> Any:
    if isinstance(value, str) and value not in get_args(Origin):
        words = ", ".join(get_args(Origin))
        raise ArgumentError(f"{value!r} is none of {words}; for files of other series write for example {{csv: FILES}}")
    return OutsideFiles.model_validate(value) if isinstance(value, dict) else value


class OutsideFiles(OneConnector):
    """Files of series that the domain does not protect, read as the source is; series of the roster are left out."""

    parquet: Paths = None
    csv: Paths = None
    jsonl: Paths = None
    avro: Paths = None
    delimiter: Delimiter = ","
    encoding: Encoding = "utf-8"


class Bounds(Section):
    """A belief given by hand: every chain that mixes at least so fast."""

    pi_min: Number = Field(gt=0, lt=1, description="smallest stationary probability of a state")
    gap: Number = Field(gt=0, le=2, description="eigengap of P P*, or twice the gap of P for reversible chains")
    kind: Literal["unknown", "multiplicative", "reversible"] = Field(default="unknown", description="which gap it is")


class Estimate(Section):
    """How a job estimates its model."""

    from_: Annotated[Origin | OutsideFiles, BeforeValidator(_origin)] = Field(
        alias="from",
        description="files of series outside the domain; counts: noisy transition counts of its own series, charged; "
        "readings: its own readings, which makes every loss one 'given the model'",
    )
    over: Duration | None = Field(
        default=None, description="slots before windows.start whose transitions are counted; only from counts"
    )
    start: str | Bounds | None = Field(
        default=None, description="model that counting is charged under: a file, or bounds by hand; only from counts"
    )
    margin: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=0.1, description="share by which pi_min and gap of an estimate are lowered before they are believed"
    )
    smoothing: Annotated[Number, Field(ge=0)] = Field(
        default=0.5, description="added to the count of every transition, where counts are exact"
    )
    level: Annotated[Number, Field(gt=0, lt=1)] = Field(
        default=0.95, description="confidence of the region that noisy counts leave"
    )
    epsilon: Positive | None = Field(
        default=None, description="what counting costs, beside privacy.epsilon; only from counts"
    )

    @model_validator(mode="after")
    def _whole(self) -> Estimate:
        for name in ("over", "start", "epsilon"):
            if (getattr(self, name) is None) == (self.origin == "counts"):
                raise ArgumentError(f"{name} is needed with from: counts, and for nothing else")
        return self

    def slots(self, grid: SlotGrid) -> int | None:
        """Slots whose transitions are counted; ``None`` where no table of them is made.

        Raises:
            ValueError: ``over`` is no whole number of slots.
        """
        return None if self.over is None else grid.slots_in(parse_duration(self.over), "model.estimate.over")

    @property
    def origin(self) -> Literal["outside", "counts", "readings"]:
        """What it is made of, as a word."""
        return self.from_ if isinstance(self.from_, str) else "outside"

    @property
    def outside(self) -> OutsideFiles | None:
        """The files of other series, if it is made of these."""
        return None if isinstance(self.from_, str) else self.from_


class EstimatedModel(Section):
    """A model that the job estimates itself."""

    estimate: Estimate
