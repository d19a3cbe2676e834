# Every target works from a fresh clone: it makes .venv and installs the locked dependencies first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest
BENCHES := bench-solver bench-events

# Recorded demand and prices are used where they are found; a seeded generator stands in for them.
ifndef CORALD_DATA
ifneq ($(wildcard ../shared/data/.),)
export CORALD_DATA := $(abspath ../shared/data)
endif
endif

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow bench $(BENCHES) lint format kafka-up kafka-down lock clean venv testbed

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: venv ## a day of six models on simulated clouds, in minutes (CORALD_DEMO_SECONDS ends it)
	@exec $(BIN)/corald demo

test: testbed lint ## lint, types, import contracts, then every test but the slow ones
	$(PYTEST) -m "not slow"

test-slow: testbed ## the tests that take longer than a minute, on freshly drawn random cases
	$(PYTEST) -m slow --hypothesis-profile=explore

bench: $(BENCHES) ## every benchmark; bench-solver and bench-events run one

bench-events: testbed
$(BENCHES): bench-%: venv
	$(BIN)/python bench/$*.py

lint: venv ## ruff, mypy and the import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv ## rewrite the code in the house format
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/ruff format

kafka-up: testbed ## start a local Apache Kafka broker in the background
	$(BIN)/python tests/kafka/broker.py up

kafka-down: venv ## stop it
	$(BIN)/python tests/kafka/broker.py down

lock: venv ## resolve requirements.lock anew after a change of dependencies
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes \
		--no-emit-index-url --no-header pyproject.toml --output-file requirements.lock

clean: ## remove builds, caches and the demo's state; .venv and downloads stay
	rm -rf build dist var *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

venv: $(VENV)/installed

testbed: venv
	@scripts/system-packages.sh testbed

$(VENV)/locked: requirements.lock
	@PYTHON=$(PYTHON) scripts/system-packages.sh venv
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		--requirement requirements.lock
	@touch $@

# Setuptools comes from the lock as well, so the build needs no unlocked download.
$(VENV)/installed: $(VENV)/locked pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		--editable .
	$(BIN)/python -m pip check --quiet --disable-pip-version-check
	@touch $@
