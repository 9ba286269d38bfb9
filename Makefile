# Every task of developers and of CI. `make help` lists the targets.
SHELL := /bin/bash
# Tests start hundreds of processes: without bytecode files each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
PREPARE := bash fennel_core/apps/local/prepare.sh
CLI := .venv/bin/python -m fennel_core.apps.cli
PYTEST_ARGS ?=
TESTS := .venv/bin/pytest -q --durations 20 --ignore tests/tidy --ignore tests/conformance
# A file runs in one worker, so that its fixtures start their services once. Tests wait for processes
# about as long as they compute, so there is one worker more than cores.
WORKERS ?= $(shell echo $$(( $$(nproc) < 8 ? $$(nproc) + 1 : 8 )))
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Tests of the platform wait for it more than they compute: two processes, each with a platform of its own.
PLATFORMS := -n 2 --dist loadfile --no-loadscope-reorder
ALONE := not platform and not long
TOGETHER := platform and not long
# Failures are printed, and the tests that failed run once more, alone.
RETRY := echo "Retrying the failed tests in isolation" && $(TESTS) --last-failed --last-failed-no-failures none
NAME ?=
COMPOSE_ARGS ?=
WORLD ?= engine
COMMITS ?= 4
ROWS ?= 20000
SEEDS ?= 300
SECONDS ?= 300
SEED ?= 1
KILLS ?= 10
REQUESTS ?= 10000
MESSAGES ?= 1000000

.DEFAULT_GOAL := help
.PHONY: help system env jars jars-mysql demo up down status logs lint scan format test proofs sim faults offline-faults connectors story story-test connector-faults backfill-test commits chaos fuzz hostile hostile-platform kafka-acl-platform fuzz-arrow conformance upgrade-fixture compose-test clean distclean lock

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

system: ## Install missing Debian packages: Python 3.11, Java 17, Maven
	@$(PREPARE) system

env: system ## Create both Python environments from requirements/*.lock
	@$(PREPARE) env

jars: system ## Resolve the Kafka, S3 and Spark jars with Maven
	@$(PREPARE) jars

jars-mysql: jars ## Resolve what reads tables of MySQL and MariaDB, and their changes: drivers and Debezium's connectors
	@$(PREPARE) jars-mysql

demo: env jars ## Start the platform, commit a fraud-detection project, log data, query features
	@$(CLI) up
	@$(CLI) demo

up: env jars ## Start the platform on this machine and wait until every service is ready
	@$(CLI) up

down: env ## Stop everything that `up` started; data survives
	@$(CLI) down

status: env ## Show services, ports, job partitions and their slots, and alarms
	@$(CLI) status

logs: env ## Show the last lines of all logs; `make logs NAME=kafka` follows one
	@$(CLI) logs $(NAME) $(if $(NAME),--follow)

lint: env ## Run ruff, mypy, import-linter and the house rules (tests/tidy)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache
	.venv/bin/pytest -q tests/tidy

scan: env ## Look for secrets in the repository and for known vulnerabilities of pinned packages
	@if $(PREPARE) scan; then .venv/bin/python -m tests.scan.run; else echo "NOT CHECKED: the scanners could not be installed (see above)"; fi

format: env ## Format the code and sort imports with ruff
	.venv/bin/ruff check --fix-only .
	.venv/bin/ruff format .

test: env jars ## Run everything that CI runs; leaves the platform running
	@$(MAKE) --no-print-directory -j2 -O lint scan
	$(TESTS) $(PARALLEL) -m "$(ALONE)" $(PYTEST_ARGS) tests || { $(RETRY) -m "$(ALONE)" $(PYTEST_ARGS) tests; }
	$(TESTS) $(PLATFORMS) -m "$(TOGETHER)" $(PYTEST_ARGS) tests || { $(RETRY) -m "$(TOGETHER)" $(PYTEST_ARGS) tests; }
	@$(CLI) up
	.venv/bin/python -m tests.conformance.run --ratchet

proofs: env jars ## Run the long proofs that `make test` leaves out
	$(TESTS) $(PLATFORMS) -m long $(PYTEST_ARGS) tests || { $(RETRY) -m long $(PYTEST_ARGS) tests; }

sim: env ## Simulate crashes, pauses, zombies and lost responses: `make sim WORLD=engine SEEDS=300` or WORLD=commit
	.venv/bin/python -m tests.sim.run --world $(WORLD) --seeds $(SEEDS)

faults: up ## Kill, disconnect and freeze services of the running platform during commits
	.venv/bin/pytest -q tests/e2e/faults/test_broker.py tests/e2e/faults/test_slots.py tests/e2e/faults/test_faults.py tests/e2e/faults/patient.py tests/e2e/faults/outage.py

