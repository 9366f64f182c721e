#!/usr/bin/env bash
# Runs the tests with the Python given first; what follows are arguments of pytest's.
#
# Tests wait for processes that start and end a good part of their time, so there is one process
# more than cores. Those of tests/cluster have a cluster of their own and come afterwards, in one
# process; a list of tests (@FILE) is run without them.
#
# With AGAIN=1, as in CI, up to eight tests that failed beside others run once more, with nothing
# beside them, and are named: what passes then had too little of the machine, and what fails again
# fails the run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$1
shift
cores=$(getconf _NPROCESSORS_ONLN)
failed=0
noted=.pytest_cache/v/cache/lastfailed
begun=$(mktemp)
[ -z "${AGAIN:-}" ] || rm -f "$noted"
trap 'rm -f "$begun"' EXIT

# Notes the worst of pytest's exit codes. 5 says that of the tests picked none is in this part; 1 of
# a pytest that did not note what failed, that it was cut off.
part() {
  local code=0
  touch "$begun"
  "$python" -m pytest "$@" || code=$?
  if ((code == 1)) && ! [ "$noted" -nt "$begun" ]; then code=3; fi
  if ((code == 5 && picked)); then code=0; fi
  if ((code > failed)); then failed=$code; fi
}

picked=$(($# > 0))
part -n "$((cores < 4 ? cores + 1 : 4))" --dist worksteal --ignore=tests/cluster "$@"
case "${1:-}" in
  @*) ;;
  *) part tests/cluster "$@" ;;
esac

# Those on the cluster again in a process of their own: it can't have two Sparks.
if ((failed == 1)) && [ -n "${AGAIN:-}" ]; then
  mapfile -t again < <("$python" -c 'import json; print(*json.load(open("'"$noted"'")), sep="\n")')
  if ((${#again[@]} > 0 && ${#again[@]} <= 8)); then
    printf '\nFailed beside others, and run once more, alone:\n'
    printf '  %s\n' "${again[@]}"
    here=() cluster=()
    for test in "${again[@]}"; do
      if [[ $test == tests/cluster/* ]]; then cluster+=("$test"); else here+=("$test"); fi
    done
    failed=0 picked=0
    if ((${#here[@]} > 0)); then part "${here[@]}"; fi
    if ((${#cluster[@]} > 0)); then part "${cluster[@]}"; fi
  fi
fi
exit "$failed"
