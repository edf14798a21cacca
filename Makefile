# Two commands on a fresh machine: make demo, make test.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help env demo test lint types unit test-browser test-flower test-ray fuzz soak mutants bench results pages docs docs-serve release clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16
	@echo "After make env or make demo: . $(BIN)/activate puts the command fedcue on the path."

env: $(VENV)/installed  ## make .venv with fedcue and what it needs

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) torch==2.13.0
	$(PIP) --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) --editable '.[dev]'
	@touch $@

demo: $(VENV)/installed  ## train PEP-FedPT on embedded data (less than a minute on two cores)
	$(BIN)/fedcue run
	@echo
	@echo "Go on with:"
	@echo "  . $(BIN)/activate      (puts the command fedcue on the path of this shell)"
	@echo "  fedcue list            (what there is to run)"
	@echo "  fedcue run --help      (how to run it)"

test: lint types unit  ## check style and types, run every test but test-flower and test-ray

lint: $(VENV)/installed-dev  ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev  ## check types
	$(BIN)/mypy

unit: $(VENV)/installed-dev  ## run the tests
	$(BIN)/pytest -m "not flower and not ray" --numprocesses auto --dist loadfile --no-loadscope-reorder --durations 10

test-flower: $(VENV)/installed-dev  ## test real deployments on this machine: Flower's own processes
	$(BIN)/pytest -m flower tests/integration

test-ray: $(VENV)/installed-dev  ## test runs on a Ray cluster of three nodes on this machine
	$(BIN)/pytest -m ray tests/integration

test-browser: $(VENV)/installed-dev  ## test the report page in Chromium (needs Debian's package chromium)
	@command -v chromium > /dev/null || { echo "install it first: apt-get update && apt-get install -y chromium"; exit 2; }
	$(BIN)/pytest tests/integration/test_report_browser.py

fuzz: $(VENV)/installed-dev  ## try 100,000 mutated inputs (twenty minutes of a core, or more)
	$(BIN)/python tests/fuzz/fuzz.py --inputs 100000

soak: $(VENV)/installed-dev  ## kill runs of every method 200 times and compare bits (about six minutes)
	$(BIN)/python tests/soak.py --kills 200

FAULTS ?= 400
SEED ?= 1
mutants: $(VENV)/installed-dev  ## put small faults into the code, one at a time, and list those no test notices [FAULTS= SEED=]
	PYTHONPATH=tests $(BIN)/python -m mutants --faults $(FAULTS) --seed $(SEED)

bench: $(VENV)/installed-dev  ## measure speed on this machine (about six minutes on two cores)
	$(BIN)/fedcue bench backbone=timm/vit_tiny_patch16_224 image_size=128 batch=20 seconds=20
	$(BIN)/python benchmarks/round.py
	$(BIN)/python benchmarks/scale.py --rounds 4 --repeat 1
	$(BIN)/python benchmarks/classes.py --batch 20 --seconds 5

RECIPE ?= cifar100-pathological
METHOD ?= cue
PRECISION ?= bfloat16
results: $(VENV)/installed  ## repeat a row of docs/results: DATA=FOLDER BACKBONE=FOLDER [RECIPE= METHOD= PRECISION=]
	@test -n "$(DATA)" -a -n "$(BACKBONE)" || { echo "give DATA=FOLDER and BACKBONE=FOLDER (docs/results)"; exit 2; }
	$(BIN)/fedcue run $(RECIPE) scale=cpu data.root=$(DATA) backbone=$(BACKBONE) heldout=0.1 method=$(METHOD) precision=$(PRECISION)

pages: $(VENV)/installed  ## make the tables and figures of docs/results anew and fill README and docs with them
	$(BIN)/python scripts/results_figures.py docs/results/miniature
	$(BIN)/python scripts/pages.py
	$(BIN)/python scripts/settings_page.py

docs: $(VENV)/installed-dev  ## build the documentation site in site/
	$(BIN)/zensical build --strict --clean

docs-serve: $(VENV)/installed-dev  ## serve the documentation site on this machine and build it anew at every change
	$(BIN)/zensical serve

RELEASE := build/release
release: $(VENV)/installed-dev  ## build wheel and sdist, check them, try them in a clean environment; uploads nothing
	rm -rf dist $(RELEASE)
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	mkdir -p $(RELEASE)
	git ls-files src/fedcue | sed 's,^src/,,' | LC_ALL=C sort > $(RELEASE)/package
	$(BIN)/python -m zipfile -l dist/*.whl | awk 'NR > 1 && $$1 !~ /dist-info/ { print $$1 }' | LC_ALL=C sort | diff $(RELEASE)/package -
	git ls-files | grep -v '^.ci/' | LC_ALL=C sort > $(RELEASE)/tree
	tar -tzf dist/*.tar.gz | sed 's,^[^/]*/,,' | grep -v '^PKG-INFO$$' | LC_ALL=C sort | diff $(RELEASE)/tree -
	$(PYTHON) -m venv $(RELEASE)/env
	$(RELEASE)/env/bin/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(RELEASE)/env/bin/python -m pip install --quiet --constraint constraints.txt \
		"$$(echo dist/*.whl)[export]" pytest pytest-timeout hypothesis
	mkdir $(RELEASE)/source && tar -xzf dist/*.tar.gz -C $(RELEASE)/source --strip-components=1
	cd $(RELEASE) && env/bin/fedcue run --out demo
	cd $(RELEASE)/source && ../env/bin/python -m pytest -q $(RELEASED_TESTS)
	@echo "Checked: $$(echo dist/*). What is left to do: docs/release.md."

RELEASED_TESTS ?= tests/unit/methods tests/unit/after tests/unit/export tests/unit/train tests/unit/aggregate

clean:  ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
