#!/usr/bin/env bash
# Creates .venv and installs Braided into it, editable, with the versions of constraints.txt.
# `venv.sh 4.1.4` does the same in .venv-4.1.4, with that PySpark and otherwise these versions.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
spark=${1:-}
venv=.venv${spark:+-$spark}

die() { printf '%s\n' "$@" >&2; exit 1; }

command -v "$python" >/dev/null ||
  die "Braided needs Python 3.11 or newer, and there is no '$python' here." \
      "Install one, or name it: make setup PYTHON=/path/to/python3.11"

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  die "Braided needs Python 3.11 or newer; '$python' is $("$python" -V 2>&1)." \
      "Name a newer one: make setup PYTHON=/path/to/python3.11"

# One whose interpreter has gone, or that is half made, is made again.
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  echo "Creating $venv with $("$python" -V)"
  "$python" -m venv --clear "$venv" ||
    die "Python can't create a virtual environment." \
        "On Debian and Ubuntu: apt-get install python3-venv, then 'make setup' again."
fi

# The first time is long, so say what arrives; afterwards there is nothing to say.
echo "Installing Braided and what it needs into $venv (the first time takes some minutes)"
constraints=$venv/constraints.txt
sed "${spark:+s/^pyspark==.*/pyspark==$spark/}" constraints.txt >"$constraints"
scripts/tries.sh 900 \
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off \
  -c "$constraints" -e '.[dev,bench]' |
  awk '
    # "  Downloading https://.../numpy-2.4.6-cp311-....whl (16.9 MB)" becomes "  numpy 2.4.6 (16.9 MB)"
    / *Downloading .*\)$/ && !/\.metadata / {
      file = $2; sub(/.*\//, "", file); sub(/\.(whl|tar\.gz|zip)$/, "", file)
      split(file, part, "-"); sub(/.*\(/, "(")
      print "  " part[1], part[2], $0; fflush()
    }
    /^Installing collected/ { print "  unpacking"; fflush() }
  '

# Spark reads conf/ in its home before it says anything.
home=$("$venv/bin/python" -c 'import pyspark; print(pyspark.__path__[0])')
mkdir -p "$home/conf"
cp scripts/spark-conf/* "$home/conf/"
