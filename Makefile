# Two commands matter: `make quickstart` and `make test`.
PYTHON := $(or $(EFT_PYTHON),$(shell command -v python3.11 || command -v python3))
VENV := $(or $(EFT_VENV),.venv)
BIN := $(VENV)/bin
RUNS ?=
OUT ?= out/smollm2_135m
export TOKENIZERS_PARALLELISM := false

.PHONY: env serve-env scaffold-env quickstart test test-fast test-slow lint clean-env

env:
	@$(PYTHON) scripts/make_env.py

serve-env: env
	@$(PYTHON) scripts/make_serve_env.py

scaffold-env: env
	@$(BIN)/python scripts/make_scaffold_env.py

quickstart: env serve-env
	$(BIN)/eft run recipes/smollm2_135m --form short --root $(OUT) $(foreach r,$(RUNS),--runs $(r))

test: env serve-env
	$(BIN)/python -m pytest -m "not slow"

test-fast: env
	$(BIN)/python -m pytest -m "not slow and not integration and not multirank and not serve"

test-slow: env serve-env
	$(BIN)/python -m pytest -m slow

lint: env
	$(BIN)/ruff check eft data_tools tests scripts benchmarks

clean-env:
	rm -rf .venv .venv-serve .venv-scaffolds
