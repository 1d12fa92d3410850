PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= $(shell nproc)
C_FILES := $(wildcard engine/runner/models/c/*)
LOCK ?=
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(LOCK),--constraint $(LOCK))

.PHONY: run test test-clients test-vllm lint types check format engine pictures lock audit soak clean

run: $(VENV)/.engine ## open the console on an engine of your own (ARGS='--rate 20')
	@$(BIN)/schedtop $(ARGS)

test: $(VENV)/.test ## everything that has to hold: style, types, tests
	@$(MAKE) --no-print-directory --jobs 3 lint types check

lint: $(VENV)/.test
	@mkdir -p build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache > build/imports.log || { cat build/imports.log; exit 1; }

# The folders are the packages; mypy finds them as `schedtop.*` through these links.
types: $(VENV)/.test
	@mkdir -p build/typed/schedtop
	@ln -sfn ../../../console ../../../engine ../../../kernels ../../../themes build/typed/schedtop/
	cd build/typed && MYPYPATH=. ../../$(BIN)/mypy --config-file ../../pyproject.toml -p schedtop

# With bytecode, whatever the shell says: tests start some two hundred processes.
check: $(VENV)/.test
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

test-clients: $(VENV)/.test ## real clients against the HTTP server (VLLM=PROGRAM adds vllm bench serve)
	$(BIN)/python tests/clients/check_clients.py $(ARGS)

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

engine: $(VENV)/.engine ## what running real models needs as well

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "schedtop needs Python 3.11 or later: make PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.base: $(VENV)/.venv pyproject.toml $(C_FILES)
	$(INSTALL) -e .
	@touch $@

$(VENV)/.engine: $(VENV)/.base
	$(INSTALL) -e '.[engine,http]'
	@touch $@

$(VENV)/.test: $(VENV)/.venv pyproject.toml $(C_FILES)
	$(INSTALL) -e '.[engine,http,parquet,test]'
	@touch $@ $(VENV)/.base $(VENV)/.engine

VLLM ?= $(or $(TMPDIR),/tmp)/schedtop-vllm
test-vllm: ## the hook in a real vLLM, in an environment of its own below VLLM (a few minutes to set up)
	tests/vllm/environment.sh $(VLLM)
	SCHEDTOP_TEST_MODEL=$(VLLM)/model $(VLLM)/venv/bin/python -m pytest -p no:cacheprovider tests/vllm $(ARGS)

lock: $(VENV)/.test ## write requirements.lock from what is installed (LOCK=requirements.lock installs it)
	$(INSTALL) -e '.[engine,http,operators,parquet,test]'
	$(BIN)/python .ci/lock.py > requirements.lock.part && mv requirements.lock.part requirements.lock

soak: $(VENV)/.test ## memory over two simulated hours with a console joined (minutes)
	$(BIN)/python benchmarks/soak.py $(ARGS)

audit: $(VENV)/.test ## known vulnerabilities of requirements.lock (AUDIT_DB=URL of an OSV mirror)
	@if ! $(BIN)/python -c 'import pip_audit' 2>/dev/null; then echo "audit skipped: pip-audit is not installed"; \
	elif [ -z "$(AUDIT_DB)" ]; then echo "audit skipped: no vulnerability database; give AUDIT_DB=URL of an OSV mirror"; \
	else $(BIN)/python -m pip_audit --requirement requirements.lock --no-deps --disable-pip \
	  --vulnerability-service osv --osv-url "$(AUDIT_DB)"; fi

pictures: $(VENV)/.test ## the README's pictures, from a real run
	$(BIN)/python docs/pictures/draw.py

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
