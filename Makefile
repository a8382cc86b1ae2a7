# `make demo` and `make test` work in a fresh clone; they need only Python 3.11+.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Many tests wait for real processes, so there are more workers than cores.
WORKERS ?= $(shell echo $$(( 2 * $$(getconf _NPROCESSORS_ONLN) )))
# Folders whose tests start processes, a control plane or minutes of simulation.
SLOW_TIERS := bench conformance contract controlplane e2e helm page prometheus simulation soak upstream workloads

# The tests start hundreds of Python processes: each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test check static bytecode lint types layers unit bench bench-beside chaos live e2e-upstream simulate soak lock sbom docs release-check image fmt clean soak-hostile

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# With uv a warm cache makes this seconds. Both show what they install: a cold cache takes minutes.
define install
	@echo "setting up $(VENV)/ with $(if $(shell command -v uv),uv,pip), once"
	@if command -v uv >/dev/null; then \
	  uv venv --quiet --seed --allow-existing --python $(PYTHON) $(VENV) && \
	  uv pip install --python $(BIN)/python --editable '.[$(1)]' ; \
	else \
	  $(PYTHON) -m venv $(VENV) && \
	  $(BIN)/python -m pip install --disable-pip-version-check --editable '.[$(1)]'; \
	fi
	@touch $@
endef

$(VENV)/.ready: pyproject.toml
	$(call install,dev)

$(VENV)/.ready-to-run: pyproject.toml
	$(call install,run)

setup: $(VENV)/.ready  ## create the virtual environment in .venv with all dependencies

demo: $(VENV)/.ready-to-run  ## run the scheduler in a sandbox cluster and edit a policy live (10 s)
	$(BIN)/policysched demo

test: static unit  ## run ruff, mypy, the layer contracts and all tests

static: setup  # at once, because mypy alone keeps one core busy
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types bytecode lint layers

# Compiled once, while mypy runs: without it each test worker compiles everything.
$(VENV)/.bytecode: $(VENV)/.ready
	@$(BIN)/pytest --collect-only -qq >$@.log || { cat $@.log; exit 1; }
	@touch $@

bytecode: $(VENV)/.bytecode

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports

unit: setup
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

check: static  ## for every save: linters, types, layers and the in-process tests (90 s)
	$(BIN)/pytest -q -n auto --dist worksteal -m "not search" $(addprefix --ignore=tests/,$(SLOW_TIERS))

bench: setup  ## run the benchmarks, which are not part of the tests
	$(BIN)/python -m tests.bench

# PodGroups need a feature gate, and so a control plane of their own.
BESIDE := $(BIN)/python -m tests.bench.beside --nodes 1000 --nodes 5000 --pods 3000

bench-beside: setup  ## compare throughput, and latency beside hostile pods, with kube-scheduler on a real control plane
	raw=$$(mktemp --dry-run); trap "rm -f $$raw" EXIT; $(BESIDE) --raw $$raw && \
	$(BESIDE) --raw $$raw --workload "PodGroups of 3" --workload "PodGroups of 1,000" --docs docs
	$(BIN)/python -m tests.bench.beside.latency

live: setup  ## compare decisions with a running kube-scheduler on 500 random clusters
	$(BIN)/python -m tests.conformance.live --clusters 500

e2e-upstream: setup  ## run Kubernetes' own tests of scheduling beside kube-scheduler and policysched
	$(BIN)/python -m tests.upstream

chaos: setup  ## 500 seeds of faults between policysched and a real API server
	$(BIN)/python -m tests.e2e.chaos --seeds 500

soak: setup  ## an hour of churn on virtual time; fails if memory grows (about 5 minutes)
	$(BIN)/python -m tests.soak

HOSTILE_MINUTES ?= 60

soak-hostile: setup  ## an hour of a hostile tenant beside a friendly one on a real control plane
	$(BIN)/python -m tests.soak.hostile --minutes $(HOSTILE_MINUTES)

simulate: setup  ## 10,000 seeds of the fault simulation on virtual time
	$(BIN)/python -m tests.simulation --seeds 10000

# An environment of its own: what the SBOM needs makes jsonschema's import slow.
RELEASE_VENV := .venv-release

$(RELEASE_VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[release]'
	@touch $@

lock: $(RELEASE_VENV)/.ready  ## pin the dependencies of the image, with hashes, in requirements.lock and debian.lock
	$(RELEASE_VENV)/bin/uv pip compile pyproject.toml --extra otlp --universal --generate-hashes --no-header --quiet --output-file requirements.lock
	$(RELEASE_VENV)/bin/python -m deploy.image --lock

sbom: $(RELEASE_VENV)/.ready  ## write dist/sbom.json: what the image installs, as CycloneDX
	@mkdir -p dist
	$(RELEASE_VENV)/bin/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --output-reproducible -o dist/sbom.json

# An environment of its own, too: the generator brings other versions of what .venv has.
DOCS_VENV := .venv-docs

$(DOCS_VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(DOCS_VENV)/requirements.txt
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $(DOCS_VENV)/requirements.txt
	@touch $@

docs: $(DOCS_VENV)/.ready  ## build the documentation into site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet

# PYTHONS="3.11 3.13" tries the wheel with each.
release-check: $(RELEASE_VENV)/.ready  ## build everything that a release publishes, and try it
	$(RELEASE_VENV)/bin/python -m tests.release $(TAG) $(addprefix --python=,$(PYTHONS))

image: $(RELEASE_VENV)/.ready  ## build the image for amd64 and arm64 in dist/ (Debian or Ubuntu, no daemon, no root)
	$(RELEASE_VENV)/bin/python -m deploy.image

fmt: setup  ## format the Python code
	$(BIN)/ruff check --fix-only --quiet . ; $(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(RELEASE_VENV) $(DOCS_VENV) dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
