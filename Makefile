# `make` sets everything up and builds the laptop run; `make test` sets everything up and tests it.

PYTHON ?= python3
VENV ?= .venv
SGLANG_VENV ?= .venv-sglang
BIN := $(VENV)/bin
RUN ?= laptop
WORKERS ?= 2

.DEFAULT_GOAL := run
.PHONY: run setup test test-sglang lint format clean help

run: setup ## build the default run and print what it reached
	$(BIN)/snakemake
	$(BIN)/eyrie summary results/$(RUN)

setup: $(VENV)/ready ## install the pinned environment into $(VENV)

$(VENV)/ready: envs/workflow.txt envs/data.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "eyrie: needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r envs/workflow.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r envs/data.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

test: setup lint ## lint, then every test that needs neither a GPU nor SGLang
	$(BIN)/python -m pytest -m "not sglang" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: setup ## formatting and static checks
	$(BIN)/ruff format --check --quiet src tests benchmarks
	$(BIN)/ruff check --quiet src tests benchmarks
	$(BIN)/snakefmt --check Snakefile rules

test-sglang: setup ## the drafter of the last run in real SGLang, in an environment of its own
	bash envs/sglang-cpu.sh $(SGLANG_VENV)
	$(SGLANG_VENV)/bin/python -m pytest -p no:cacheprovider -c /dev/null tests/sglang

format: setup
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/snakefmt Snakefile rules

clean: ## remove what can be rebuilt for free; vault/ (answers) and store/ (states, training) stay
	rm -rf results .snakemake

help:
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22
