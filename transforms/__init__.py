"""Beam transforms: from a source's bytes to rows of record, and rows to a sink.

``private_histograms``, ``beam_yaml``, ``plan``, ``calibrating``
    the one composite transform, its form for Beam YAML, and the plan of a job: belief, noise, charges
``checks``, ``registration``, ``register``
    checks of a query that need no data, and the query put on record, with what settings leave to the readings: the
    first steps of a job
``sources``, ``kafka``, ``pubsub``
    where readings come from: files, standard input, other pipelines, topics, subscriptions
``formats``, ``payloads``, ``readings``
    bytes to columns: files, messages, and rows of files by a SELECT
``aggregate``
    readings to rows: encode, collect, charge, release
``completeness``, ``wall_clock``
    which windows a live source has read completely, and the clock that says so beside one that cannot
``sinks``, ``common``
    rows and rejects to files, folders and topics; record batches of readings and rejects
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..schemas.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .aggregate.transitions import EstimateTransitions as EstimateTransitions
    from .calibrating import model_of as model_of
    from .common.batches import ReadingsError as ReadingsError
    from .plan import Plan as Plan
    from .plan import make_plan as make_plan
    from .private_histograms import Histograms as Histograms
    from .private_histograms import PrivateHistograms as PrivateHistograms
    from .sinks import WriteRows as WriteRows
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
