# The words that start everything. `make serve` and `make test` work in a fresh clone: they make .venv as needed.
PYTHON ?= python3
LISTEN ?= 127.0.0.1:8080
TIER ?= short
TESTS ?= tests
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
MODEL := build/models/breast_cancer
CHECKED := src tests reliability bench/*.py bench/peers/*.py bench/peers/load examples

.DEFAULT_GOAL := help
.PHONY: help setup setup-all serve examples check format test layers reliability bench bench-table bench-quick bench-instructions bench-flame bench-flavors bench-coding lock clean

help:
	@echo "make setup        the environment for developing, in $(VENV)"
	@echo "make setup-all    the same with torch, transformers and the examples' models (about 1.5 GB)"
	@echo "make serve        serve a real model on http://$(LISTEN) (LISTEN=host:port to change it)"
	@echo "make examples     real models, each prepared, served, asked, and told of in a line (NAMES='fraud ocr' for some)"
	@echo "make check        format, lint, types, layers"
	@echo "make test         the test suite"
	@echo "make reliability  one line per reliability test (TIER=short|nightly|release)"
	@echo "make bench-quick  CPU-us a request beside nginx, in under two minutes"
	@echo "make bench-instructions  instructions a request of the HTTP JSON lane, beside the baseline (needs valgrind)"
	@echo "make bench-flame  draw where the lane spends its time (needs py-spy, and what make bench has installed)"
	@echo "make bench-flavors  what each flavor adds to its library's own time (into docs/benchmarks.md)"
	@echo "make bench-coding  what tensors cost as JSON, by size, dtype and way"
	@echo "make bench        all figures beside nine other servers, into docs/benchmarks.md (25 minutes; ROWS, PEERS, RUNS, SECONDS)"
	@echo "make bench-table  the same page from what was measured last"
	@echo "make format       let the formatter rewrite the files"
	@echo "make lock         pin the requirements anew (needs uv)"

# What `make serve` needs is made without a word on standard output: the first line there is the server's URL.
# Stamps: an environment is only touched when a lock file or pyproject.toml has changed.
$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "maitred needs Python 3.11 or newer; choose one with: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "making $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV) >&2
	@touch $@

$(VENV)/serve: requirements/serve.txt pyproject.toml | $(VENV)/made
	@echo "installing maitred and what it needs into $(VENV)" >&2
	@$(PIP) --require-hashes -r requirements/serve.txt >&2
	@$(PIP) --no-deps --no-build-isolation --editable . >&2
	@touch $@

$(VENV)/dev: requirements/dev.txt $(VENV)/serve
	$(PIP) --require-hashes -r requirements/dev.txt
	@touch $@

# Torch, transformers and what the examples need: large, so the tests that use them are skipped where they are missing.
# On Linux these are torch's builds without CUDA.
$(VENV)/all: requirements/all.txt $(VENV)/dev
	$(PIP) --require-hashes -r requirements/all.txt
	@touch $@

setup: $(VENV)/dev

setup-all: $(VENV)/all

$(MODEL)/maitred.toml: examples/breast_cancer.py | $(VENV)/serve
	@echo "training the example's model, $(MODEL)" >&2
	@$(BIN)/python examples/breast_cancer.py $(MODEL) >&2

serve: $(VENV)/serve $(MODEL)/maitred.toml
	@MAITRED_LOG_LEVEL=$${MAITRED_LOG_LEVEL:-warning} exec $(BIN)/maitred serve breast_cancer=$(MODEL) --listen $(LISTEN)

examples: $(VENV)/all
	@$(BIN)/python examples/run.py $(NAMES)

check: $(VENV)/dev
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_house.py

format: $(VENV)/dev
	$(BIN)/ruff format $(CHECKED)
	$(BIN)/ruff check --fix $(CHECKED)

test: $(VENV)/dev
	$(BIN)/python -m pytest -q $(TESTS)

reliability: $(VENV)/dev
	$(BIN)/python -m reliability.run --tier $(TIER)

bench-quick: $(VENV)/serve
	@$(BIN)/python bench/quick.py

# Counted in valgrind, where there is one: a busy machine changes nothing. WRITE=1 makes the counts the baseline.
bench-instructions: $(VENV)/serve
	@$(BIN)/python bench/instructions.py $(if $(WRITE),--write)

bench-flame:
	$(BENCH_PYTHON) bench/flame.py $(if $(PY_SPY),--py-spy $(PY_SPY))

bench-flavors: $(VENV)/dev
	$(BIN)/python bench/flavors.py --write docs/benchmarks.md

bench-coding: $(VENV)/serve
	$(BIN)/python bench/coding.py

# The harness has an environment of its own, in which maitred's sources are served too: nothing is added to $(VENV).
# Parts: make bench ROWS='cpu64 lone' PEERS='maitred nginx mosec' RUNS=1; RESUME=1 measures what is missing.
BENCH_VENVS ?= /tmp/peers
RUNS ?= 3
SECONDS ?= 2
BENCH_PYTHON = PYTHONPATH=src BENCH_VENVS=$(BENCH_VENVS) $(BENCH_VENVS)/harness/bin/python
BENCH = $(BENCH_PYTHON) bench/peers/run.py
bench:
	BENCH_VENVS=$(BENCH_VENVS) bench/peers/setup.sh $(if $(PEERS),harness $(PEERS))
	$(BENCH) rows --rows '$(ROWS)' --peers '$(PEERS)' --runs $(RUNS) --seconds $(SECONDS) $(if $(RESUME),--resume) \
	  --write docs/benchmarks.md

bench-table:
	$(BENCH) table --peers '$(PEERS)' --write docs/benchmarks.md

# The build without CUDA, for CPython 3.11 on x86-64: the default index has only the large ones.
TORCH_ON_LINUX := torch==2.13.0+cpu ; sys_platform == 'linux' --hash=sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b
LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --no-emit-find-links --no-emit-package maitred --no-annotate --no-header
lock:
	$(LOCK) requirements/dev.in -o requirements/dev.txt >/dev/null
	$(LOCK) requirements/serve.in -c requirements/dev.txt -o requirements/serve.txt >/dev/null
	$(LOCK) requirements/all.in -c requirements/dev.txt --overrides requirements/no-cuda.txt -o requirements/all.txt >/dev/null
	sed -i "s/^torch==2.13.0 .*/$(TORCH_ON_LINUX)\ntorch==2.13.0 ; sys_platform != 'linux' \\\\/" requirements/all.txt

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
