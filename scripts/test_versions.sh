#!/usr/bin/env bash
# Runs the tests of tests/across_versions.txt on each PySpark that is named. Those of all of them run,
# and it fails if those of one did. A PySpark that can't be fetched here is named and left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Whether some index that pip looks at has it; one that is listed and can't be installed is an error.
is_listed() {
  "${PYTHON:-python3}" -m pip --disable-pip-version-check index versions pyspark 2> /dev/null |
    grep '^Available versions:' | tr ', ' '\n\n' | grep -xF "$1" > /dev/null
}

failed=0
for version in "$@"; do
  echo "== PySpark $version"
  if [[ ! -e .venv-$version/.installed ]] && ! is_listed "$version"; then
    echo "No index of Python packages that is reached from here has PySpark $version: left out"
    continue
  fi
  make --no-print-directory spark-venv SPARK="$version" &&
    scripts/tests.sh ".venv-$version/bin/python" @tests/across_versions.txt || failed=1
done
exit "$failed"
