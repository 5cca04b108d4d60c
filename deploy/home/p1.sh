#!/usr/bin/env bash
# Publishes the telegrams of a P1 cable, each as one message: p1.sh DEVICE SECONDS OPTIONS-OF-mosquitto_pub...
# A meter sends a telegram every second, or every ten; of these one in so many seconds is published.
set -euo pipefail
device=$1 every=$2
shift 2

# DSMR 4 and later; versions 2 and 3 have 9600 baud, 7 bits and even parity: P1_LINE="9600 cs7 parenb"
line() {
  # shellcheck disable=SC2086 # several words
  [ ! -t 0 ] || stty raw -echo ${P1_LINE:-115200}
  exec cat
}

# `read` is kept off the device: of a terminal it would turn carriage returns into line feeds, and the checksum be wrong
due=0
line <"$device" | while IFS= read -r -d '!' body && IFS= read -r checksum; do
  # of the first one the begin may be missing
  [[ $body == /* || $body == *$'\n/'* ]] && ((SECONDS >= due)) || continue
  due=$((SECONDS + every))
  printf '/%s!%s\n' "${body#*/}" "$checksum" | mosquitto_pub "$@" -s
done
