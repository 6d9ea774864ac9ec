.DEFAULT_GOAL := help
.PHONY: help setup wheels packages test lint lab lab-test install-test fuzz chaos mutate demo bench experiments docs lock audit clean release last-release
.DELETE_ON_ERROR:

BIN := .venv/bin
PYTEST_ARGS ?=
FUZZ_ARGS ?= --seconds 3600
SECONDS ?= 3600
CHAOS_ARGS ?=
EXPERIMENTS_ARGS ?=
MUTATE_ARGS ?=
DISTRIBUTIONS ?= debian12 debian13 el9 el10

help:    ## Show what can be made
	@sed -nE 's|^([a-z-]+): .*## (.*)|  make \1\t\2|p; s|^([a-z-]+): +## (.*)|  make \1\t\2|p' Makefile | sort -u

setup:   ## Install what the project needs (Debian packages, .venv with locked dependencies)
	@scripts/setup.sh

lint: setup ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: setup ## Check style and types, and run all tests, a pool of the lab in short among them (root)
	$(BIN)/python -m tests --lint $(PYTEST_ARGS)

lab: setup  ## Boot a whole HTCondor pool on this machine, and open a shell in it (root; downloads Debian packages once)
	@$(BIN)/python -m lab shell

lab-test: setup ## Test pools of the lab with real jobs, two side by side (root; a quarter of an hour)
	$(BIN)/python -m tests.lab $(PYTEST_ARGS)

install-test: setup ## Test the packages, installed by the pages on containers with systemd (root; downloads Debian packages once)
	$(BIN)/python -m pytest -x -v -m install $(PYTEST_ARGS) tests/install

fuzz: setup ## Fuzz every border for an hour; FUZZ_ARGS="ads --seconds 60" for one
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

chaos: setup ## Throw faults at a running controller for an hour, and check what it promised; SECONDS=300 for less (root)
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) $(CHAOS_ARGS)
	$(BIN)/python -m tests.chaos --instances 3 --seconds $(SECONDS) $(CHAOS_ARGS)

mutate: setup ## Change the calculating rooms at random places, and show which changes no test notices (minutes)
	$(BIN)/python -m tests.mutation $(MUTATE_ARGS)

demo: setup ## Show the whole controller at work: three real switches, six jobs, under 90 seconds (root)
	@$(BIN)/python -m demo

bench: setup ## Measure, and write docs/benchmarks.md (minutes)
	@$(BIN)/python -m bench

experiments: setup ## Run the papers' experiments in the lab, and write docs/experiments.md (root; some hours)
	$(BIN)/python -m experiments $(EXPERIMENTS_ARGS)

docs: setup ## Build the documentation into site/
	$(BIN)/mkdocs build --strict

wheels: setup ## Build the wheels of controller, worker service and what they share, into dist/
	@scripts/wheels.sh

packages: setup ## Build Debian packages and RPMs, into dist/; DISTRIBUTIONS=debian12 for one (installs debhelper, rpm; minutes)
	@scripts/packages.sh $(DISTRIBUTIONS)

lock: setup ## Lock the dependencies again after a change of requirements*.in
	@scripts/lock.sh $(LOCK_ARGS)

audit:   ## Compare the locked versions with published advisories; needs a way to PyPI's service or osv.dev
	@scripts/audit.sh $(AUDIT_ARGS)

release: setup ## Do and check all that a release needs, into dist/release; TESTS=no where `make test` has passed for this commit
	@scripts/release.sh $(DISTRIBUTIONS)

last-release: ## Make anew the archive of the last release that tests run beside this one; REF=v0.2.0
	@scripts/last_release.sh $(REF)

clean:   ## Remove what the other targets have made
	rm -rf .venv .audit .mypy_cache .pytest_cache .ruff_cache .hypothesis .schemathesis .fuzz .chaos build dist site *.egg-info
