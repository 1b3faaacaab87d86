# Everything bootstraps from a bare python3: the first target that needs the environment builds it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow campaign check format bench lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(READY) ## build the environment (the other targets do it themselves)

# uv installs the pinned set; it comes from PyPI itself, so nothing but python3 is needed beforehand.
$(READY): requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

demo: $(READY) ## from nothing to an HTML report on synthetic lesions (a minute or two)
	$(BIN)/tdumpra demo

test: $(READY) ## the test suite (minutes, two cores)
	$(BIN)/python -m pytest -n 2 -m "not slow and not gpu and not campaign"

test-slow: $(READY) ## the tests that take longer
	$(BIN)/python -m pytest -m "slow"

campaign: $(READY) ## kill training a hundred times and compare what it ends with
	$(BIN)/python -m pytest -m "campaign" -s

check: $(READY) ## lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## rewrite the code in house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## ratios against named peers, measured in one run
	$(BIN)/tdumpra bench

lock: $(READY) ## pin the newest versions that pyproject.toml allows
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
	  --no-header --no-annotate --upgrade --quiet --output-file requirements.lock

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
