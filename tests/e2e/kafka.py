"""A Kafka broker of the tests' own: one process with its controller, which can be killed and started again.

It listens on the loopback address only: once in the open, where everybody may do everything; once for users with
passwords (SASL/PLAIN), who may do what they were given the right to; and if asked, by TLS as well: once for whoever has
a certificate of its authority, and once for users with passwords (SASL/SCRAM-SHA-512).
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from .certificates import make_certificates
from .installed import NotInstalledError, installed
from .processes import Processes, accepts, free_ports

USER, PASSWORD = "meters", "a-secret-of-the-tests"

#: Has the same password, and no right to anything.
STRANGER = "stranger"

#: A broker that was killed is let in again when its old session has lapsed: short here, but it has taken 15 s.
_READY_S = 60.0

_LOGGING = """\
rootLogger.level=WARN
rootLogger.appenderRef.c.ref=C
appender.c.name=C
appender.c.type=Console
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=%d %-5p %c{1} - %m%n
"""


def find_kafka() -> Path:
    """The folder of the broker's jars.

    Raises:
        NotInstalledError: it is not there, or there is no Java, or not its client.
    """
    if importlib.util.find_spec("confluent_kafka") is None:
        raise NotInstalledError("confluent-kafka is not installed: pip install 'quiltstream[kafka]'")
    folder = installed("kafka").folder
    if not folder.is_dir():
        raise NotInstalledError("Kafka is not there (run `.ci/servers.sh kafka`)")
    if shutil.which("java") is None:
        raise NotInstalledError("Kafka needs Java 17, which is not on the path")
    return folder


class KafkaBroker:
    """A broker with nothing in it yet; :meth:`start` starts it.

    Args:
        jars: its programs.
        tls: whether it listens by TLS as well; the certificates, and the client's key with its password, are in
            :attr:`folder`.
    """

    def __init__(self, jars: Path, *, tls: bool = False) -> None:
        self._processes = Processes("kafka")
        self.folder = self._processes.folder
        self._port, self._sasl_port, controller, tls_port, scram_port = free_ports(5)
        self.servers = f"127.0.0.1:{self._port}"
        self.sasl_servers = f"127.0.0.1:{self._sasl_port}"
        self.tls_servers = f"127.0.0.1:{tls_port}"
        self.scram_servers = f"127.0.0.1:{scram_port}"
        settings = self.folder / "server.properties"
        told = _settings(self.folder, self._port, self._sasl_port, controller)
        users: list[str] = []
        if tls:
            make_certificates(self.folder, USER, PASSWORD)
            told = _with_tls(told, self.folder, tls_port, scram_port)
            users = [f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"]
        settings.write_text(told, encoding="ascii")
        (self.folder / "log4j2.properties").write_text(_LOGGING, encoding="ascii")
        java = ["java", "-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        self._java = [*java, f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}", "-cp", f"{jars}/*"]
        self._settings = str(settings)
        format_ = ["kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", self._settings]
        self._processes.run(
            "format", [*self._java, *format_, *(word for one in users for word in ("--add-scram", one))]
        )

    def start(self) -> None:
        """Start it, or start it again, and wait until it answers."""
        self._processes.start("broker", [*self._java, "kafka.Kafka", self._settings])
        self._processes.wait_for("broker", "answers", self._answers, _READY_S)

    def kill(self) -> None:
        """End it at once (``kill -9``)."""
        self._processes.kill("broker")

    def hang(self) -> None:
        """Have it do nothing, with all its connections standing (``kill -STOP``)."""
        os.killpg(self._processes.pid("broker"), signal.SIGSTOP)

    def go_on(self) -> None:
        """Have it go on after that."""
        os.killpg(self._processes.pid("broker"), signal.SIGCONT)
        self._processes.wait_for("broker", "answers", self._answers, _READY_S)

    @property
    def runs(self) -> bool:
        """Whether it runs."""
        return self._processes.runs("broker")

    def close(self) -> None:
        """End it and remove its files."""
        self._processes.close()

    def topic(self, partitions: int = 3, name: str | None = None, **settings: str) -> str:
        """A new topic that the broker knows of; dots in the names of settings are underscores."""
        name = f"t-{uuid.uuid4().hex[:12]}" if name is None else name
        config = {key.replace("_", "."): value for key, value in settings.items()}
        admin = self.admin()
        admin.create_topics([_admins().NewTopic(name, partitions, 1, config=config)])[name].result(20)
        # its controller had it; the broker itself hears of it a moment later
        _until(lambda: len(admin.list_topics(name, timeout=20).topics[name].partitions) == partitions)
        return name

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        admin = self.admin()
        admin.create_partitions([_admins().NewPartitions(topic, partitions)])[topic].result(20)

    def set(self, topic: str, setting: str, value: str) -> None:
        """Change a setting of a topic."""
        admins = _admins()
        entry = admins.ConfigEntry(setting, value, incremental_operation=admins.AlterConfigOpType.SET)
        changed = admins.ConfigResource(admins.ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = self.admin()
        admin.incremental_alter_configs([changed])[changed].result(20)

    def allow(self, user: str, topic: str, right: str) -> None:
        """Give a user a right to a topic, and wait until the broker knows of it."""
        admins, admin = _admins(), self.admin()
        exact, permission = admins.ResourcePatternType.LITERAL, admins.AclPermissionType.ALLOW
        told = (admins.ResourceType.TOPIC, topic, exact, f"User:{user}", "*", admins.AclOperation[right], permission)
        rule = admins.AclBinding(*told)
        admin.create_acls([rule])[rule].result(20)
        _until(lambda: admin.describe_acls(admins.AclBindingFilter(*told)).result(20))

    def settings(self, topic: str) -> dict[str, str]:
        """The settings of a topic."""
        asked = _admins().ConfigResource(_admins().ResourceType.TOPIC, topic)
        admin = self.admin()  # its answers end with it
        told = admin.describe_configs([asked])[asked].result(20)
        return {name: entry.value for name, entry in told.items()}

    def admin(self) -> Any:
        """An administrator's client."""
        return _admins().AdminClient({"bootstrap.servers": self.servers})

    def send(self, topic: str, messages: Iterable[tuple[int, bytes | None]], **options: Any) -> None:
        """Send (partition, value) pairs in their order, and wait until the broker has them."""
        from confluent_kafka import Producer  # noqa: PLC0415 - an extra

        given = {"linger.ms": 5, "enable.idempotence": True, "message.max.bytes": 20_000_000} | options
        producer = Producer({"bootstrap.servers": self.servers, **given})
        failed: list[str] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(error.name())

        for partition, value in messages:
            while True:
                try:
                    producer.produce(topic, value, partition=partition, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0
        assert not failed, failed[:3]

    def read(self, topic: str) -> list[Any]:
        """Everything in a topic now, as confluent-kafka's messages."""
        from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 - an extra

        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "reader"})
        try:
            partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
            places = [TopicPartition(topic, one) for one in partitions]
            bounds = {one.partition: consumer.get_watermark_offsets(one, timeout=20) for one in places}
            left = {one for one, (low, high) in bounds.items() if low < high}
            consumer.assign([TopicPartition(topic, one, bounds[one][0]) for one in sorted(bounds)])
            found: list[Any] = []
            while left:
                for message in consumer.consume(1000, 1.0):
                    assert message.error() is None, message.error()
                    found.append(message)
                for place in consumer.position([TopicPartition(topic, one) for one in left]):
                    if place.offset >= bounds[place.partition][1]:
                        left.discard(place.partition)
            return found
        finally:
            consumer.close()

    def committed(self, group: str, topic: str) -> list[tuple[int, int]]:
        """What a consumer group has committed of each partition of a topic, below 0 for nothing; and where it ends."""
        from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 - an extra

        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group, "enable.auto.commit": False})
        try:
            partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
            places = [TopicPartition(topic, one) for one in sorted(partitions)]
            ends = [consumer.get_watermark_offsets(one, timeout=20)[1] for one in places]
            kept = [one.offset for one in consumer.committed(places, timeout=20)]
            return list(zip(kept, ends, strict=True))
        finally:
            consumer.close()

    def rows(self, topic: str) -> dict[str, dict[str, Any]]:
        """The JSON values in a topic by their keys, the last of each key, as a compacted topic keeps them."""
        return {one.key().decode(): json.loads(one.value()) for one in self.read(topic) if one.value() is not None}

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException  # noqa: PLC0415 - an extra

        if not accepts(self._port):
            return False
        admin = self.admin()
        try:
            return bool(admin.list_topics(timeout=2).brokers)
        except KafkaException:
            return False


