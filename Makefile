# Two commands do all set-up on a fresh machine: `make run` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMP := $(VENV)/.installed
CUDA_STAMP := $(VENV)/.installed-cuda

# Compiled tests are kept, whatever the environment says: collecting them takes half as long.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run cuda quick test test-slow lint screens bench docs lock clean

$(STAMP): requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked environment into $(VENV) (about two minutes)"
	$(PIP) --require-hashes --no-deps -r requirements.lock
	$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

# NVIDIA's compilers (extra `cuda`): the tests compile CUDA source; serving works without.
$(CUDA_STAMP): $(STAMP) requirements-cuda.lock
	$(PIP) --require-hashes --no-deps -r requirements-cuda.lock
	@touch $@

run: $(STAMP)  ## build the environment, start the service, print one real prediction, keep serving
	$(BIN)/wattcast serve --demo

cuda: $(CUDA_STAMP)  ## NVIDIA's compilers, for CUDA source as input (the extra `cuda`; no GPU needed)

quick: $(CUDA_STAMP) lint  ## two minutes: lint, and the tests of analysis and models (tests/conftest.py)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m quick tests/features tests/models tests/docs

test: $(CUDA_STAMP) lint  ## lint, types, layers, and all tests that take seconds
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(CUDA_STAMP)  ## what takes minutes: kills, studies, hostile PTX over HTTP, memory (HOSTILE_TEST_CASES=all MEMORY_TEST_KERNELS=5000 ENDS_TEST_REQUESTS=100000: everything)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'slow and not alone'
	$(BIN)/python -m pytest -n 0 -s -m alone

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@if [ -x ../shared/checks/size ]; then ../shared/checks/size .; fi

screens: $(STAMP)  ## pictures of every tab, the references of tests/e2e/test_page_screens.py
	$(BIN)/python -m tests.e2e.screens

bench: $(STAMP)  ## speed and memory, beside the budgets of the design
	$(BIN)/python -m benchmarks

docs: $(STAMP)  ## the documentation site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lock:  ## renew the lock files (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --extra serve --extra explain --extra train --extra dev --extra postgres --extra dask \
	  --extra mcp pyproject.toml -o requirements.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate requirements-cuda.in -o requirements-cuda.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --extra serve --extra explain --extra train --extra postgres --extra dask \
	  --constraint requirements.lock --override docker/overrides.txt docker/requirements.in \
	  pyproject.toml -o docker/requirements.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --constraint requirements.lock docker/build.in -o docker/build.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
