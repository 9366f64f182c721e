#!/usr/bin/env bash
# Gets what the tests on HDFS need: Hadoop's own servers, in one jar, with Maven.
set -euo pipefail

HADOOP=3.5.0
cache="${BRAIDED_CACHE:-$HOME/.cache/braided}"

if [[ ! -e "$cache/hdfs/hadoop-client-minicluster-$HADOOP.jar" ]]; then
  command -v mvn > /dev/null || { echo "hdfs.sh: Maven is needed to get the jar" >&2; exit 1; }
  echo "Getting Hadoop's servers, about a minute ..."
  mvn --quiet --batch-mode -Dstyle.color=never dependency:copy -Dmdep.useBaseVersion=true \
    -Dartifact="org.apache.hadoop:hadoop-client-minicluster:$HADOOP" \
    -DoutputDirectory="$cache/hdfs"
fi
