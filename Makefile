# make demo    shows what inferlets do, on the demo model; the first time it sets up .venv
# make test    runs all checks, and tests of everything
# make test-all  the same with whole corpora and more examples: before a release (see docs/testing.md)
# make dev     sets up .venv for work on Pie itself (see CONTRIBUTING.md)
# make serve   starts a server on the demo model
# make clean   removes .venv and caches
#
# TORCH_INDEX=URL takes torch from that package index, TORCH_INDEX= from where pip finds it (see scripts/install.py).

PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
INSTALL := $(BIN)/python scripts/install.py
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

INTERPRETER := $(shell sed -n '1s/^\#!//p' $(BIN)/pie 2>/dev/null)
ifneq ($(INTERPRETER),$(wildcard $(INTERPRETER)))
ifneq ($(MAKECMDGOALS),clean)
$(error $(VENV) was made elsewhere, and cannot be moved: `make clean` removes it, and the next make makes it anew)
endif
endif

.PHONY: demo dev test test-all serve clean
.DELETE_ON_ERROR:

demo: $(INSTALLED)
	@$(BIN)/pie demo

dev: $(INSTALLED_DEV)

serve: $(INSTALLED)
	@$(BIN)/pie serve

test: $(INSTALLED_DEV)
	@PATH="$(abspath $(BIN)):$$PATH" scripts/test

test-all: $(INSTALLED_DEV)
	@PATH="$(abspath $(BIN)):$$PATH" scripts/test all

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; set PYTHON=... if it has another name than $(PYTHON)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "Python's venv module is missing: apt-get install python3-venv (on Debian and Ubuntu)" >&2; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) (some minutes the first time)"
	@$(INSTALL)
	@touch $@

$(INSTALLED_DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) with what the tests need (some minutes the first time)"
	@$(INSTALL) dev
	@touch $@ $(INSTALLED)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
