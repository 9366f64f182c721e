#!/usr/bin/env bash
# Installs what tests and benchmarks with Kafka need, with Maven: the jars of a broker, and those
# with which Spark reaches it. What is there is left alone.
set -euo pipefail

# Spark's connector: there is none of 4.3 yet, that of 4.2 works with it; and 4.1 needs its own.
CONNECTORS=(
  spark:org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0
  spark-4.1:org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3
)
# What they need; each is named by itself, because what Spark's own descriptions lead to can't be
# resolved everywhere.
SPARK_JARS=(
  org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1
  org.apache.kafka:kafka-clients:3.9.2
  org.apache.commons:commons-pool2:2.13.1
)
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cache="${BRAIDED_CACHE:-$HOME/.cache/braided}/kafka"

[[ -e "$cache/.done-2" ]] && exit
command -v mvn > /dev/null || { echo "kafka.sh: Maven is needed to get the jars" >&2; exit 1; }
echo "Getting the jars of Kafka and of Spark's connector, about a minute ..."
rm -rf "$cache"
"$here/tries.sh" 300 mvn --quiet --batch-mode -Dstyle.color=never --file "$here/kafka-pom.xml" dependency:copy-dependencies \
  -DincludeScope=runtime -DoutputDirectory="$cache/broker"
get() {  # a jar, into a directory
  "$here/tries.sh" 300 mvn --quiet --batch-mode -Dstyle.color=never dependency:copy \
    -Dartifact="$1" -DoutputDirectory="$2"
}
for connector in "${CONNECTORS[@]}"; do
  directory="$cache/${connector%%:*}"
  get "${connector#*:}" "$directory"
  for jar in "${SPARK_JARS[@]}"; do
    get "$jar" "$directory"
  done
done
touch "$cache/.done-2"
