# Two commands: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup demo test lint clean
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,flower]'
	touch $(STAMP)

demo: setup
	$(BIN)/fedreel demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The slow tests start servers and sites and mostly wait for them, so three files run side by side.
test: lint
	$(BIN)/python -m pytest -m "not slow"
	$(BIN)/python -m pytest -m slow -n 3 --dist loadfile

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache build src/fedreel.egg-info
