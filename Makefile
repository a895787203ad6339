# `make` prints what there is (the lines with ##); each target sets up what it needs in .venv first.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TRITON_STAMP := $(VENV)/.triton
# CUDA builds of torch bring a Triton of their own, so no constraint may name one. Beside a CPU build the tests take this
# one: its interpreter needs no GPU.
TRITON := triton==3.6.0; sys_platform == "linux" and platform_machine == "x86_64"

.PHONY: help install demo test lint docs soak test-engines clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## .venv with eyas, torch, all extras and the tools of development; then: . .venv/bin/activate

demo: $(STAMP) ## the main job on a real target and draft, under ten minutes; ends with demo-run/report.html
	$(BIN)/eyas demo

# Two processes of one torch thread each: threads that wait for each other in spin loops crawl on two shared cores.
test: $(STAMP) $(TRITON_STAMP) ## all tests that need neither GPU nor server
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(STAMP) ## format, lint, types, import layers
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP) ## docs/errors.md out of the code, and the output that the guides show; some minutes
	$(BIN)/python tests/support/errors_page.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/support/guide_runner.py

soak: $(STAMP) ## training killed at random moments, several ranks, fuzzing; about ten minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak

test-engines: $(STAMP) ## against a real vLLM in an environment of its own
	$(BIN)/python -m pytest -m engines

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("eyas needs Python 3.11 or newer; this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'setting up $(VENV), 1 of 2: torch (a CPU build is 190 MB to fetch; a CUDA build several GB)'
	$(BIN)/python -m pip install --constraint constraints.txt torch
	@echo 'setting up $(VENV), 2 of 2: eyas, transformers, tools of development (some 120 MB to fetch)'
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[torch,dev,stacks]'
	touch $@

# Where it cannot be had, the next run tries again.
$(TRITON_STAMP): $(STAMP) Makefile
	@$(BIN)/python -c 'import triton' 2>/dev/null || echo 'setting up $(VENV): Triton, for tests of kernels (190 MB to fetch)'
	if $(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/python -m pip install '$(TRITON)'; then \
		touch $@; else echo 'no Triton: tests of kernels will skip'; fi

clean: ## remove .venv
	rm -rf $(VENV)
