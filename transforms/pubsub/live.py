"""The live reader for feeds whose messages are acknowledged: each bundle's, when the runner has kept the bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol, runtime_checkable

import apache_beam as beam
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator

from .. import coders
from ..live.reader import ReadLive, ReadPart


@runtime_checkable
class Acknowledging(Protocol):
    """A reader whose source wants to be told what is in safe hands."""

    def receipt(self) -> Callable[[], None] | None:
        """Acknowledges what was read since the last receipt."""
        ...


class ReadAcknowledged(ReadPart):
    """Reads a part, and leaves the acknowledging to the runner's finalizer.

    A runner that has no finalizers never acknowledges: messages come again, and are passed on once by each reader.
    Those of the bundle with which a schedule ends are left to the next run, whose windows are all later.
    """

    @beam.DoFn.unbounded_per_element()
    def process(  # pyright: ignore[reportIncompatibleMethodOverride] - Beam calls it, by the parameters' defaults
        self,
        element: int,
        # Beam gives this one by position and the two others by name
        finalizer: Any = beam.DoFn.BundleFinalizerParam,
        tracker: Any = beam.DoFn.RestrictionParam(),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        """Read what is there of one part, then hand the rest back."""
        yield from super().process(element, tracker, estimator)
        _, reader = self._readers.get(element, (None, None))
        receipt = reader.receipt() if isinstance(reader, Acknowledging) else None
        if receipt is not None:
            finalizer.register(receipt)


class ReadSubscription(ReadLive):
    """Read a feed whose messages are acknowledged."""

    reading: ClassVar[type[ReadPart]] = ReadAcknowledged


__all__ = ["Acknowledging", "ReadAcknowledged", "ReadSubscription", "coders"]
