# `make demo` trains a federation, `make test` runs the tests; both set up what they need first.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed

.PHONY: demo test check format
demo: $(STAMP)
	$(BIN)/uneven run $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check src tests scripts benchmarks
	$(BIN)/ruff check src tests scripts benchmarks
	$(BIN)/mypy
	$(MAKE) test

format: $(STAMP)
	$(BIN)/ruff format src tests scripts benchmarks
	$(BIN)/ruff check --fix src tests scripts benchmarks

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all,dev]'
	touch $@
