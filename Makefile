# `make demo` and `make test` are all a newcomer needs. Both make their environment themselves, in $(VENV).
# PYTHON=/path/to/python3 chooses the interpreter, ARGS="-k layout" goes to pytest.

VENV ?= .venv
PY = $(VENV)/bin/python
# Without this, `import kernels` in the repository root would find a folder of ours instead of a package of that name.
export PYTHONSAFEPATH = 1
export PYTHON

.PHONY: demo test lint mypy format install install-user bench clean

demo: install-user
	@$(PY) notebooks/demo.py

# One worker a core, two at most. The workers share compiled programs through a cache that lives for this run only.
test: install
	@cache=$$(mktemp -d) && trap 'rm -rf "$$cache"' EXIT && \
	JAX_COMPILATION_CACHE_DIR="$$cache" JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
	JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1 \
	$(PY) -m pytest -n $$($(PY) -c 'import os; print(min(2, os.cpu_count() or 1))') --dist loadfile \
	  -q --durations=15 $(ARGS)

lint: install
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(MAKE) --no-print-directory mypy

mypy: install
	@$(PY) -m mypy

format: install
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

install:
	@.ci/install $(VENV) dev

install-user:
	@.ci/install $(VENV) ""

# Each benchmark prints its table; BENCH=warmup runs that one alone.
BENCH ?= $(basename $(notdir $(wildcard benchmarks/[!_]*.py)))
bench: install
	@for name in $(BENCH); do echo "== $$name" && $(PY) benchmarks/$$name.py || exit 1; done

clean:
	rm -rf .venv .venv-newest build dist demo_output .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
