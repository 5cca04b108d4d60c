"""What tests of several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run live jobs by a runner that ends when their schedule does."""
    import apache_beam as beam  # noqa: PLC0415 - the gateway's tests do without
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner  # noqa: PLC0415 - as above

    from quiltstream.pipelines.live import job  # noqa: PLC0415 - as above

    def pipeline(options: PipelineOptions) -> beam.Pipeline:
        return beam.Pipeline(runner=FnApiRunner(), options=options)

    monkeypatch.setattr(job, "live_pipeline", pipeline)
