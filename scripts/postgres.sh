#!/usr/bin/env bash
# Installs PostgreSQL for the tests that need a real one, with Debian's packages. What is there is
# left alone. The tests start a server of their own; none is left running by the installation.
set -euo pipefail

compgen -G '/usr/lib/postgresql/*/bin/initdb' > /dev/null && exit
command -v initdb > /dev/null && exit
command -v apt-get > /dev/null || { echo "postgres.sh: there is no apt-get to install PostgreSQL with" >&2; exit 1; }
[[ $EUID -eq 0 ]] || { echo "postgres.sh: only root can install PostgreSQL" >&2; exit 1; }
echo "Installing PostgreSQL, about a minute ..."
export DEBIAN_FRONTEND=noninteractive
waits=(-o Acquire::Retries=3 -o DPkg::Lock::Timeout=120)
apt-get "${waits[@]}" update -qq
# Without a cluster of its own, which the package would make and start.
mkdir -p /etc/postgresql-common/createcluster.d
echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.d/braided.conf
apt-get "${waits[@]}" install -qq -y --no-install-recommends postgresql > /dev/null
