# Everything starts here, on a machine with Python 3.11+ and make: each target sets up .venv by itself.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
WORKERS ?= auto

# Set-up leaves compiling to the first import (scripts/bootstrap.py). Where the environment forbids Python to keep what
# it compiled, every process would compile all of PyTorch again, and the tests start many.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test check pytest test-slow format docs site lock audit browser clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

$(READY): $(wildcard requirements*.lock) pyproject.toml scripts/bootstrap.py
	@$(PYTHON) scripts/bootstrap.py $(VENV)

demo: $(READY) ## set up, and run the main job on the embedded data set
	PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/demo.sh

test: check pytest ## set up, and run every check that CI runs

check: $(READY) # format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

pytest: $(READY)
	$(BIN)/pytest -n $(WORKERS)

test-slow: $(READY) ## the tests that take minutes
	$(BIN)/pytest -m slow

format: $(READY) ## format the code and fix what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY) ## write what docs/ has from the code: the commands, the run record, the tables and plots of results
	$(BIN)/python scripts/generate_cli_docs.py
	$(BIN)/python scripts/generate_artifact_docs.py
	$(BIN)/python -m lab.documents docs
	$(BIN)/python -m lab.figures

site: $(READY) ## build the documentation as a site in build/site, which needs no network
	$(BIN)/python scripts/site.py

lock: $(READY) ## resolve the dependencies anew (make lock UPGRADE=--upgrade moves every pin)
	$(BIN)/python scripts/lock.py $(UPGRADE)

audit: $(READY) ## look up known vulnerabilities of the locked packages (needs the network)
	$(BIN)/python scripts/audit.py

browser: ## install Chromium, which the tests of the explorer page drive
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

clean: ## remove the environment and every cache
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis mutants
