#!/usr/bin/env bash
# Installs what tests and benchmarks on S3 need: a server (versitygw, built with Go) and the jars
# with which each Spark reaches it (hadoop-aws and its kin, with Maven). What is there is left alone.
set -euo pipefail

VERSITYGW=v1.8.0
# Of each Hadoop that a Spark brings, and of what its hadoop-aws was built with: the AWS SDK and the
# analytics accelerator.
HADOOPS=(
  3.5.0:2.35.4:1.3.1  # Spark 4.2 and 4.3
  3.4.2:2.29.52:1.2.1 # Spark 4.1
)
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cache="${BRAIDED_CACHE:-$HOME/.cache/braided}"

if [[ ! -x "$cache/bin/versitygw" ]]; then
  command -v go > /dev/null || { echo "s3.sh: Go is needed to build the S3 server" >&2; exit 1; }
  echo "Building the S3 server (versitygw $VERSITYGW), about two minutes ..."
  mkdir -p "$cache/bin"
  GOBIN="$cache/bin" go install "github.com/versity/versitygw/cmd/versitygw@$VERSITYGW" \
    2> "$cache/versitygw.log" || { cat "$cache/versitygw.log" >&2; exit 1; }
fi

for versions in "${HADOOPS[@]}"; do
  IFS=: read -r hadoop aws accelerator <<< "$versions"
  jars="$cache/s3a-$hadoop"
  [[ -e "$jars/.done" ]] && continue
  command -v mvn > /dev/null || { echo "s3.sh: Maven is needed to get the jars" >&2; exit 1; }
  echo "Getting the jars for s3a:// with Hadoop $hadoop, about a minute ..."
  rm -rf "$jars"
  # What Spark brings along itself is left out.
  "$here/tries.sh" 300 mvn --quiet --batch-mode -Dstyle.color=never --file "$here/s3a-pom.xml" dependency:copy-dependencies \
    -Dhadoop.version="$hadoop" -Daws.version="$aws" -Daccelerator.version="$accelerator" \
    -DincludeScope=runtime -DoutputDirectory="$jars" \
    -DexcludeGroupIds=io.netty,org.slf4j,commons-codec,commons-logging
  touch "$jars/.done"
done
