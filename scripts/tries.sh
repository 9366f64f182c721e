#!/usr/bin/env bash
# Runs a command that reaches a package registry, and again where it failed or took too long: three
# times in all, with so many seconds for each: tries.sh 300 mvn ...
set -euo pipefail

seconds=$1
shift
for try in 1 2 3; do
  code=0
  timeout "$seconds" "$@" || code=$?
  ((code == 0)) && exit
  ((try == 3)) || { echo "Failed ($code), and tried again: $1 ${2:-}" >&2; sleep $((try * 5)); }
done
exit "$code"
