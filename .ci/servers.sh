#!/usr/bin/env bash
# Builds the servers of the streaming tests, once: what the cache has already is left alone.
#
#   .ci/servers.sh prism      Beam's local live runner, compiled from its Go module
#   .ci/servers.sh flink      the programs of a Flink cluster, its reporter for Prometheus, and Beam's job server for it
#   .ci/servers.sh kafka      Apache Kafka's broker, and its command line tools
#   .ci/servers.sh registry   Apicurio's schema registry, which speaks Confluent's interface
#   .ci/servers.sh prometheus Prometheus and its promtool, unpacked from the system's package (Debian's)
#   .ci/servers.sh mosquitto  the MQTT broker and its clients, as packages of the system (Debian's)
#   .ci/servers.sh --show     print the name, version and folder of each
#
# Each lands in <cache>/<name>-<version>, made in a temporary folder beside it and renamed when it is whole. The tests ask
# --show where to look. After a change to the pom delete the job server's folder: its name does not tell.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PRISM_VERSION=2.77.0
FLINK_VERSION=1.19.3
REPORTER_VERSION=1.19.1 # the newest for Flink 1.19 to be had
JOB_SERVER_VERSION=2.62.0 # the newest of which the Java parts for Flink 1.19 and the Python package are both to be had
KAFKA_VERSION=4.1.1
REGISTRY_VERSION=2.6.13.Final # the newest to be had that a Java 17 runs: 3.3 needs a 21
PROMETHEUS_VERSION=debian # whichever Debian has

CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/quiltstream
PRISM=$CACHE/prism-$PRISM_VERSION
FLINK=$CACHE/flink-$FLINK_VERSION
REPORTER=$CACHE/flink-reporter-$REPORTER_VERSION
JOB_SERVER=$CACHE/flink-job-server-$JOB_SERVER_VERSION
KAFKA=$CACHE/kafka-$KAFKA_VERSION
KAFKA_TOOLS=$CACHE/kafka-tools-$KAFKA_VERSION
REGISTRY=$CACHE/registry-$REGISTRY_VERSION
PROMETHEUS=$CACHE/prometheus-$PROMETHEUS_VERSION

need() {
  command -v "$1" >/dev/null || { echo "$2 needs $1, which is not on the path: $3" >&2; exit 1; }
}

scratch() {
  WORK=$(mktemp -d "$CACHE/.building-XXXXXX")
}

# Go's own caches are of use only if a build breaks off: the binary stands alone.
build_prism() {
  need go Prism "install a recent Go"
  scratch
  mkdir "$WORK/prism"
  GOBIN=$WORK/prism GOPATH=$CACHE/go GOCACHE=$CACHE/go/build GOFLAGS=-modcacherw CGO_ENABLED=0 \
    go install "github.com/apache/beam/sdks/v2/go/cmd/prism@v$PRISM_VERSION"
  "$WORK/prism/prism" -help >/dev/null 2>&1
  mv "$WORK/prism" "$PRISM"
  rm -r "$CACHE/go"
}

# Flink's jars come in the package that PyFlink takes them from; nothing of PyFlink itself is used, nor the table jars.
build_flink() {
  scratch
  python3 -m venv "$WORK/venv"
  "$WORK/venv/bin/pip" download --disable-pip-version-check --quiet --no-deps --no-binary apache-flink-libraries \
    --dest "$WORK" --requirement .ci/flink/requirements.txt
  tar -xzf "$WORK/apache-flink-libraries-$FLINK_VERSION.tar.gz" -C "$WORK"
  mkdir "$WORK/flink"
  mv "$WORK/apache-flink-libraries-$FLINK_VERSION/deps/lib"/{flink-dist,log4j}-*.jar "$WORK/flink/"
  mv "$WORK/flink" "$FLINK"
}

# Maven fills its repository at the first build of a pom and is kept off the network afterwards.
maven() {
  local pom=$1 filled offline=()
  filled=$CACHE/maven/filled-$(sha256sum "$pom" | cut -c 1-16)
  [ ! -e "$filled" ] || offline=(--offline)
  mvn --batch-mode --quiet -Dstyle.color=never --no-transfer-progress "${offline[@]}" --file "$pom" \
    "-Dmaven.repo.local=$CACHE/maven" "${@:2}"
  touch "$filled"
}

build_reporter() {
  need mvn "Flink's reporter" "install Maven 3.6 or newer, and a Java 11 or 17"
  scratch
  maven .ci/flink/reporter.xml "-Dreporter.version=$REPORTER_VERSION" \
    dependency:copy-dependencies "-DoutputDirectory=$WORK/reporter"
  mv "$WORK/reporter" "$REPORTER"
}

build_job_server() {
  need mvn "the Flink job server" "install Maven 3.6 or newer, and a Java 11 or 17"
  scratch
  maven .ci/flink/pom.xml "-Dbeam.version=$JOB_SERVER_VERSION" "-Dbuild.folder=$WORK/target" package
  mkdir "$WORK/job-server"
  mv "$WORK/target/flink-job-server.jar" "$WORK/job-server/"
  mv "$WORK/job-server" "$JOB_SERVER"
}

