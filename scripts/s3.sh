#!/usr/bin/env bash
# Installs what tests and benchmarks on S3 need: a server (versitygw, built with Go) and the jars
# with which Spark reaches it (hadoop-aws and its kin, with Maven). What is there is left alone.
set -euo pipefail

VERSITYGW=v1.8.0
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cache="${BRAIDED_CACHE:-$HOME/.cache/braided}"

if [[ ! -x "$cache/bin/versitygw" ]]; then
  command -v go > /dev/null || { echo "s3.sh: Go is needed to build the S3 server" >&2; exit 1; }
  echo "Building the S3 server (versitygw $VERSITYGW), about two minutes ..."
  mkdir -p "$cache/bin"
  GOBIN="$cache/bin" go install "github.com/versity/versitygw/cmd/versitygw@$VERSITYGW" \
    2> "$cache/versitygw.log" || { cat "$cache/versitygw.log" >&2; exit 1; }
fi

if [[ ! -e "$cache/s3a/.done" ]]; then
  command -v mvn > /dev/null || { echo "s3.sh: Maven is needed to get the jars" >&2; exit 1; }
  echo "Getting the jars for s3a://, about a minute ..."
  rm -rf "$cache/s3a"
  # What Spark brings along itself is left out.
  mvn --quiet --batch-mode --file "$here/s3a-pom.xml" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$cache/s3a" \
    -DexcludeGroupIds=io.netty,org.slf4j,commons-codec,commons-logging
  touch "$cache/s3a/.done"
fi
