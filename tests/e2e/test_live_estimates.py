"""Live jobs on Prism that estimate their own model, and go on with another noise where the estimate has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from .estimates_contract import EstimatesContract
from .live_bench import Bench
from .prism import prism_arguments


class TestPrism(EstimatesContract):
    def new_bench(self, folder: Path, request: pytest.FixtureRequest) -> Bench:
        temporary = folder.with_name("temporary")
        temporary.mkdir()
        prism: Path = request.getfixturevalue("prism")
        return Bench(folder, prism_arguments(prism), {"TMPDIR": str(temporary)})
