# Two commands do all set-up on a fresh machine: `make run` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test lint bench lock clean

$(STAMP): requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

run: $(STAMP)  ## build the environment, start the service, print one real prediction, keep serving
	$(BIN)/wattcast serve --demo

test: $(STAMP)  ## everything CI runs: lint, types, layers, tests
	$(MAKE) lint
	$(BIN)/python -m pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)  ## speed and memory, beside the budgets of the design
	$(BIN)/python -m benchmarks

lock:  ## renew requirements.lock (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --extra train --extra dev pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
