# Everything bootstraps from a bare python3: the first target that needs the environment builds it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LOWEST := .venv-lowest

# One environment, filled as far as a target needs: RUN for using tdumpra, DEV for working on it,
# SERVICES for what is heavy (OpenVINO, MLflow, Ray). Each set has a lock.
RUN := $(VENV)/.run-ready
DEV := $(VENV)/.dev-ready
SERVICES := $(VENV)/.services-ready

# The extras of each lock.
NEEDED := report
LIGHT  := report saliency lite faiss parquet track dicom onnx hub remote search serve oidc
HEAVY  := openvino mlflow ray

# What `make test-lowest` runs.
ARRAY_TESTS := tests/core tests/method tests/tuning tests/test_estimator.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-services test-lowest campaign check docs format bench model lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(DEV) ## build the environment for working on the code (the other targets do it themselves)

# uv installs the pinned sets; it comes from PyPI itself, so nothing but python3 is needed beforehand. Compiled at once,
# they load quickly in every process that a test starts, also where Python is told to write no bytecode.
$(BIN)/uv:
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

$(RUN): requirements.lock
$(DEV): requirements-dev.lock
$(SERVICES): requirements-services.lock | $(DEV)
$(VENV)/.%-ready: pyproject.toml | $(BIN)/uv
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -r $(filter %.lock,$^)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

$(LOWEST)/.ready: pyproject.toml | $(BIN)/uv
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	@$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --group test --editable ".[parquet]"
	@touch $@

demo: $(RUN) ## from nothing to an HTML report on synthetic lesions (a minute or two)
	$(BIN)/tdumpra demo

test: $(DEV) ## the test suite (minutes, two cores)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not gpu and not services and not campaign"

test-slow: $(DEV) ## the tests that take longer
	$(BIN)/python -m pytest -m "slow"

test-services: $(DEV) $(SERVICES) ## the tests that need OpenVINO, MLflow, Ray or a service
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "services and not slow and not gpu and not campaign"

test-lowest: $(LOWEST)/.ready ## the array tests with the lowest versions that pyproject.toml allows
	$(LOWEST)/bin/python -m pytest -n 2 --dist worksteal -m "not slow and not gpu and not services and not campaign" $(ARRAY_TESTS)
	$(LOWEST)/bin/tdumpra attach --help > /dev/null

campaign: $(DEV) $(SERVICES) ## kills, faults, damage, hostile files and simulations (hours); writes the table of docs/reliability.md
	TDUMPRA_RECORDS=docs/results/reliability $(BIN)/python -m pytest -m "campaign" -s
	$(BIN)/python -m sitegen.results_tables

check: $(DEV) ## lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(DEV) ## the documentation site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html"

format: $(DEV) ## rewrite the code in house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV) ## ratios against named peers, measured in one run
	$(BIN)/tdumpra bench

# DATA is the folder of HAM10000; SOURCE may name another source, SET further settings as KEY=VALUE.
DATA   ?= data/ham10000
SOURCE ?= ham10000:$(DATA)
SET    ?=
MODEL  := runs/ham10000-model
CHANGES = --set data.source=$(SOURCE) $(SET:%=--set %)
model: $(DEV) ## train the recommended system: make model DATA=path/to/HAM10000 (minutes on a GPU)
	$(BIN)/tdumpra train studies/ham10000/model-second.toml $(CHANGES)
	$(BIN)/tdumpra embed studies/ham10000/model-second.toml $(CHANGES)
	$(BIN)/tdumpra run studies/ham10000/model.toml $(CHANGES)
	test -e $(MODEL)/model-card.md || $(BIN)/tdumpra card $(MODEL) --out $(MODEL)/model-card.md
	@echo "$(MODEL): model.safetensors, model-card.md"

# Versions that are locked stay, unless pyproject.toml rules them out or UPGRADE=--upgrade asks for the newest.
COMPILE = $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --no-header --no-annotate --quiet $(UPGRADE)
lock: | $(BIN)/uv ## bring the locks in line with pyproject.toml; with UPGRADE=--upgrade, pin the newest versions
	$(COMPILE) $(NEEDED:%=--extra %) --output-file requirements.lock
	$(COMPILE) $(LIGHT:%=--extra %) --group dev --group docs --constraints requirements.lock --output-file requirements-dev.lock
	$(COMPILE) $(HEAVY:%=--extra %) --group services --constraints requirements-dev.lock --output-file requirements-services.lock

clean: ## remove the environments and caches
	rm -rf $(VENV) $(LOWEST) site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
