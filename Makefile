# Everything runs in .venv, which the first target makes. PYTHON picks the interpreter it is made with (3.10 or later).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
AUDIT := $(VENV)/audit
# COSTS=FILE has the tests write what each of them cost; tests/support/costs_table.py adds it up.
COSTING := $(if $(COSTS),--costs=$(abspath $(COSTS)))

.DEFAULT_GOAL := help
.PHONY: help setup demo test proof lint format audit protos protos-check bench-overhead clean

help:
	@echo 'make setup           install FlowEdge and its tools into $(VENV)'
	@echo 'make demo            four stages and a draft node on this machine; PROMPT="..." asks something else'
	@echo 'make test            the tests of each change; TESTS="tests/cli -k name" runs some'
	@echo 'make proof           what takes long: boards that boot systemd (as root), 10,000 histories, 100,000 messages, a storm of attacks, all cases;'
	@echo '                     BLOCK=3 runs a fifth of it, which CI does with each change'
	@echo 'make lint            ruff, mypy, import contracts, shellcheck, and whether the generated protocol code is current'
	@echo 'make audit           known vulnerabilities of the pinned packages, where their database can be reached'
	@echo 'make format          let ruff put the code in order'
	@echo 'make protos          generate flowedge/v1 from protos/'
	@echo 'make bench-overhead  what the machinery costs: a hop, bookkeeping on the draft node, memory'

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml testbed/pyproject.toml constraints.txt constraints-cp311-x86_64.txt .ci/install
	@.ci/install $(PYTHON) $(VENV)
	@touch $@

demo: setup
	@$(BIN)/flowedge demo $${PROMPT:+--prompt "$$PROMPT"}

# One thread a process: the tests run many processes, and threads that fight for a core slow all of them.
# Four processes on two cores: agents, discovery and the doctor wait for much of their time.
# Bytecode is written even where the environment says not to, because the tests start the same programs many times.
test: setup
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 4 -m 'not proof' $(TESTS) $(COSTING)

proof: setup
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m proof $(if $(BLOCK),--block $(BLOCK)) $(TESTS) $(COSTING)

lint: setup protos-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/shellcheck --external-sources device_agents/*.sh device_agents/lib/*.sh .ci/run .ci/install

# In an environment of its own, because pip-audit needs packages that FlowEdge does not.
audit: setup
	test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/python -m pip install --quiet 'pip-audit>=2.9,<3'; }
	$(BIN)/python -m testbed.tools.supply.audit $(AUDIT)/bin/pip-audit

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: setup
	$(BIN)/python protos/generate.py

protos-check: setup
	$(BIN)/python protos/generate.py --check

bench-overhead: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m testbed.tools.overhead

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
