# `make demo` shows what fedreel does, `make test` checks it. Each sets up in .venv what it needs, and no more.
PYTHON ?= python3
# Two more than there are cores: the tests of real sites mostly wait, and begin first.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
N ?= 100000
SEED ?= 0
VENV := .venv
BIN := $(VENV)/bin
# pip compiles one file after another, COMPILE on all cores. Some packages hold files that are no Python.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
COMPILE := $(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
DOCS := $(VENV)/.docs
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
TOOLS := $(VENV)-tools

.PHONY: setup demo docs lint test test-fast test-flower test-durations fuzz wheel locks sbom clean all-tests fast-tests
setup: $(DEV)

# What runs jobs: enough for the demo.
$(RUNTIME): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch -e .
	$(COMPILE)
	touch $(RUNTIME)

# What checks fedreel: Flower and Ray, the test tools, the linters.
$(DEV): $(RUNTIME)
	$(PIP) -e '.[dev,flower]'
	$(COMPILE)
	touch $(DEV)

# What makes the documentation's site.
$(DOCS): $(RUNTIME)
	$(PIP) -e '.[docs]'
	touch $(DOCS)

demo: $(RUNTIME)
	$(BIN)/fedreel demo

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Everything; linters and type checker run beside the tests.
test: $(DEV)
	$(MAKE) -j2 lint all-tests

all-tests: $(DEV)
	$(PYTEST) $(ARGS)

# Everything but the tests that tests/durations.json knows as slow.
test-fast: $(DEV)
	$(MAKE) -j2 lint fast-tests

fast-tests: $(DEV)
	$(PYTEST) -n 2 -m 'not slow' $(ARGS)

# What has to do with Flower, with another version of it than the installed one: make test-flower FLOWER=1.42.0
FLOWER := 1.42.0
test-flower: $(DEV)
	rm -rf .flower && $(BIN)/pip install -q --no-deps --target .flower flwr==$(FLOWER)
	PYTHONPATH=$(CURDIR)/.flower $(PYTEST) tests/engines tests/sites tests/test_conformance.py tests/test_simulation.py \
	  tests/test_site.py tests/test_sites_end_to_end.py tests/test_sites_network.py

# Everything, and how long each test took is written to tests/durations.json. Wants a quiet machine.
test-durations: $(DEV)
	$(PYTEST) --write-durations $(ARGS)

# So many mutated inputs for every reader of files and every message; SEED gives others. Faults go to fuzz-found/.
fuzz: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/run.py --inputs $(N) --seed $(SEED) --jobs $(WORKERS)

# The documentation as a site that works offline: site/index.html. A link that leads nowhere is an error.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The wheel and the source distribution, in dist/.
wheel: $(DEV)
	$(BIN)/python -m build --outdir dist .

# Every package that each extra needs, with hashes, in locks/. Wants the network.
locks: $(DEV)
	$(BIN)/python locks/make.py

# What is installed in .venv: a bill of materials (CycloneDX) and its licences, in dist/. The tools are in an environment of their own.
sbom: $(DEV)
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0 pip-licenses==5.5.5
	mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py environment $(BIN)/python --output-format JSON --output-file dist/sbom.json
	$(TOOLS)/bin/pip-licenses --python=$(BIN)/python --format=markdown --with-urls --output-file=dist/licences.md

clean:
	rm -rf $(TOOLS) $(VENV) .flower .pytest_cache .ruff_cache .mypy_cache build dist site src/fedreel.egg-info
