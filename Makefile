# make demo   virtual environment, installation, comparison of the quickstart scenario
# make live-demo   policies in real PyTorch training on this machine, without a GPU
# make quick  style, and the tests at the central seams, in about a minute
# make test   the test suite, in about five to ten minutes on two cores
# make test-long  the tests that take longer; called again, it goes on where it stopped
# make fuzz   damaged inputs, for hours, from where it stopped; ARGS="--seconds 3600"
# make soak   laws of random runs, for hours, from where it stopped
# make test-mutation  which of 60 drawn changes of the code no test notices, from where it stopped
# make test-pauses  the test suite while every process is put aside now and then
# make test-lowest    the core with the oldest versions of its dependencies
# make check  style, types, import directions
# make bench  benchmarks, with their yardsticks
# Options:    PYTHON=python3.12  VENV=.venv  TESTS="tests/front/test_cli.py -x"  ARGS="--ranks 4"

PYTHON ?= python3
VENV   ?= .venv
TESTS  ?=
ARGS   ?=
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Tests start hundreds of processes: without kept bytecode each would compile all modules anew.
KEEP   := env -u PYTHONDONTWRITEBYTECODE

.PHONY: demo installed-live live-demo quick test test-long test-pauses fuzz soak test-mutation test-lowest check bench clean

demo: $(VENV)/installed
	$(BIN)/equipoise compare scenarios/quickstart.yaml \
	  --policy none --policy s1 --policy s1+s2 --policy s1+s2+s3 --policy s1+s2+s3+s4

installed-live: $(VENV)/installed-live

live-demo: $(VENV)/installed-live
	$(BIN)/python -m equipoise.live.demo $(ARGS)

QUICK  := tests/policies/kernels tests/policies/stages/test_directions.py tests/sim/advance tests/front/test_readme.py
quick: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(KEEP) $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(QUICK)

test: $(VENV)/installed-dev
	$(KEEP) $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(TESTS)

test-long: $(VENV)/installed-dev
	$(KEEP) $(BIN)/python -m pytest -n auto --dist load --long=.test-long/passed $(TESTS)

# Every process is put aside at random looks at the clock, as on a busy machine.
test-pauses: $(VENV)/installed-dev
	$(CC) -shared -fPIC -O1 -Wall -Wextra -o $(VENV)/pauses.so tests/pauses.c
	LD_PRELOAD=$(abspath $(VENV)/pauses.so) $(KEEP) $(BIN)/python -m pytest -n 8 --dist loadfile $(TESTS)

fuzz soak: $(VENV)/installed-dev
	$(BIN)/python -m tests.$@ $(ARGS)

test-mutation: $(VENV)/installed-dev
	$(BIN)/python tests/mutants.py $(ARGS)

test-lowest:
	$(PYTHON) -m tests.lowest $(ARGS)

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/installed-dev
	$(BIN)/python -m tests.bench

# Stamps: a second call installs nothing, a changed list of packages installs again.
$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed, $(PYTHON) is not; try make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "this Python cannot make virtual environments: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/made pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

$(VENV)/installed-live: $(VENV)/made pyproject.toml constraints.txt
	$(PIP) -e '.[live]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-dev: $(VENV)/made pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/installed

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
