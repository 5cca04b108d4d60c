"""Real servers for the end-to-end tests, and which of these tests a push runs.

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
from .postgres import PostgresServer, find_binaries
from .prism import find_prism, prism_arguments
from .prometheus import find_prometheus
from .registry import find_registry

if TYPE_CHECKING:
    from .live_bench import Bench

HERE = Path(__file__).parent

#: What a push runs, in a minute and a half: kills of the gateway, the whole way from MQTT by Kafka and Flink to Kafka
#: with kills, a job on Prism that is killed and resumes, faults of the ledger's server, TLS, and what a killed command
#: leaves behind. The rest runs at night.
SMOKE = (
    "test_gateway.py::test_a_gateway_killed_and_a_broker_restarted_under_load_lose_nothing[3-1-6000]",
    "test_kafka_tls.py::test_readings_and_rows_are_transferred_by_tls_without_leaking_the_password",
    "test_live_prism.py::TestPrism::test_a_job_killed_twice_resumes_from_the_ledger_alone",
    "test_orphans.py::test_a_command_killed_alone_leaves_no_process_on_prism[3-1]",
    "test_postgres_faults.py::test_a_connection_that_is_refused_is_waited_for_only_where_that_may_pass",
    "test_postgres_faults.py::test_a_server_restarted_inside_a_transaction_undoes_it_and_a_retry_completes",
    "test_postgres_store.py::test_jobs_that_register_queries_of_new_and_known_domains_at_once_all_succeed",
    "test_whole_way.py",
)

#: Files that begin, so that none is left to run alone: the longest first.
LONGEST = tuple(
    f"test_{name}.py"
    for name in ("live_flink", "random_actions", "live_prism", "live_postgres", "flink_deployment", "flink_cancel")
)

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
            if item.nodeid.removeprefix("tests/e2e/").startswith(SMOKE):
                item.add_marker(pytest.mark.smoke)
            if not asked:
                item.add_marker(pytest.mark.skip(reason="needs a real server: run it with `.ci/run e2e`"))

    def rank(item: pytest.Item) -> int:
        first = {name: at for at, name in enumerate(LONGEST)}
        return first.get(item.path.name, len(first)) if HERE in item.path.parents else -1

    items.sort(key=rank)


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

    def start(settings: dict[str, Any], ready: str = "subscribed to") -> GatewayProcess:
        made.append(GatewayProcess(settings))
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
