#!/usr/bin/env bash
# Makes the topics that are not there: topics.sh HOST:PORT. It may be run again at any time.
set -euo pipefail
make() {
  "${KAFKA_BIN:-/opt/kafka/bin}/kafka-topics.sh" --bootstrap-server "$SERVER" --create --if-not-exists --topic "$@"
}
SERVER=${1:?give HOST:PORT of a broker}

# Kept for 21 days: twice the window of 7 days, and 7 days for the longest outage of the job, which reads them again when
# it begins anew.
make readings --partitions 6 --replication-factor 1 --config retention.ms=1814400000
# A row's key is its release id: a compacted topic keeps one of each, for ever.
make releases --partitions 1 --replication-factor 1 --config cleanup.policy=compact
make rejects --partitions 1 --replication-factor 1 --config retention.ms=604800000
