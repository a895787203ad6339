# make demo | test | lint | soak | test-engines: each sets up what it needs in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TRITON_STAMP := $(VENV)/.triton
# CUDA builds of torch bring a Triton of their own, so no constraint may name one. Beside a CPU build the tests take this
# one: its interpreter needs no GPU.
TRITON := triton==3.6.0; sys_platform == "linux" and platform_machine == "x86_64"

.PHONY: demo test lint soak test-engines clean

demo: $(STAMP)
	$(BIN)/eyas demo

# Two processes of one torch thread each: threads that wait for each other in spin loops crawl on two shared cores.
test: $(STAMP) $(TRITON_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

# Long fault injection: training killed 24 times at random moments, several ranks, fuzzing; about ten minutes.
soak: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak

test-engines: $(STAMP)
	$(BIN)/python -m pytest -m engines

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("eyas needs Python 3.11 or newer; this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,dev,stacks]'
	touch $@

# Where it cannot be had, the next run tries again.
$(TRITON_STAMP): $(STAMP) Makefile
	if $(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/python -m pip install --quiet '$(TRITON)'; then \
		touch $@; else echo 'no Triton: tests of kernels will skip'; fi

clean:
	rm -rf $(VENV)
