# `make help` lists what can be done. Everything happens in .venv, which is made on first use.

.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

RUN_A ?= examples/recordings/gpt2-hf
RUN_B ?= examples/recordings/gpt2-fused
OUT ?=
TEST_ARGS ?=
# Test processes: one a core. Who has nothing left to do takes tests from another. PARALLEL= runs the tests one after the other in one process, e.g. for a debugger.
PARALLEL ?= -n auto --dist worksteal
# Tests with PyTorch share out whole files: a file imports and records what its tests share.
BY_FILE ?= -n auto --dist loadfile
# Their linear algebra runs in one thread each: threads that outnumber the cores wait for each other in busy loops. Other tests that
# time what they run (slow, systems) run one after the other, so that no test disturbs the clock of another.
test test-lowest: export OPENBLAS_NUM_THREADS := 1
# Tests start some hundred processes. Compiled modules are kept for them, whatever the environment says.
test test-lowest test-slow test-torch test-systems: export PYTHONDONTWRITEBYTECODE :=
# Most files of the tests live for milliseconds. Where 4 GiB of memory serve as a disk, they lie there.
IN_MEMORY := $(shell df --output=avail /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 > 4194304 {print "/dev/shm"}')
TMPDIR ?= $(IN_MEMORY)
test test-lowest: export TMPDIR := $(TMPDIR)

# Names reach the shell through the environment, exactly as they were typed: $(value ...) keeps make from expanding a `$`
# in them, and unexport keeps it from doing so while it fills the environment.
unexport RUN_A RUN_B OUT
export MAGNETON_RUN_A := $(value RUN_A)
export MAGNETON_RUN_B := $(value RUN_B)
export MAGNETON_OUT := $(value OUT)

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "  make diff RUN_A='first run' RUN_B='second run' OUT='a directory'   any two recordings or traces"

.PHONY: diff
diff: $(VENV)/.core ## Compare two recordings: the shipped ones, or RUN_A and RUN_B; writes out/<a>-vs-<b>/ or OUT
	@$(BIN)/python -m magneton.cli diff $${MAGNETON_OUT:+-o "$$MAGNETON_OUT"} -- "$$MAGNETON_RUN_A" "$$MAGNETON_RUN_B"

.PHONY: dev
dev: $(VENV)/.dev ## Prepare .venv for development

.PHONY: test
test: $(VENV)/.dev ## Run the quick tests (TEST_ARGS are passed on to pytest)
	@$(BIN)/python -m pytest $(PARALLEL) -m "not (slow or torch or systems)" $(TEST_ARGS)

.PHONY: test-lowest
test-lowest: $(VENV)-lowest/.ready ## Run the quick tests with the lowest versions of all dependencies, in an environment of their own (.venv-lowest)
	@$(VENV)-lowest/bin/python -m pytest $(PARALLEL) -m "not (slow or torch or systems)" $(TEST_ARGS)

.PHONY: test-slow
test-slow: $(VENV)/.dev ## Run the slow tests
	@$(BIN)/python -m pytest -m slow $(TEST_ARGS)

.PHONY: test-torch
test-torch: $(VENV)-torch/.ready ## Run the tests that need PyTorch, in an environment of their own (.venv-torch)
	@$(VENV)-torch/bin/python -m pytest $(BY_FILE) -m "torch and not slow" $(TEST_ARGS)

.PHONY: test-systems
test-systems: $(VENV)-systems/.ready ## Run the tests that need JAX, ONNX Runtime, TensorFlow or pandas, in an environment of their own (.venv-systems)
	@$(VENV)-systems/bin/python -m pytest -m "systems and not slow" $(TEST_ARGS)

.PHONY: lint
lint: $(VENV)/.dev ## Check format, style, types and which stage imports which
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: format
format: $(VENV)/.dev ## Format the code and mend what can be mended
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: docs
docs: $(VENV)/.core ## Write the generated pages docs/formats.md and docs/cli.md
	@$(BIN)/python -m magneton.schemas.docs
	@$(BIN)/python -m magneton.cli.docs

# Runs with the Python that has torch and sees the GPU (GPU_PYTHON), never with .venv. GPU_ARGS are passed on: --wheels DIR ...
GPU_PYTHON ?= python3
GPU_ARGS ?=
.PHONY: gpu-check
gpu-check: ## Look at sensors, energy and recordings on a machine with a GPU, in ten minutes (results in OUT)
	@PYTHONPATH=cli:collectors:transforms:analysis:schemas:. $(GPU_PYTHON) -m benchmarks.gpu_check --out "$${MAGNETON_OUT:-out/gpu-check}" $(GPU_ARGS)

.PHONY: clean
clean: ## Remove .venv, caches and build output (not out/, which holds results)
	@rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .benchmarks
	@find cli collectors transforms analysis schemas tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are older than pyproject.toml when dependencies may have changed; otherwise nothing is installed again.
$(VENV)/.core: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@echo "Preparing $(VENV) ..." >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

# PyTorch stays out of .venv: the core must work without it, and nothing shows that better than its absence.
$(VENV)-systems/.ready: pyproject.toml
	@echo "Preparing $(VENV)-systems ..." >&2
	@test -x $(VENV)-systems/bin/python || $(PYTHON) -m venv $(VENV)-systems
	@$(VENV)-systems/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(VENV)-systems/bin/python -m pip install --quiet --disable-pip-version-check jax==0.10.2 onnx==1.23.2 onnxruntime==1.32.0 tensorflow-cpu==2.21.0 pandas
	@$(VENV)-systems/bin/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@

$(VENV)-torch/.ready: pyproject.toml
	@echo "Preparing $(VENV)-torch ..." >&2
	@test -x $(VENV)-torch/bin/python || $(PYTHON) -m venv $(VENV)-torch
	@$(VENV)-torch/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(VENV)-torch/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0
	@$(VENV)-torch/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 --editable . --group dev
	@touch $@

# Only what the core imports is at its lowest version; pip chooses the tools of the tests.
$(VENV)-lowest/.ready: pyproject.toml .ci/lowest.py
	@echo "Preparing $(VENV)-lowest ..." >&2
	@test -x $(VENV)-lowest/bin/python || $(PYTHON) -m venv $(VENV)-lowest
	@$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(VENV)-lowest/bin/python .ci/lowest.py pyproject.toml > $(VENV)-lowest/constraints.txt
	@$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(VENV)-lowest/constraints.txt --editable . --group test
	@touch $@

# After .core, so that `make -j` never installs twice at once into one environment.
$(VENV)/.dev: pyproject.toml $(VENV)/.core
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@
