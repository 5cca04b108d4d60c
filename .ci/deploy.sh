#!/usr/bin/env bash
# Checks the files of deploy/ with the tools that read them: hadolint, docker compose, Google's and Kubernetes' schemas,
# Terraform's grammar, systemd, Helm, Prometheus' own checker, pip's resolution of what the images install, and Beam's
# translation of the graphs for Dataflow. No container engine and no cluster is used.
#
# Google's emulator of Pub/Sub is in no list that is installed here: where it is missing its tests are skipped, and said.
#
# The tools and Beam's Google part have an environment of their own, in the cache; it is made anew when its list changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/quiltstream
mkdir -p "$CACHE"
export PIP_CACHE_DIR=$CACHE/pip PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=${PIP_QUIET:-1} PIP_COMPILE=0
unset PYTHONPATH VIRTUAL_ENV

LIST=.ci/deploy-tools.txt
UPPER=.ci/constraints-beam-2.77.txt
VENV=$CACHE/deploy-$(cat "$LIST" "$UPPER" .ci/deploy.sh | sha256sum | cut -c 1-16)

HELM_VERSION=3.16.4
HELM=$CACHE/helm-$HELM_VERSION

# Google's clients hold cachetools back.
CONSTRAINTS=$(mktemp)
trap 'rm -f "$CONSTRAINTS"' EXIT
grep -v '^cachetools==' "$UPPER" >"$CONSTRAINTS"
export PIP_CONSTRAINT=$CONSTRAINTS

# Debian's package holds promtool; it is only unpacked, so that no server begins to run.
unpack_promtool() {
  local folder
  folder=$(mktemp -d)
  if [ "$(id -u)" = 0 ]; then apt-get update -q; else sudo -n apt-get update -q; fi
  (cd "$folder" && apt-get download -q prometheus && dpkg-deb -x prometheus_*.deb .)
  install "$folder/usr/bin/promtool" "$VENV/bin/promtool"
  rm -r "$folder"
}

# It reads units without a systemd that runs.
install_systemd_analyze() {
  ! command -v systemd-analyze >/dev/null || return 0
  local root=()
  [ "$(id -u)" = 0 ] || root=(sudo -n)
  "${root[@]}" apt-get update -q
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends systemd
}

# Compiled from its Go module, as Prism is; Go's own caches are of use only if a build breaks off.
build_helm() {
  command -v go >/dev/null || { echo "Helm needs go: install a recent Go" >&2; exit 1; }
  local folder
  folder=$(mktemp -d "$CACHE/.helm-XXXXXX")
  GOBIN=$folder GOPATH=$CACHE/go-helm GOCACHE=$CACHE/go-helm/build GOFLAGS=-modcacherw CGO_ENABLED=0 \
    go install "helm.sh/helm/v3/cmd/helm@v$HELM_VERSION"
  rm -rf "$HELM" "$CACHE/go-helm"
  mv "$folder" "$HELM"
}

argument() {
  sed -n "s/^ARG $2=//p" "$1"
}

# What of pyproject.toml pip resolves.
requirements() {
  "$VENV/bin/python" - <<'END'
import json
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
print(json.dumps([project[name] for name in ("requires-python", "dependencies", "optional-dependencies")]))
END
}

# What the images install goes together, by pip's own resolution: nothing of it is installed. It is asked again when
# one of the files or a requirement changes.
resolve_images() {
  local dataflow=deploy/dataflow images=deploy/Dockerfile lower=.ci/constraints-beam-2.62.txt extras mark
  extras=$(sed -n "s/.* '\.\[\(.*\)\]'.*/\1/p" $images)
  mark=$CACHE/resolved-$({
    cat $dataflow/Dockerfile $dataflow/requirements.txt $images $lower "$UPPER" .ci/deploy.sh
    requirements
  } | sha256sum | cut -c 1-16)
  [ ! -e "$mark" ] || { echo "what the images install was resolved already"; return; }
  PIP_CONSTRAINT='' "$VENV/bin/pip" install --dry-run --ignore-installed \
    "apache-beam[gcp]==$(argument $dataflow/Dockerfile BEAM_VERSION)" --requirement $dataflow/requirements.txt
  # the words of the Dockerfile, behind its own constraints
  PIP_CONSTRAINT=$PWD/$lower "$VENV/bin/pip" install --dry-run --ignore-installed "apache-beam==2.62.0" ".[$extras]"
  PIP_CONSTRAINT=$PWD/$UPPER "$VENV/bin/pip" install --dry-run --ignore-installed \
    "apache-beam==$(argument $images BEAM_VERSION)" ".[$extras]"
  touch "$mark"
  echo "what the images install can be resolved"
}

# beside what pip does, which waits for the network
helm=
[ -x "$HELM/helm" ] || { build_helm & helm=$!; }
if [ ! -e "$VENV/.whole" ]; then
  rm -rf "$VENV"
  python3 -m venv "$VENV"
  "$VENV/bin/pip" install --requirement "$LIST" 'apache-beam[gcp]'
  command -v promtool >/dev/null || unpack_promtool
  touch "$VENV/.whole"
fi
# The package itself is this checkout's, whatever checkout made the environment; what it requires is brought up to date.
"$VENV/bin/pip" install --editable '.[test,gcp]' --config-settings editable_mode=strict
resolve_images
install_systemd_analyze
.ci/servers.sh kafka mosquitto
[ -z "$helm" ] || wait "$helm"
PATH=$HELM:$PATH QUILTSTREAM_TESTS=night QUILTSTREAM_REQUIRE_TOOLS=1 "$VENV/bin/pytest" -m "" -rs tests/deploy
