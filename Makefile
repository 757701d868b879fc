# Heliograph. Every target is one line; the first use of any of them makes .venv and installs what the lock names.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
SHAPE ?= loop
NODES ?= 1
ARGS ?=
BIN := .venv/bin
READY := .venv/.ready

# Where the environment forbids Python to keep what it compiled, each of a cluster's processes compiles for a second.
export PYTHONDONTWRITEBYTECODE :=

# What the type checker reads: those of the roots that exist.
TYPED := $(wildcard mesh svc_ingest svc_fanout svc_presence svc_gateway svc_delivery svc_prefs cli/heliograph_cli clients/python/heliograph_client bench tests deploy/engines .ci proto/*.py docs/*.py)
# The layer contracts name all six services.
LAYERS := $(if $(filter 6,$(words $(wildcard svc_*/__init__.py))),$(BIN)/lint-imports --no-logo --no-cache,echo "layers: not before all six services are there")
SHAPES_loop := not mesh and not processes and not engines and not faults
SHAPES_processes := processes and not engines and not faults
SHAPES_mesh := mesh and not engines and not faults
# On engines a cluster makes topics, keyspace and schema before it starts.
LIMIT_engines := -o timeout=120
FOLDER_loop := tests/scenarios
FOLDER_processes := tests
FOLDER_mesh := tests

.PHONY: help install demo test fmt fmt-check lint types gen gen-check breaking unit contract engines engines-clean engines-stop engines-test contract-engines scenarios faults faults-full faults-engines faults-on-engines wheel-test docs docs-check bench lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

install: $(READY) ## make .venv and install what the lock names

demo: $(READY) ## the main job on real input: the whole mesh, one gateway killed, a table (KEEP=1 leaves it running, STORES=engines on the real engines)
	@$(BIN)/python bench/demo.py $(if $(KEEP),--keep) $(ARGS)

test: $(READY) ## everything that must pass, cheapest first
	@$(BIN)/python .ci/gate.py

fmt: $(READY) ## format Python and protos
	@$(BIN)/ruff check --quiet --select I --fix . ; $(BIN)/ruff format . && $(BIN)/buf format --write

fmt-check: $(READY) ## fail when something is not formatted
	@$(BIN)/ruff format --check . && $(BIN)/buf format --diff --exit-code

lint: $(READY) ## ruff, buf lint, layer contracts, spelling
	@$(BIN)/ruff check . && $(BIN)/buf lint && $(LAYERS) && $(BIN)/codespell

types: $(READY) ## mypy, strict
	@$(BIN)/mypy $(TYPED)

gen: $(READY) ## generate gen/ from the contract
	@$(BIN)/python proto/generate.py

gen-check: $(READY) ## fail when gen/ is not what the contract makes
	@$(BIN)/python proto/generate.py --check

breaking: $(READY) ## fail when the contract breaks callers of proto/BASELINE
	@$(BIN)/python proto/breaking.py

unit: $(READY) ## unit, meta, contract on embedded stores, scenarios in one loop: no servers
	@$(BIN)/python -m pytest -q -m "$(SHAPES_loop)" $(ARGS)

contract: $(READY) ## the contract suites of the storage ports
	@$(BIN)/python -m pytest -q $(ARGS) tests/contract

engines: $(READY) ## start Kafka, Redis, Cassandra, PostgreSQL on loopback and say where they are (NODES=3: brokers and nodes)
	@$(BIN)/python -m deploy.engines start --nodes $(NODES) $(ARGS)

engines-clean: $(READY) ## remove from engines what tests left there: HELIOGRAPH_ENGINES names their engines.json
	@$(BIN)/python -m tests.support.left_on_engines

engines-stop: $(READY) ## stop what make engines started
	@$(BIN)/python -m deploy.engines stop

engines-test: $(READY) ## start engines of its own, run on them what needs them, stop them
	@$(BIN)/python .ci/engines.py

contract-engines: $(READY) ## what needs the real engines: HELIOGRAPH_ENGINES names their engines.json
	@$(BIN)/python -m pytest -q -m "engines and not faults" $(ARGS) tests

scenarios: $(READY) ## the scenarios; SHAPE=loop, processes or mesh; STORES=engines on the real engines
	@$(BIN)/python -m pytest -q -m "$(SHAPES_$(SHAPE))" $(LIMIT_$(STORES)) $(ARGS) $(FOLDER_$(SHAPE))

faults: $(READY) ## faults under load, judged, and simulated ones; ends in a scoreboard (quick set)
	@$(BIN)/python -m tests.faults.board quick

faults-full: $(READY) ## all of it, in an hour: 2,000 seeds, every mutant, a million deliveries, larger crowds, the engines killed
	@$(BIN)/python -m tests.faults.board full

faults-engines: $(READY) ## the engines killed in the middle of a run: HELIOGRAPH_ENGINES names a set of one's own
	@STORES=engines $(BIN)/python -m pytest -q -m "faults and engines" $(ARGS) tests/faults

faults-on-engines: $(READY) ## processes killed and stilled on engines, which stay: HELIOGRAPH_ENGINES names their engines.json
	@STORES=engines $(BIN)/python -m pytest -q -m "faults and processes and not engines and not thorough" $(LIMIT_engines) $(ARGS) tests/faults/test_processes.py tests/faults/test_zombies.py

wheel-test: $(READY) ## build the wheel and run the unit tests on it as installed
	@$(BIN)/python .ci/wheel.py $(ARGS)

docs: $(READY) ## rebuild the generated pages, and the site in build/site
	@$(BIN)/python docs/build.py && $(BIN)/python docs/website.py

docs-check: $(READY) ## fail when a generated page is stale or the site has a broken link
	@$(BIN)/python docs/build.py --check && $(BIN)/python docs/website.py --check

bench: $(READY) ## every target of performance beside what this machine gives, in 23 minutes (ARGS=--part=push: one part)
	@$(BIN)/python bench/floors.py $(ARGS)

lock: $(READY) ## choose versions anew within the bounds of pyproject.toml and write requirements.lock
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --all-extras --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml

clean: ## stop what runs from here and remove local state; .venv stays
	@if [ -x $(BIN)/heliograph ] && [ -d .heliograph ]; then $(BIN)/heliograph down || true; fi; rm -rf .heliograph .cache .hypothesis .ruff_cache .import_linter_cache dist build && find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Heliograph needs Python 3.11 or newer; this is %d.%d: name another with PYTHON=..." % sys.version_info[:2])'
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@awk '/^[^ #]/ { wanted = /^uv==/ } wanted' requirements.lock > .venv/uv.lock
	@$(BIN)/python -m uv --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement .venv/uv.lock
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes --requirements requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $(READY)
