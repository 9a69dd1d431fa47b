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

fault-test: $(INSTALLED) ## interrupts, exceptions and signals in loops and whole runs, at every line of the core once
	@HOTROWS_FAULTS=$(or $(FAULTS),lines) HOTROWS_SIGINTS=1000 HOTROWS_TRAIN_INTERRUPTS=100 $(BIN)/python -m pytest -n $(JOBS) tests/faults tests/train/test_termination.py $(ARGS)

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
