# Everything a person or CI does with this repository. `make help` lists the targets.
SHELL := /bin/bash
PREPARE := bash fennel_core/apps/local/prepare.sh
CLI := .venv/bin/python -m fennel_core.apps.cli
PYTEST_ARGS ?=
TESTS := .venv/bin/pytest -q --ignore tests/tidy --ignore tests/conformance
NAME ?=
COMPOSE_ARGS ?=
WORLD ?= engine
SEEDS ?= 300

.DEFAULT_GOAL := help
.PHONY: help system env jars demo up down status logs lint format test sim faults conformance compose-test clean distclean lock

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

system: ## Install Python 3.11, Java 17 and Maven from Debian's packages where missing
	@$(PREPARE) system

env: system ## Create both environments exactly as requirements/*.lock say
	@$(PREPARE) env

jars: system ## Resolve the Kafka, S3 and Spark jars with Maven
	@$(PREPARE) jars

demo: env jars ## Start everything, commit a fraud-detection project, log data, query features
	@$(CLI) up
	@$(CLI) demo

up: env jars ## Start the platform on this machine and wait until every part is healthy
	@$(CLI) up

down: env ## Stop everything that `up` started, and nothing else; data survives
	@$(CLI) down

status: env ## What runs where, and which slot owns which job partition
	@$(CLI) status

logs: env ## The log files' ends; `make logs NAME=kafka` follows one
	@$(CLI) logs $(NAME) $(if $(NAME),--follow)

lint: env ## ruff, mypy, import-linter and the house rules
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache
	.venv/bin/pytest -q tests/tidy

format: env ## Let ruff format and sort what it may
	.venv/bin/ruff check --fix-only .
	.venv/bin/ruff format .

test: lint jars ## Everything that CI runs; leaves the platform it used running
	$(TESTS) -m "not platform" $(PYTEST_ARGS) tests
	$(TESTS) -m platform $(PYTEST_ARGS) tests || { \
	  echo "FAILED AT FIRST: the tests named above are tried once more, alone"; $(TESTS) -m platform --last-failed --last-failed-no-failures none $(PYTEST_ARGS) tests; }
	@$(CLI) up
	.venv/bin/python -m tests.conformance.run --ratchet

sim: env ## Seeds of a simulated world: crashes, pauses, zombies, lost answers; `make sim WORLD=engine SEEDS=300`
	.venv/bin/python -m tests.sim.run --world $(WORLD) --seeds $(SEEDS)

faults: up ## Kill, cut and freeze parts of the running platform in the middle of commits, also where Airflow takes long to notice
	.venv/bin/pytest -q tests/e2e/faults/test_broker.py tests/e2e/faults/test_slots.py tests/e2e/faults/test_faults.py tests/e2e/faults/patient.py

conformance: up ## The public client's own test suite against the running platform, and ten of its tests through Airflow
	.venv/bin/python -m tests.conformance.run
	.venv/bin/python -m tests.conformance.run --airflow

compose-test: env ## docker-compose.yml for real: bases made here, built, the fraud example, a restart, removed (root, Docker)
	.venv/bin/python -m tests.compose.run $(COMPOSE_ARGS)

clean: env ## Stop the platform and delete its data, logs and generated secrets
	@$(CLI) clean --yes

distclean: clean ## Also delete both environments, the jars and every cache
	rm -rf .venv .venv-executor .fennel .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

lock: system ## Compile requirements/*.in to *.lock again
	@$(PREPARE) lock
