# Set-up is part of every target: the first one makes .venv and installs what it needs from the package registry.
VENV ?= .venv
OLDEST = .venv-oldest
PYTHON ?= python3
RUN = $(VENV)/bin/python
# Tests run in two processes: half of them wait for workers, disks and killed processes.
TOGETHER = --numprocesses 2 --dist worksteal
# They start a hundred processes, each of which would compile the package again.
export PYTHONDONTWRITEBYTECODE =

# Those of each package that touch what it depends on: stores, saved models, workers, the interface of scikit-learn.
OLDEST_TESTS = $(addprefix tests/, store data interface contracts/test_rows.py contracts/test_kernels.py \
	promises/test_exact.py promises/test_scikit_learn.py promises/test_resume.py algorithms/test_fitting_checkpoint.py \
	algorithms/test_cholesky.py algorithms/test_residuals.py algorithms/test_posterior.py algorithms/test_blas.py \
	algorithms/test_gram.py planning/test_plans.py cluster/test_measurements.py)

# Those that touch what depends on Python itself and on the newest packages: values, files, processes, commands.
PYTHONS = 3.12 3.13
PYTHONS_TESTS = $(addprefix tests/, store data/test_kernel_values.py data/test_categories.py contracts/test_rows.py \
	promises/test_exact.py promises/test_scikit_learn.py promises/test_resume.py algorithms/test_cholesky.py \
	algorithms/test_residuals.py interface/test_commands.py interface/test_settings.py)

# Those whose numbers depend on the kernels of BLAS, or show that a text does not.
KERNELS_TESTS = $(addprefix tests/, algorithms contracts data planning/test_decisions.py interface/test_predict_to.py \
	interface/test_shown.py $(addprefix promises/, test_exact.py test_exact_classes.py test_honest_results.py \
	test_inputs.py test_platforms.py test_resume.py test_scikit_learn.py test_theory.py))

.PHONY: demo test nightly guard kernels random coverage oldest pythons check docs format clean

demo: $(VENV)/.demo  ## Fit 20,000 molecules within 1 GiB and show the result (about 2 minutes)
	$(RUN) -m benchmarks.demo --n 20000 --memory-limit 1GiB --out output

test: check  ## Format, lint, types, the examples of README and docstrings, and the fast tests (4 minutes on 2 cores)
	$(RUN) -m pytest $(TOGETHER)

nightly: check docs random oldest pythons kernels  ## All the rest: real clusters, kills, damage, 180 digits, other versions
	HYPOTHESIS_PROFILE=nightly $(RUN) -m pytest $(TOGETHER) -m nightly

guard: $(VENV)/.test kernels  ## Those of the nightly tests that guard data: kills, damage, deletion; and kernels
	$(RUN) -m pytest $(TOGETHER) -m "nightly and guard"

kernels: $(VENV)/.test  ## The numerical tests with other BLAS kernels, and with one thread (8 minutes on 2 cores)
	$(RUN) .ci/kernels.py $(TOGETHER) $(KERNELS_TESTS)

random: $(VENV)/.test  ## The fast tests in random order, in three processes
	$(RUN) -m pytest --numprocesses 3 --dist worksteal -p randomly

# Measuring takes memory itself: promises about memory are left out.
coverage: $(VENV)/.coverage  ## Branch coverage of the fast tests, and of the processes that they start (7 minutes on 2 cores)
	$(RUN) -m coverage erase
	$(RUN) -m coverage run -m pytest $(TOGETHER) --deselect tests/promises/test_memory_limit.py
	$(RUN) -m coverage combine --quiet
	$(RUN) -m coverage report

oldest: $(OLDEST)/.suite  ## A part of the tests with the smallest versions that pyproject.toml allows
	$(OLDEST)/bin/python -m pytest $(TOGETHER) $(OLDEST_TESTS)

pythons:  ## A fast part of the tests with Python 3.12 and 3.13, and the newest packages
	.ci/pythons "$(PYTHONS)" $(PYTHONS_TESTS)

check: $(VENV)/.test  ## Format, lint and types
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

docs: $(VENV)/.docs  ## Build the documentation site in docs/_build/html; warnings are errors
	$(RUN) -m sphinx --jobs auto --fail-on-warning --quiet --doctree-dir docs/_build/doctrees docs docs/_build/html
	@echo "file://$(CURDIR)/docs/_build/html/index.html"

format: $(VENV)/.test  ## Put the code in order
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

$(VENV)/bin/python $(OLDEST)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "dkrr needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(@:/bin/python=) || \
		{ echo "Cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; \
		rm -rf $(@:/bin/python=); exit 1; }

$(VENV)/.%: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check -e ".[$*]"
	@touch $@

$(OLDEST)/.suite: pyproject.toml .ci/oldest.py | $(OLDEST)/bin/python
	@$(OLDEST)/bin/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))' || \
		{ echo "The oldest versions are built for Python 3.11 and 3.12; give one: make PYTHON=python3.11 oldest" >&2; \
		rm -rf $(OLDEST); exit 1; }
	$(OLDEST)/bin/python .ci/oldest.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(OLDEST)/constraints.txt -e ".[suite]"
	@touch $@

clean:  ## Remove the environments and what was made
	rm -rf $(VENV) $(OLDEST) $(addprefix .venv-, $(PYTHONS)) output docs/_build docs/gallery docs/api/examples docs/api/generated
