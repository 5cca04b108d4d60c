"""The contract of live jobs on Prism, Beam's local runner."""

from __future__ import annotations

from pathlib import Path

import pytest

from .live_bench import Bench
from .live_contract import LiveContract
from .prism import prism_arguments


class OnPrism:
    """Jobs on Prism."""

    def new_bench(self, folder: Path, request: pytest.FixtureRequest) -> Bench:
        """A bench whose jobs run there."""
        binary: Path = request.getfixturevalue("prism")
        temporary = folder.with_name("temporary")
        temporary.mkdir()
        return Bench(folder, prism_arguments(binary), {"TMPDIR": str(temporary)})


class TestPrism(OnPrism, LiveContract):
    """All of it."""
