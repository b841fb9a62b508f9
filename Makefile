# `make demo` and `make test` work from a clean clone: what they need is set up first.

VENV   := .venv
PYTHON := $(VENV)/bin/python
READY  := $(VENV)/.ready
# Found by tests/short_jvm.py. Tests run without it as well, but use more processor time.
CLASSES := $(VENV)/spark-classes.jsa

# Each of a thousand workers would compile pytest again if the environment forbade to keep what was compiled.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo test test-fast test-spark test-long sim mutants check bench bench-quick bench-plots clean
.DEFAULT_GOAL := help

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

# setup.sh touches the stamp, so it runs again only when one of these has changed.
$(READY): pyproject.toml constraints.txt scripts/setup.sh hatch_build.py src/headrace/records/kernel/compiled.pyx
	@scripts/setup.sh

setup: $(READY) ## Make .venv and find Java (or install it, as root on Debian)

demo: $(READY) ## Run the word count on local Spark
	$(VENV)/bin/headrace run examples/word_count.py

test: $(READY) ## All tests but the long ones; about a quarter of an hour on 2 cores
	@scripts/test.sh

WORKERS ?= logical
test-fast: $(READY) ## Tests that need no JVM
	@scripts/setup.sh browser
	$(PYTHON) -m pytest --ignore=tests/spark -m "not long" -n $(WORKERS) --dist worksteal
	HEADRACE_KERNEL=plain $(PYTHON) -m pytest -q $(PLAIN) -n $(WORKERS) --dist worksteal

# What uses the kernel, again with its plain form.
PLAIN := tests/unit/worker/test_keyed_operators.py tests/unit/worker/test_keyed_batches.py \
	tests/unit/worker/test_subtask.py tests/unit/records/test_kernel.py tests/unit/records/test_key_groups.py tests/unit/state \
	tests/conformance/test_keyed_kinds.py tests/simulation/test_seeds.py

# Each process has a Spark application of its own. Tests that share something expensive are in one xdist_group.
test-spark: $(READY) $(CLASSES) ## Tests on Spark
	$(PYTHON) -m pytest tests/spark -m "not long" -n 2 --dist loadgroup

$(CLASSES): $(READY) scripts/class_archive.py
	-@$(PYTHON) scripts/class_archive.py $@ 2>/dev/null

SEEDS ?= 200
sim: $(READY) ## Seeded simulation of checkpoints under faults: make sim SEEDS=2000
	$(PYTHON) -m headrace.testing.simulation --seeds $(SEEDS)

test-long: $(READY) $(CLASSES) ## Every long acceptance line: name, ok or FAILED, figure
	$(PYTHON) scripts/test_long.py

MUTANTS ?=
mutants: $(READY) ## Plant defects that the tests must find (tests/mutants); some of them: make mutants MUTANTS="NAME ..."
	$(PYTHON) scripts/mutants.py $(MUTANTS)

check: $(READY) ## Lint, format, types, import contracts
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	@scripts/lint_ui.sh

bench: $(READY) ## All benchmarks, hours; some of them: make bench BENCH="--works W1,shapes"
	$(PYTHON) benchmarks/run.py $(BENCH)

bench-quick: $(READY) ## The benchmarks, small
	$(PYTHON) benchmarks/run.py --quick $(BENCH)

bench-plots: $(READY) ## Draw what make bench has stored, into docs/plots
	$(PYTHON) benchmarks/plots.py

clean: ## Remove caches and build products; .venv stays
	rm -rf build dist spark-warehouse metastore_db derby.log
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests examples benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
