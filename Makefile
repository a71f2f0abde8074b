# `make demo` and `make test` do all the set-up on a fresh machine; `STRICT=1 make test` turns skips into failures.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_OUT ?= out/demo-$(shell date +%Y%m%d-%H%M%S)
DEBIAN_TEST := chromium espeak-ng faketime iproute2 mount pulseaudio pulseaudio-utils tshark util-linux
BENCHMARKS := $(shell grep -l __main__ benchmarks/*.py)

.PHONY: demo test check bench setup system clean

demo: setup
	$(BIN)/latency-probe demo --out $(DEMO_OUT)

test: check
	STRICT=$(STRICT) $(BIN)/pytest $(PYTEST_ARGS)

check: setup system
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup system .stamps/bench
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script; done

setup: .stamps/venv

.stamps/venv: pyproject.toml
	@mkdir -p .stamps
	@$(PYTHON) -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 13)))' \
	  || { echo "Python 3.11 to 3.13 is needed; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) 2>/dev/null || scripts/venv-packages $(PYTHON) $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

system: .stamps/system

.stamps/bench: .stamps/venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	@touch $@

.stamps/system: scripts/system-packages Makefile
	@mkdir -p .stamps
	scripts/system-packages $(DEBIAN_TEST)
	@touch $@

clean:
	rm -rf .stamps $(VENV) .mypy_cache .ruff_cache .pytest_cache
