"""The order of the end-to-end tests, and the list of those that run on a push, name what is there."""

from __future__ import annotations

from ..e2e.order import LONGEST, SMOKE, is_smoke, rank
from .tree import ROOT


def test_the_longest_test_files_exist_and_run_first() -> None:
    names = [path.name for path in sorted((ROOT / "tests" / "e2e").glob("test_*.py"))]
    assert set(LONGEST) <= set(names)
    assert sorted(names, key=rank)[: len(LONGEST)] == list(LONGEST)


def test_every_test_listed_for_a_push_exists() -> None:
    for one in SMOKE:
        file, *inner = one.split("[")[0].split("::")
        text = (ROOT / "tests" / "e2e" / file).read_text(encoding="utf-8")
        # a test of a contract stands in the file that its class inherits from
        for name in inner[:1] if len(inner) == 2 else inner:
            assert f"def {name}(" in text or f"class {name}(" in text, one
        if len(inner) == 2:
            contract = (ROOT / "tests" / "e2e" / "live_contract.py").read_text(encoding="utf-8")
            assert f"def {inner[1]}(" in contract, one


def test_a_test_runs_on_a_push_by_its_whole_name() -> None:
    assert is_smoke("test_kafka_tls.py::test_a_client")
    assert is_smoke(f"{SMOKE[0]}[a parameter]")
    assert not is_smoke(f"{SMOKE[0]}_and_more")
    assert not is_smoke("test_kafka_flink.py::test_a")