def _admins() -> Any:
    """What administrators have of the library, which is an extra."""
    return import_module("confluent_kafka.admin")


def _until(true: Callable[[], Any]) -> None:
    """Wait until something holds."""
    until = time.monotonic() + _READY_S
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def _cluster_id() -> str:
    """A Kafka cluster's id: a UUID in the alphabet of URLs."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "x")


def _settings(folder: Path, port: int, sasl_port: int, controller: int) -> str:
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    return f"""\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config={login} user_{USER}="{PASSWORD}" user_{STRANGER}="{PASSWORD}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:{USER}
log.dirs={folder}/data
log.retention.ms=-1
message.max.bytes=20000000
replica.fetch.max.bytes=20000000
log.cleaner.backoff.ms=200
offsets.topic.num.partitions=3
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=3
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=3
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=300
"""


def _with_tls(settings: str, folder: Path, port: int, scram_port: int) -> str:
    """Settings with two more listeners: for whom the tests' authority vouches, and for users with passwords."""
    store = folder / "keystore.pem"
    store.write_text(
        (folder / "broker.key").read_text(encoding="ascii") + (folder / "broker.pem").read_text(encoding="ascii"),
        encoding="ascii",
    )
    for what in ("listeners=", "advertised.listeners="):
        settings = settings.replace(f"\n{what}", f"\n{what}SSL://127.0.0.1:{port},SASL_SSL://127.0.0.1:{scram_port},")
    settings = settings.replace("security.protocol.map=", "security.protocol.map=SSL:SSL,SASL_SSL:SASL_SSL,")
    settings = settings.replace("super.users=", f"super.users=User:CN={USER};")
    return f"""\
{settings}\
ssl.keystore.type=PEM
ssl.keystore.location={store}
ssl.truststore.type=PEM
ssl.truststore.location={folder / "ca.pem"}
listener.name.ssl.ssl.client.auth=required
listener.name.sasl_ssl.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
"""
