# Everything a contributor runs. Each target makes .venv by itself, and again when the dependencies change.
PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: help demo test lint gpu-test mutations fault-test

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 8

demo: $(INSTALLED) ## train with all rows on the device and with 1.5% of them (identical), then a click log end to end
	@$(BIN)/python examples/identical.py
	@$(BIN)/python examples/click_log.py

test: $(INSTALLED) ## run all tests; ARGS go to pytest
	@$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

gpu-test: ## run the GPU tests in parallel on a machine with a GPU, and record what was found; needs no .venv
	@PYTHONPATH=src $(PYTHON) tools/gpu_test.py $(ARGS)

# What `make test` tries a few times: all of it, with FAULTS=lines or a number of faults for each program of tests/faults.
FAULT_TESTS := tests/faults tests/train/test_termination.py tests/nn/test_threads.py tests/data/test_damage.py \
	tests/data/test_prepare_bad_input.py
fault-test: $(INSTALLED) ## interrupts, exceptions, kills, bit flips, a full disk, threads, forks and early exits, many times
	@HOTROWS_FAULTS=$(or $(FAULTS),lines) HOTROWS_SIGINTS=1000 HOTROWS_TRAIN_INTERRUPTS=100 HOTROWS_THREAD_READS=1000 $(BIN)/python -m pytest -n $(JOBS) $(FAULT_TESTS) $(ARGS)

mutations: $(INSTALLED) ## take each rule of the exactness argument out of the code, and see that a test fails
	@$(BIN)/python tools/mutations.py $(ARGS)

lint: $(INSTALLED) ## check style and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

$(INSTALLED): pyproject.toml constraints.txt
	@echo "installing into .venv (once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install -qq -e '.[dev]' -c constraints.txt
	@touch $@
