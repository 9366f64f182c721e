#!/usr/bin/env bash
# Installs Delta Lake for Spark 4.2, with Maven: the test that reads and writes tables with it runs
# there (make test-spark SPARK=4.2.1), as there is none for Spark 4.3 yet. What is there is left
# alone.
set -euo pipefail

JARS=(
  io.delta:delta-spark_4.2_2.13:4.4.0
  io.delta:delta-storage:4.4.0
)
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cache="${BRAIDED_CACHE:-$HOME/.cache/braided}/delta-4.2"

[[ -e "$cache/.done" ]] && exit
command -v mvn > /dev/null || { echo "delta.sh: Maven is needed to get the jars" >&2; exit 1; }
rm -rf "$cache"
for jar in "${JARS[@]}"; do
  "$here/tries.sh" 300 mvn --quiet --batch-mode -Dstyle.color=never dependency:copy \
    -Dartifact="$jar" -DoutputDirectory="$cache"
done
touch "$cache/.done"
