# Everything starts here, on a machine with Python 3.11+ and make: each target sets up .venv by itself.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
WORKERS ?= auto

# Set-up leaves compiling to the first import: compiling all of it took 45 of 114 s. Where the environment forbids Python
# to keep what it compiled, every process would compile all of PyTorch again, and the tests start many.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --no-compile
# From the lock: by hash and as wheels, so that nothing is built or run on the way in.
LOCKED := $(PIP) --no-deps --require-hashes --only-binary :all:
# PyTorch's CPU build, which PyPI does not have, and its hash, kept by hand.
TORCH_CPU := sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b

.DEFAULT_GOAL := help
.PHONY: help demo test check pytest test-slow format docs site lock audit browser clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

# PyTorch first and from pip's find-links alone: next to an index, pip prefers the index's CUDA build. The last pip call
# adds NVIDIA's libraries where only that one was found, and nothing to a CPU build.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: hmlet needs Python 3.11 or later: try make PYTHON=python3.12")'
	@echo "setting up $(VENV) from requirements.lock (some minutes the first time)"
	@$(PYTHON) -m venv $(VENV) || { echo "error: install Python's venv module (Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	@sed -n '/^torch==/,/[^\\]$$/p' requirements.lock >$(VENV)/torch.lock
	@$(LOCKED) --no-index -r $(VENV)/torch.lock 2>/dev/null || echo "no CPU build of PyTorch within pip's reach: taking PyPI's"
	@$(LOCKED) -r requirements.lock
	@$(PIP) "$$(grep -o '^torch==[0-9.]*' requirements.lock)"
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

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
	$(BIN)/uv pip compile --quiet $(UPGRADE) pyproject.toml --extra all --extra dev --universal --python-version 3.11 \
		--generate-hashes --annotation-style line --custom-compile-command "make lock" --output-file requirements.lock
	grep -q $(TORCH_CPU) requirements.lock || sed -i 's|^torch==.* \\|&\n    --hash=$(TORCH_CPU) \\|' requirements.lock

audit: $(READY) ## look up known vulnerabilities of the locked packages (needs the network)
	$(BIN)/python scripts/audit.py

browser: ## install Chromium, which the tests of the explorer page drive
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

clean: ## remove the environment and every cache
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis mutants
