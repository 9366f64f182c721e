# Everything a person does with this repository; `make` alone lists it.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
PYTEST_ARGS ?=
CHAOS_FAULTS ?= 200
CHAOS_SEED ?=
CHAOS_TOGETHER ?= 3
BIN := .venv/bin
STAMP := .venv/.installed
INSTALLED_FROM := pyproject.toml constraints.txt scripts/venv.sh $(wildcard scripts/spark-conf/*)
SPARK ?=
OLDER_SPARKS := 4.1.4 4.2.1

# Compiled code is kept: without, each process that a test starts compiles every source anew, and
# pytest every test.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo cluster quick test test-spark test-versions spark-venv fuzz check bench s3 kafka hdfs cluster-tests s3-tests chaos clean

help:  ## Lists these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Creates .venv with everything in it and sees that Java 17 or newer is there
	@scripts/java.sh

$(STAMP): $(INSTALLED_FROM)
	@PYTHON='$(PYTHON)' scripts/venv.sh
	@touch $@

.venv-%/.installed: $(INSTALLED_FROM)
	@PYTHON='$(PYTHON)' scripts/venv.sh '$*'
	@touch $@

demo: setup  ## Runs an elastic pipeline on local Spark, about a minute: start here
	@$(BIN)/braided demo

cluster: setup  ## Runs a Spark cluster of four hosts on this machine, until Ctrl-C
	@$(BIN)/braided cluster

quick: check  ## Checks the code and runs the tests that need no Spark, but for long ones, about a minute: the inner loop
	@HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal -m 'not spark and not kill and not slow' \
	  --ignore tests/spark --ignore tests/kill --ignore tests/cluster $(PYTEST_ARGS)

test: check  ## Checks the code, then runs all tests; PYTEST_ARGS='-k rescale' picks some
	@scripts/tests.sh $(BIN)/python $(PYTEST_ARGS)

test-spark: spark-venv  ## Runs tests on another PySpark: make test-spark SPARK=4.1.4 PYTEST_ARGS=@tests/across_versions.txt
	@scripts/tests.sh .venv-$(SPARK)/bin/python $(PYTEST_ARGS)

test-versions:  ## Runs the tests of tests/across_versions.txt on the older PySparks that are supported
	@PYTHON='$(PYTHON)' scripts/test_versions.sh $(OLDER_SPARKS)

spark-venv:  # an environment of its own for test-spark
	@test -n '$(SPARK)' || { echo 'Which PySpark? make test-spark SPARK=4.1.4' >&2; exit 2; }
	@scripts/java.sh
	@$(MAKE) --no-print-directory .venv-$(SPARK)/.installed

fuzz: setup  ## Runs the property tests that need no Spark on new random cases, many of them
	@HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest tests/store tests/control tests/sim tests/operator tests/dict_functions tests/kinds \
	  tests/tasks tests/hosts tests/migrate tests/query tests/steering tests/chaos $(PYTEST_ARGS)

check: setup  ## Lints, type-checks and verifies which layer imports which
	@$(BIN)/ruff check src tests scripts deploy examples
	@$(BIN)/mypy
	@$(BIN)/python scripts/layers.py

s3:  ## Installs the S3 server and the jars that tests and benchmarks on S3 need; others skip them
	@scripts/s3.sh

kafka: setup  ## Installs Kafka and runs a broker on this machine, until Ctrl-C
	@scripts/kafka.sh
	@$(BIN)/braided kafka

hdfs: setup  ## Runs the tests of stores, and a query, against a NameNode and a DataNode; not in `make test`
	@scripts/hdfs.sh
	@BRAIDED_TEST_HDFS=1 $(BIN)/python -m pytest tests/store/test_store.py tests/store/test_epoch_lease.py tests/spark/test_hdfs.py -k hdfs $(PYTEST_ARGS)

cluster-tests: setup  ## Runs differential and kill tests on a Spark cluster of two hosts; not in `make test`
	@BRAIDED_TEST_MASTER=cluster $(BIN)/python -m pytest tests/spark/test_differential.py tests/spark/test_processor_differential.py $(PYTEST_ARGS)
	@BRAIDED_TEST_MASTER=cluster $(BIN)/python -m pytest tests/kill/test_kill.py tests/kill/test_kill_tables.py $(PYTEST_ARGS)

s3-tests: setup  ## Runs differential and kill tests with checkpoints and output on an S3 server; not in `make test`
	@BRAIDED_TEST_STORE=s3 $(BIN)/python -m pytest tests/spark/test_differential.py $(PYTEST_ARGS)
	@BRAIDED_TEST_STORE=s3 $(BIN)/python -m pytest tests/kill/test_kill.py tests/kill/test_kill_on_s3.py $(PYTEST_ARGS)

chaos: setup  ## Kills, stops and starves a query on a cluster, 200 times, and checks every row; not in `make test`
	@PYTHONPATH=src:tests $(BIN)/python -m support.chaos.run --faults $(CHAOS_FAULTS) --together $(CHAOS_TOGETHER) $(if $(CHAOS_SEED),--seed $(CHAOS_SEED))

bench: setup  ## Runs every benchmark with --quick
	@for name in $$($(BIN)/python -c 'from braided.bench import BENCHES; print(*BENCHES)'); do \
	  echo; echo "== $$name"; $(BIN)/braided bench "$$name" --quick; \
	done

clean:  ## Deletes .venv and everything else that was made here
	@rm -rf .venv .venv-* .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist \
	  src/*.egg-info metastore_db spark-warehouse artifacts derby.log
	@rm -rf "$${BRAIDED_CACHE:-$$HOME/.cache/braided}"
	@find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
