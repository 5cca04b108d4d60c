"""The contract of live jobs on Prism, Beam's local runner."""

from __future__ import annotations

from pathlib import Path

import pytest

from .live_contract import LiveContract
from .prism import prism_arguments


class TestPrism(LiveContract):
    def beam_options(self, request: pytest.FixtureRequest) -> list[str]:
        binary: Path = request.getfixturevalue("prism")
        return prism_arguments(binary)
