"""A throw-away Prometheus for the end-to-end tests, with the rules and the scrapes that are shipped."""

from __future__ import annotations

import json
import os
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from .installed import NotInstalledError, installed
from .processes import Processes, free_ports

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"

START_SECONDS = 60

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def find_prometheus() -> Path:
    """The program that ``.ci/servers.sh prometheus`` unpacked.

    Raises:
        NotInstalledError: there is none.
    """
    program = installed("prometheus").folder / "prometheus"
    if not os.access(program, os.X_OK):
        raise NotInstalledError("Prometheus is not there (run `.ci/servers.sh prometheus`)")
    return program


class Prometheus:
    """A server that scrapes every second what the shipped configuration names, at other places.

    Args:
        program: the server's.
        targets: the places of each shipped scrape by its name; those without one are left out, as by an operator who
            has no such thing.
    """

    def __init__(self, program: Path, targets: Mapping[str, Sequence[str]]) -> None:
        self._processes = Processes("prometheus")
        (self._port,) = free_ports(1)
        shipped = yaml.safe_load((SHIPPED / "prometheus.yml").read_text(encoding="utf-8"))
        shipped["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        shipped["rule_files"] = [str(SHIPPED / "rules.yml")]
        kept = [one for one in shipped["scrape_configs"] if one["job_name"] in targets]
        assert {one["job_name"] for one in kept} == set(targets)
        for one in kept:
            one["static_configs"] = [{"targets": list(targets[one["job_name"]])}]
            one.pop("scrape_interval", None)
            one.pop("scrape_timeout", None)
        shipped["scrape_configs"] = kept
        settings = self._processes.folder / "prometheus.yml"
        settings.write_text(yaml.safe_dump(shipped), encoding="utf-8")
        self._command = [
            program,
            f"--config.file={settings}",
            f"--storage.tsdb.path={self._processes.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._processes.start("prometheus", self._command)
        self._processes.wait_for("prometheus", "is ready", self._ready, START_SECONDS)

    def _ready(self) -> bool:
        """It listens before it has read its log, and has no answer until then."""
        try:
            with _DIRECT.open(f"http://127.0.0.1:{self._port}/-/ready", timeout=30) as answer:
                return answer.status == HTTPStatus.OK
        except OSError:
            return False

    def close(self) -> None:
        """End it and remove its files."""
        self._processes.close()

    def values(self, expression: str) -> list[float]:
        """What an expression says now."""
        found = self._asked("/api/v1/query", query=expression)
        return [float(one["value"][1]) for one in found["result"]]

    def up(self) -> bool:
        """Whether every place was scraped, at the last scrape."""
        places = self._asked("/api/v1/targets", state="active")["activeTargets"]
        return all(one["health"] == "up" for one in places)

    def wrong_rules(self) -> dict[str, str]:
        """The rules that were evaluated and could not be, and why not; those not evaluated yet too."""
        return {
            one["name"]: one["lastError"] if "lastError" in one else one["health"]
            for one in self._rules()
            if one["health"] != "ok"
        }

    def alerts(self, *states: str) -> set[str]:
        """The alerts in some states: ``firing``, ``pending``."""
        return {one["name"] for one in self._rules() if one["state"] in states}

    def _rules(self) -> list[Any]:
        return [one for group in self._asked("/api/v1/rules")["groups"] for one in group["rules"]]

    def _asked(self, path: str, **words: str) -> Any:
        with _DIRECT.open(f"http://127.0.0.1:{self._port}{path}?{urllib.parse.urlencode(words)}", timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]