build_kafka() {
  need mvn "the Kafka broker" "install Maven 3.6 or newer, and a Java 17"
  scratch
  maven .ci/kafka/pom.xml "-Dkafka.version=$KAFKA_VERSION" \
    dependency:copy-dependencies "-DoutputDirectory=$WORK/kafka" -DincludeScope=runtime
  mv "$WORK/kafka" "$KAFKA"
}

build_kafka_tools() {
  need mvn "Kafka's tools" "install Maven 3.6 or newer, and a Java 17"
  scratch
  maven .ci/kafka/tools.xml "-Dkafka.version=$KAFKA_VERSION" dependency:copy-dependencies "-DoutputDirectory=$WORK/tools"
  mv "$WORK/tools" "$KAFKA_TOOLS"
}

build_registry() {
  need mvn "the schema registry" "install Maven 3.6 or newer, and a Java 17"
  scratch
  maven .ci/registry/pom.xml "-Dregistry.version=$REGISTRY_VERSION" \
    dependency:copy-dependencies "-DoutputDirectory=$WORK"
  mkdir "$WORK/registry"
  tar -xzf "$WORK/apicurio-registry-app-$REGISTRY_VERSION-all.tar.gz" -C "$WORK/registry"
  mv "$WORK/registry" "$REGISTRY"
}

# Only unpacked, so that no server of the system's own begins to run.
build_prometheus() {
  local root=()
  scratch
  if [ -z "$(apt-cache policy prometheus 2>/dev/null)" ]; then
    [ "$(id -u)" = 0 ] || root=(sudo -n)
    "${root[@]}" apt-get update -q
  fi
  (cd "$WORK" && apt-get download -q prometheus && dpkg-deb -x prometheus_*.deb unpacked)
  mkdir "$WORK/prometheus"
  mv "$WORK/unpacked/usr/bin/prometheus" "$WORK/unpacked/usr/bin/promtool" "$WORK/prometheus/"
  "$WORK/prometheus/prometheus" --version >/dev/null 2>&1
  mv "$WORK/prometheus" "$PROMETHEUS"
}

# The tests start brokers of their own: a service that the package may have begun is in nobody's way, but not wanted.
install_mosquitto() {
  if [ -n "$(PATH=$PATH:/usr/sbin command -v mosquitto)" ] && command -v mosquitto_pub >/dev/null; then
    echo "mosquitto is there"
    return
  fi
  local root=()
  [ "$(id -u)" = 0 ] || root=(sudo -n)
  "${root[@]}" apt-get update -q
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends mosquitto mosquitto-clients
  "${root[@]}" systemctl disable --now mosquitto 2>/dev/null || true
}

once() {
  local folder=$1 build=$2 began=$SECONDS
  [ ! -d "$folder" ] || { echo "$(basename "$folder") is there"; return; }
  WORK=
  "$build"
  rm -r "$WORK"
  WORK=
  echo "$(basename "$folder") built in $((SECONDS - began)) s, $(du -sh "$folder" | cut -f 1)"
}

WORK=
trap '[ -z "$WORK" ] || rm -rf "$WORK"' EXIT
if [ "${1:-}" = --show ]; then
  printf '%s %s %s\n' prism $PRISM_VERSION "$PRISM" flink $FLINK_VERSION "$FLINK" \
    reporter $REPORTER_VERSION "$REPORTER" job-server $JOB_SERVER_VERSION "$JOB_SERVER" kafka $KAFKA_VERSION "$KAFKA" \
    kafka-tools $KAFKA_VERSION "$KAFKA_TOOLS" registry $REGISTRY_VERSION "$REGISTRY" prometheus $PROMETHEUS_VERSION "$PROMETHEUS"
  exit
fi
[ $# -gt 0 ] || { echo "name what to build: prism, flink, kafka, registry, prometheus, mosquitto" >&2; exit 2; }

# Two builds at once would be in each other's way: the second waits, and finds the work done.
mkdir -p "$CACHE"
exec 9>"$CACHE/servers.lock"
flock 9
for name in "$@"; do
  case $name in
    prism) once "$PRISM" build_prism ;;
    flink)
      once "$FLINK" build_flink
      once "$REPORTER" build_reporter
      once "$JOB_SERVER" build_job_server
      ;;
    kafka)
      once "$KAFKA" build_kafka
      once "$KAFKA_TOOLS" build_kafka_tools
      ;;
    registry) once "$REGISTRY" build_registry ;;
    prometheus) once "$PROMETHEUS" build_prometheus ;;
    mosquitto) install_mosquitto ;;
    *) echo "no server is named '$name': prism, flink, kafka, registry, prometheus, mosquitto" >&2; exit 2 ;;
  esac
done