offline-faults: up ## Kill jobs of offline queries and services beneath, and cancel: `make offline-faults KILLS=10 SEED=1`
	KILLS=$(KILLS) SEED=$(SEED) .venv/bin/pytest -q -s tests/e2e/offline/killed_jobs.py
	SEED=$(SEED) .venv/bin/pytest -q -s tests/e2e/offline/cancelled.py tests/e2e/offline/outages.py

connectors: jars-mysql up ## Run the long tests of connectors against real systems; needs Debian's mariadb-server-core and mariadb-client-core
	.venv/bin/pytest -q -s tests/contract/sources/mysql_reads.py tests/contract/sources/mysql_changes.py tests/contract/sources/mysql_change_servers.py tests/contract/definition/mysql_connectors.py
	.venv/bin/pytest -q tests/e2e/local/kinesis_platform.py
	.venv/bin/pytest -q -s tests/e2e/local/connectors_platform.py
	.venv/bin/pytest -q -s -m platform tests/e2e/platform/table_source.py tests/e2e/platform/mysql_source.py tests/e2e/platform/mysql_changes.py tests/e2e/platform/bounded_sources.py tests/e2e/platform/limited_sources.py tests/e2e/platform/schema_drift.py tests/e2e/platform/delta_source.py

story: up ## Read a lake, a topic and a database of a delivery service into features: examples/delivery
	.venv/bin/python -m examples.delivery.systems dev-delivery --orders 20000
	.venv-executor/bin/python -m examples.delivery.story http://127.0.0.1:7400 dev-delivery 20000

story-test: env jars ## Kill parts of a platform of its own during the story, and compare with a recompute
	.venv/bin/pytest -q -s tests/e2e/local/delivery_platform.py

connector-faults: env jars ## Kill all between three sources and two sinks, and compare: `make connector-faults KILLS=30 ROWS=1000000 SEED=1`
	.venv/bin/python -m tests.chaos.connectors --rows $(ROWS) --kills $(KILLS) --seed $(SEED)

backfill-test: env jars ## Recompute a million rows with Spark, and compare with a live run
	BACKFILL_ROWS=10000 .venv/bin/pytest -q tests/e2e/engine/test_backfill.py

commits: up ## Commit new versions of chains of datasets under queries: `make commits COMMITS=200 ROWS=200000`
	COMMITS=$(COMMITS) ROWS=$(ROWS) .venv/bin/pytest -q -s tests/e2e/platform/test_commits_under_load.py

chaos: env jars ## Kill and freeze parts under traffic, then compare every key: `make chaos SECONDS=300 SEED=1`
	.venv/bin/python -m tests.chaos.run --seconds $(SECONDS) --seed $(SEED)

fuzz: env jars ## Send mutated and generated requests: `make fuzz REQUESTS=10000 SEED=1`
	.venv/bin/python -m tests.fuzz.run --requests $(REQUESTS) --seed $(SEED)

hostile: env ## Run hostile user code against real executors: as root, as an ordinary user, without Landlock
	.venv/bin/pytest -q tests/hostile

hostile-platform: up ## Commit hostile extractors and pipelines with the client, and query them beside another workspace
	.venv/bin/pytest -q tests/hostile/on_platform.py

kafka-acl-platform: env jars ## Run a platform of its own against a Kafka broker with SCRAM users and ACLs
	.venv/bin/pytest -q tests/e2e/local/kafka_acl_platform.py

fuzz-arrow: env ## Read mutated Arrow messages as results of user code: `make fuzz-arrow MESSAGES=1000000 SEED=1`
	.venv/bin/python -m tests.fuzz.arrow_run --messages $(MESSAGES) --seed $(SEED)

conformance: up ## Run the public client's test suite against the platform, ten tests through Airflow
	.venv/bin/python -m tests.conformance.run
	.venv/bin/python -m tests.conformance.run --airflow

upgrade-fixture: env jars ## Run this version and pack what it stores, once per release (docs/upgrading.md)
	.venv/bin/python -m tests.upgrade.make

compose-test: env ## Build and run docker-compose.yml with the fraud example, then remove it (root, Docker)
	.venv/bin/python -m tests.compose.run $(COMPOSE_ARGS)

clean: env ## Stop the platform and delete its data, logs and generated secrets
	@$(CLI) clean --yes

distclean: clean ## Also delete both environments, the jars and every cache
	rm -rf .venv .venv-executor .venv-scan .fennel .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

lock: system ## Compile requirements/*.in to requirements/*.lock
	@$(PREPARE) lock
