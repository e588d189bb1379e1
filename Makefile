# Every verb sets up what it needs: the first one makes .venv, the next ones find it there.
# A smaller torch than your platform's default: PIP_EXTRA_INDEX_URL=<index with CPU wheels> make ...

VENV ?= .venv
PYTHON ?= python3
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -qq
ARGS ?=
# Tests that start processes wait for them, so one more than there are cores is faster.
WORKERS ?= $(shell n=$$(nproc); echo $$(( n < 8 ? n + 1 : 8 )))
export PYTHONUNBUFFERED := 1
# The tests start hundreds of processes, and each would compile the package once more.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test all-tests test-fast test-slow lint type format examples docs bench \
        bench-gpu bench-peers bench-compare results check clean dist wheel lowest site \
        site-check recordings release

help: ## Show what each verb does
	@echo "make <verb>; the first one also sets up $(VENV)"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## Set up the virtual environment with all that tests need
	@echo "Ready: $(PY), or: source $(VENV)/bin/activate"

demo: $(VENV)/.runtime ## Watch a DQN solve CartPole-v1 on two nodes; leaves its curve under runs/
	@$(PY) examples/evaluate_elsewhere.py $(ARGS)

test: lint ## Lint, types, all tests, the docs' programs, a smoke run of every example
	@$(MAKE) --no-print-directory --jobs 2 type all-tests

# Checking types keeps one core busy for a minute, so the tests run meanwhile.
all-tests:
	@echo "Running tests, docs and examples, $(WORKERS) files at a time..."
	@$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-fast: $(VENV)/.installed ## The unit tests alone
	@$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --ignore tests/test_docs.py --ignore tests/test_examples.py $(ARGS)

test-slow: $(VENV)/.installed ## The tests that take minutes: each policy learns its task
	@$(PY) -m pytest -m slow $(ARGS)

lint: $(VENV)/.installed ## Style (ruff) and spelling (codespell)
	@echo "Checking style and spelling..."
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --quiet --check . || { echo "Run 'make format'."; exit 1; }
	@$(VENV)/bin/codespell ding_lite tests examples docs *.md

type: $(VENV)/.installed ## Types (mypy --strict)
	@echo "Checking types..."
	@$(PY) -m mypy

format: $(VENV)/.installed ## Rewrite the code in the house style
	@$(PY) -m ruff check --quiet --fix-only .
	@$(PY) -m ruff format .

examples: $(VENV)/.installed ## Smoke-run every example
	@$(PY) -m pytest tests/test_examples.py $(ARGS)

docs: $(VENV)/.installed ## Run every program of README.md and docs/, and check their links
	@$(PY) -m pytest tests/test_docs.py $(ARGS)

bench: $(VENV)/.installed ## Measure, print the table, write docs/benchmarks/ (ARGS=bench_import for one)
	@$(PY) -m tests.bench run $(ARGS)

bench-gpu: $(VENV)/.installed ## Measure what a GPU does, write docs/benchmarks/gpu/
	@$(PY) -m tests.bench gpu

bench-peers: $(VENV)/.installed ## Measure other packages beside this one, write docs/benchmarks/peers/ (ARGS=dqn_update for one)
	@$(PY) -m tests.peers $(ARGS)

results: $(VENV)/.installed ## Train the presets beside Stable-Baselines3, write docs/results/ (goes on where it ended)
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[box2d,mujoco,minatar,atari]'
	@$(PY) -m tests.results $(ARGS)

bench-compare: $(VENV)/.installed ## Compare the newest benchmark run with BASE=docs/benchmarks/history/<file>.json
	@test -n "$(BASE)" || { echo "Say which: make bench-compare BASE=docs/benchmarks/history/<file>.json"; exit 2; }
	@$(PY) -m tests.bench compare "$(BASE)" $(ARGS)

check: test ## The same as test

dist: $(VENV)/.installed ## Build the wheel and the source archive into dist/
	@$(PY) -m build --no-isolation --outdir dist

wheel: $(VENV)/.installed ## Use the wheel from a clean environment (ARGS="python3.11 python3.12" for several)
	@$(PY) -m tests.wheel $(ARGS)

lowest: $(VENV)/.installed ## Run the tests of units with the lowest versions that setup.cfg allows
	@$(PY) -m tests.lowest .venv-lowest $(ARGS)

# Not --quiet: that would hide dead links from its `strict`.
site: .venv-site/.installed ## Build the site into site/; fails on a dead link or a public name without an entry
	@NO_MKDOCS_2_WARNING=1 .venv-site/bin/python -m mkdocs build $(ARGS)
	@echo "Open site/index.html"

site-check: site .venv-browser/.installed ## Open the site in a headless Chromium, on a wide screen and on a phone
	@.venv-browser/bin/python -m tests.site.browser $(CHROMIUM)

recordings: $(VENV)/.runtime .venv-site/.installed ## Record `make demo` and `ding-lite top` for docs/images/, on a quiet machine
	@.venv-site/bin/python -m tests.site.recordings $(PY)

release: .venv-release/.installed ## Build and check a release; ARGS=--tag also tags it
	@.venv-release/bin/python -m tests.release $(ARGS)

clean: ## Remove what building and checking left; keeps .venv and runs/
	@rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	@find . -name __pycache__ -type d -not -path './$(VENV)*/*' -prune -exec rm -rf {} +

# torch comes first and by its pin, so that pip never has to look for another build of it.
$(VENV)/.runtime: setup.cfg constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "ding_lite needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Setting up $(VENV) (once, a few minutes)..."
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "  torch"
	@$(PIP) install -c constraints.txt torch setuptools
	@echo "  ding_lite and what it imports"
	@$(PIP) install -c constraints.txt --no-build-isolation -e .
	@touch $@

$(VENV)/.installed: $(VENV)/.runtime
	@echo "  the tools that check it"
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[test]'
	@touch $@

# The site and the release need no PyTorch, and $(VENV) nothing of theirs: an environment each,
# with what the extra of its name lists.
.venv-%/.installed: setup.cfg constraints.txt
	@echo "Setting up .venv-$* (once)..."
	@test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	@.venv-$*/bin/python -m pip --disable-pip-version-check -qq install -c constraints.txt \
	  $$($(PYTHON) -c 'from configparser import RawConfigParser as C; c = C(); c.read("setup.cfg"); print(c["options.extras_require"]["$*"])')
	@touch $@
