#!/usr/bin/env bash
# Checks the files of deploy/ with the tools that read them: hadolint, docker compose, Google's and Kubernetes' schemas,
# Terraform's grammar, Prometheus' own checker, and Beam's translation of the graphs for Dataflow. No container engine
# and no cluster is used.
#
# The tools and Beam's Google part have an environment of their own, in the cache; it is made anew when its list changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/quiltstream
mkdir -p "$CACHE"
export PIP_CACHE_DIR=$CACHE/pip PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=${PIP_QUIET:-1}
unset PYTHONPATH VIRTUAL_ENV

LIST=.ci/deploy-tools.txt
UPPER=.ci/constraints-beam-2.77.txt
VENV=$CACHE/deploy-$(cat "$LIST" "$UPPER" pyproject.toml .ci/deploy.sh | sha256sum | cut -c 1-16)

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

if [ ! -e "$VENV/.whole" ]; then
  rm -rf "$VENV"
  python3 -m venv "$VENV"
  "$VENV/bin/pip" install --requirement "$LIST" 'apache-beam[gcp]'
  command -v promtool >/dev/null || unpack_promtool
  touch "$VENV/.whole"
fi
# The package itself is this checkout's, whatever checkout made the environment.
"$VENV/bin/pip" install --editable '.[test,gcp]' --config-settings editable_mode=strict
.ci/servers.sh kafka mosquitto
QUILTSTREAM_REQUIRE_TOOLS=1 "$VENV/bin/pytest" tests/deploy
