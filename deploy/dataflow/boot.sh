#!/bin/sh
# What a worker's container starts with: the ledger's password first, then Beam's own boot program.
set -eu
python /template/ledger_password.py
exec /opt/apache/beam/boot "$@"
