# Everything but `PY` and `PYTHON` is found out; see `make help`.

PYTHON ?= python3
EXTRA := $(if $(or $(wildcard /proc/driver/nvidia/version),$(shell nvidia-smi -L 2>/dev/null)),cuda12)
PICTURES := skimage:hubble_deep_field skimage:moon
# That on a cluster starts processes of its own, and is left out.
EXAMPLES := $(filter-out cluster,$(basename $(notdir $(wildcard examples/*.py))))

# A PY from outside has all that it needs: then no environment is made.
ifeq ($(origin PY),undefined)
PY := .venv/bin/python
FOR_DEMO := .venv/.demo-$(EXTRA)
FOR_BENCH := .venv/.bench-$(EXTRA)
FOR_TEST := .venv/.test-$(EXTRA)
FOR_UPSTREAM := .venv/.upstream-$(EXTRA)
FOR_DIST := .venv/.dist
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo check test lint docs fuzz soak upstream gpu-test gpu-sanitize bench warm dist clean

help:
	@echo "make demo          describe and equalise pictures, and run the examples; the results are in demo/"
	@echo "make check         lint, then the tests of the folders that changed; BASE=HEAD~1 says since when"
	@echo "make test          lint, then all tests that this machine can run"
	@echo "make lint          ruff and mypy"
	@echo "make docs          the documentation as a site, build/docs/index.html"
	@echo "make fuzz          random cases against NumPy for a minute, or FUZZ_SECONDS=600; ONLY=files: damaged files"
	@echo "make soak          2,000 random calls on a cluster that is dealt with badly, or SOAK_CALLS, then SOAK_PHASES; writes docs/reliability.md"
	@echo "make upstream      other libraries' own tests, with ours in the place of their functions; adds to docs/others.md"
	@echo "make gpu-test      the GPU tests; writes docs/verified.json"
	@echo "make gpu-sanitize  a few cases under compute-sanitizer"
	@echo "make bench         time kernels, or without a GPU NumPy chunks, beside other libraries; writes docs/performance.md"
	@echo "make warm          compile kernels and loops ahead, for this machine"
	@echo "make dist          build sdist and wheel, and try them in clean environments of each Python here"
	@echo "make clean         remove the environment and all that was built"
	@echo
	@echo "PYTHON=python3.12  the Python to make .venv with (now: $(PYTHON))"
	@echo "PY=/path/python    use this Python as it is, and make no .venv"

demo: $(FOR_DEMO)
	$(PY) -m dask_coop describe $(PICTURES) --out demo
	@for name in $(EXAMPLES); do \
		echo "$(PY) examples/$$name.py --out demo"; \
		$(PY) examples/$$name.py --out demo || exit; \
	done

# Since the branch left main, or on main since the last commit.
check: lint
	$(PY) tools/check.py $(if $(BASE),--base $(BASE))

# Tests of clusters wait for much of their time, so there are more processes than processors.
PROCESSES = $(shell $(PY) -c "import os; print(min(8, os.cpu_count() * 3 // 2))")

# What stands on a GPU is tested by one process: several would share its memory.
test: lint
	$(PY) -m pytest -q -n $(PROCESSES) --dist loadgroup -m "not gpu"
	$(if $(EXTRA),$(PY) -m pytest -q -m gpu,@echo "Tests marked gpu are left out: there is no NVIDIA GPU here")

lint: $(FOR_TEST)
	$(PY) -m ruff check --quiet
	$(PY) -m ruff format --check --quiet
	$(PY) -m mypy

# A warning, such as of a broken link, is an error. The gallery's scripts run once; tests run them
# in any case, and build the site without.
docs: $(FOR_TEST)
	$(PY) -m sphinx --fail-on-warning --keep-going --quiet --jobs auto $(SPHINX) docs build/docs
	@echo "build/docs/index.html"

# On CuPy chunks where there is a GPU; tests/fuzz/__main__.py lists what can be set besides.
fuzz: $(FOR_TEST)
	$(if $(ONLY),FUZZ_ONLY=$(ONLY)) PYTHONPATH=tests:tools$${PYTHONPATH:+:$$PYTHONPATH} $(PY) -m fuzz

# What can be set is in tests/soak/__main__.py.
soak: $(FOR_TEST)
	PYTHONPATH=tests:tools$${PYTHONPATH:+:$$PYTHONPATH} $(PY) -m soak

# Their tests are taken from sdists, which pip finds.
upstream: $(FOR_UPSTREAM)
	$(PY) tools/upstream.py --results benchmarks/results/workloads/suites.json -- -n logical --maxprocesses 8; \
		status=$$?; $(PY) -m benchmarks.systems.others --write; exit $$status

gpu-test: $(FOR_TEST)
	$(PY) tools/gpu_run.py

gpu-sanitize: $(FOR_TEST)
	$(PY) tools/sanitize.py

bench: $(FOR_BENCH)
	$(PY) -m dask_coop bench

warm: $(FOR_DEMO)
	$(PY) -m dask_coop warm

dist: $(FOR_DIST)
	$(PY) tools/release.py

clean:
	rm -rf .venv demo dist build docs/api docs/gallery .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

comma := ,

.venv/.demo-$(EXTRA): pyproject.toml | .venv/bin/python
	@echo "Installing dask_coop$(if $(EXTRA), with CUDA: a gigabyte$(comma) some minutes)"
	@.venv/bin/python -m pip install -q --disable-pip-version-check -e ".[cli,cpu$(if $(EXTRA),$(comma)$(EXTRA))]"
	@touch $@

.venv/.bench-$(EXTRA): pyproject.toml | .venv/bin/python
	@echo "Installing dask_coop and what it is timed beside$(if $(EXTRA), with CUDA: a gigabyte$(comma) some minutes)"
	@.venv/bin/python -m pip install -q --disable-pip-version-check -e ".[bench$(if $(EXTRA),$(comma)$(EXTRA))]"
	@touch $@ .venv/.demo-$(EXTRA)

# The tests need all that the demo needs, and more.
.venv/.test-$(EXTRA): pyproject.toml | .venv/bin/python
	@echo "Installing dask_coop and what its tests need$(if $(EXTRA), with CUDA: a gigabyte$(comma) some minutes)"
	@.venv/bin/python -m pip install -q --disable-pip-version-check -e ".[test,$(or $(EXTRA),nvrtc)]"
	@touch $@ .venv/.demo-$(EXTRA)

.venv/.upstream-$(EXTRA): pyproject.toml $(FOR_TEST)
	@.venv/bin/python -m pip install -q --disable-pip-version-check -e ".[upstream]"
	@touch $@

.venv/.dist: pyproject.toml | .venv/bin/python
	@.venv/bin/python -m pip install -q --disable-pip-version-check -e ".[dist]"
	@touch $@

.venv/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "No $(PYTHON) here; give another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is $$($(PYTHON) --version), and dask_coop needs 3.11 or newer: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }
