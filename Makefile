# Set-up is part of every target: the first one makes .venv and installs what it needs from the package registry.
VENV ?= .venv
PYTHON ?= python3
RUN = $(VENV)/bin/python
# Tests run in two processes: half of them wait for workers, disks and killed processes.
TOGETHER = --numprocesses 2 --dist worksteal
# They start a hundred processes, each of which would compile the package again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test quick check format clean

demo: $(VENV)/.demo  ## Fit 20,000 molecules within 1 GiB and show the result (about 2 minutes)
	$(RUN) -m benchmarks.demo --n 20000 --memory-limit 1GiB --out output

test: check  ## Everything CI runs
	$(RUN) -m pytest $(TOGETHER)

quick: $(VENV)/.test  ## Tests but for the slow ones
	$(RUN) -m pytest $(TOGETHER) -m "not slow"

check: $(VENV)/.test  ## Format, lint and types
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

format: $(VENV)/.test  ## Put the code in order
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "dkrr needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "Cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; rm -rf $(VENV); exit 1; }

$(VENV)/.%: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check -e ".[$*]"
	@touch $@

clean:  ## Remove the environment and what was made
	rm -rf $(VENV) output
