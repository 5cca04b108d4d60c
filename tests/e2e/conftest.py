"""Real servers for the end-to-end tests.

The tests of this folder run when they are asked for (``-m e2e``, as ``.ci/run e2e`` does). A server that is missing
is then a skip that says why, or a failure where QUILTSTREAM_REQUIRE_SERVERS is 1, as it is in CI.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pytest

from .flink import FlinkCluster, FlinkPrograms, find_flink
from .gateway_job import GatewayProcess, Start
from .installed import NotInstalledError
from .kafka import KafkaBroker, find_kafka
from .mosquitto import MosquittoBroker, find_mosquitto
from .order import is_smoke, rank
from .postgres import PostgresServer, find_binaries
from .prism import find_prism, prism_arguments
from .prometheus import find_prometheus
from .registry import find_registry

if TYPE_CHECKING:
    from .live_bench import Bench

HERE = Path(__file__).parent

T = TypeVar("T")

# shared tests that fail should say with which values
pytest.register_assert_rewrite(*(f"{__package__}.{name}" for name in ("live_contract", "live_bench")))


def servers_required() -> bool:
    """Whether a missing server is a failure."""
    return os.environ.get("QUILTSTREAM_REQUIRE_SERVERS") == "1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark everything here as end-to-end, and what runs on a push; skip it, with a reason, unless asked for."""
    asked = servers_required() or "e2e" in str(config.option.markexpr)
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if is_smoke(item.nodeid.removeprefix("tests/e2e/")):
                item.add_marker(pytest.mark.smoke)
            if not asked:
                item.add_marker(pytest.mark.skip(reason="needs a real server: run it with `.ci/run e2e`"))
    items.sort(key=lambda item: rank(item.path.name) if HERE in item.path.parents else -1)


def missing(what: str) -> NoReturn:
    """Skip, or fail where servers are required."""
    if servers_required():
        pytest.fail(f"{what}, and QUILTSTREAM_REQUIRE_SERVERS is 1")
    pytest.skip(what)


def there(find: Callable[[], T]) -> T:
    """What is installed; where it is not, as :func:`missing`."""
    try:
        return find()
    except NotInstalledError as error:
        missing(str(error))


@pytest.fixture(scope="session")
def postgres_binaries() -> Path:
    """The folder of PostgreSQL's programs."""
    return there(find_binaries)


@pytest.fixture(scope="session")
def postgres_server(postgres_binaries: Path) -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test process's own; ``kill()`` and ``start()`` make it crash and recover."""
    server = PostgresServer(postgres_binaries)
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """The address of the running server's database, which tests share: use a schema or names of your own."""
    if postgres_server.pid is None:
        postgres_server.start()
    return postgres_server.url


@pytest.fixture(scope="session")
def prism() -> Path:
    """The Prism binary; ``prism_arguments()`` are Beam's options that use it."""
    return there(find_prism)


@pytest.fixture(scope="session")
def prometheus_program() -> Path:
    """Prometheus' program."""
    return there(find_prometheus)


@pytest.fixture
def bench_kind() -> type[Bench]:
    """The kind of ``bench``; a module with one of its own has another fixture of this name."""
    from .live_bench import Bench  # noqa: PLC0415 - after its asserts were registered above

    return Bench


@pytest.fixture
def bench(tmp_path: Path, prism: Path, bench_kind: type[Bench]) -> Iterator[Bench]:
    """An empty place for jobs on Prism; whatever was started in it is ended."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    made = bench_kind(tmp_path / "job", prism_arguments(prism), {"TMPDIR": str(temporary)})
    yield made
    made.close()


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """The jars of Kafka's broker."""
    return there(find_kafka)


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path) -> Iterator[KafkaBroker]:
    """A running broker of this test module's own; tests have topics of their own in it, and leave it running."""
    broker = KafkaBroker(kafka_jars)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="session")
def registry_program() -> Path:
    """The schema registry's program."""
    return there(find_registry)


@pytest.fixture(scope="session")
def mosquitto_program() -> Path:
    """The MQTT broker's program."""
    return there(find_mosquitto)


@pytest.fixture
def mosquitto(mosquitto_program: Path) -> Iterator[MosquittoBroker]:
    """An MQTT broker of this test's own, with the configuration that is shipped; it can be killed and started again."""
    broker = MosquittoBroker(mosquitto_program)
    yield broker
    broker.close()


@pytest.fixture
def start_gateway() -> Iterator[Start]:
    """Starts gateways with settings of a test, and ends them with it."""
    made: list[GatewayProcess] = []

    def start(
        settings: dict[str, Any], ready: str = "subscribed to", files: dict[str, str] | None = None
    ) -> GatewayProcess:
        made.append(GatewayProcess(settings))
        for name, text in (files or {}).items():
            (made[-1].folder / name).write_text(text, encoding="utf-8")
        made[-1].start(ready)
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def flink_programs() -> FlinkPrograms:
    """What a Flink cluster is made of; ``embedded_arguments()`` are Beam's options for a Flink without a cluster."""
    return there(find_flink)


@pytest.fixture(scope="module")
def flink_cluster(flink_programs: FlinkPrograms) -> Iterator[FlinkCluster]:
    """A Flink cluster of this test module's own, with processes that can be killed and started."""
    cluster = FlinkCluster(flink_programs)
    yield cluster
    cluster.close()
