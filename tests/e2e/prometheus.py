"""A throw-away Prometheus for the end-to-end tests, with the rules and the scrapes that are shipped."""

from __future__ import annotations

import json
import os
import re
import subprocess
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


_UNITS = {"s": 1, "m": 60, "h": 3600}

#: Rules that are as quick as they have to be: what they go by rises as seldom in a test as in a deployment.
AS_SHIPPED = frozenset({"QuiltstreamJobRestarts"})


def quicker(rules: Any, times: float) -> Any:
    """The shipped rules with every length of time so many times shorter, but for the rules in :data:`AS_SHIPPED`.

    Args:
        rules: the document.
        times: how many.
    """

    def shorter(found: re.Match[str]) -> str:
        return f"{max(1, round(int(found[1]) * _UNITS[found[2]] / times))}s"

    for rule in [one for group in rules["groups"] for one in group["rules"] if one["alert"] not in AS_SHIPPED]:
        for name in {"expr", "for"} & rule.keys():
            rule[name] = re.sub(r"\b(\d+)([smh])\b", shorter, rule[name])
        rule["expr"] = rule["expr"].replace("2 * 3600", str(7200 / times))
    return rules


class Prometheus:
    """A server that scrapes every second what the shipped configuration names, at other places.

    Args:
        program: the server's.
        targets: the places of each shipped scrape by its name; those without one are left out, as by an operator who
            has no such thing.
        hour: seconds that an hour of the rules takes.
    """

    def __init__(self, program: Path, targets: Mapping[str, Sequence[str]], *, hour: float = 3600.0) -> None:
        self._processes = Processes("prometheus")
        (self._port,) = free_ports(1)
        # the shipped file has the scrape of a live job as a comment, to be taken in
        text = (SHIPPED / "prometheus.yml").read_text(encoding="utf-8")
        text = text.replace("  # - job_name: live\n  #   static", "  - job_name: live\n    static")
        shipped = yaml.safe_load(text)
        shipped["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        rules = yaml.safe_load((SHIPPED / "rules.yml").read_text(encoding="utf-8"))
        (self._processes.folder / "rules.yml").write_text(yaml.safe_dump(quicker(rules, 3600 / hour)), encoding="utf-8")
        shipped["rule_files"] = ["rules.yml"]
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

    def recall(self, open_metrics: str) -> None:
        """Let it have scraped this before it starts: samples with their times, in the text of OpenMetrics."""
        file = self._processes.folder / "recorded.txt"
        file.write_text(open_metrics, encoding="utf-8")
        promtool = Path(self._command[0]).with_name("promtool")
        done = subprocess.run(
            [promtool, "tsdb", "create-blocks-from", "openmetrics", file, self._processes.folder / "data"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

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

    def over(self, expression: str, begin: float, end: float) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """What an expression says at each minute: labels, and instants with values, of every series."""
        found = self._asked("/api/v1/query_range", query=expression, start=f"{begin:.0f}", end=f"{end:.0f}", step="60s")
        return [
            (one["metric"], [(float(moment), float(value)) for moment, value in one["values"]])
            for one in found["result"]
        ]

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

    def fired(self, seconds: float) -> set[str]:
        """The alerts that fired at any time within the last seconds."""
        found = self._asked(
            "/api/v1/query",
            query=f'count by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{seconds:.0f}s]))',
        )
        return {one["metric"]["alertname"] for one in found["result"]}

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
