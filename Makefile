# The interpreter that .venv is made with: make install PYTHON=python3.12
PYTHON ?= python3
# Words added to the end of the command: make run ARGS="seed=1", make test ARGS="-k autolr"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install run test docs lint format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: .venv/installed ## create .venv with the package and its tested dependencies (some minutes, once)

# The file's time is that of the last complete install: an interrupted one is made up for at the next call.
.venv/installed: pyproject.toml constraints.txt
	@echo "Installing into .venv (some minutes) ..."
	@$(PYTHON) -m venv .venv
	@.venv/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev,quantization,lm-eval]'
	@touch $@

run: install ## unlearn on the embedded model and data, then report: the first run trains the model
	@.venv/bin/unlearn-run method=ngdiff data=tofu $(ARGS)

test: install ## run every test
	@.venv/bin/pytest -n auto --maxprocesses 8 $(ARGS)

docs: install ## make docs/methods.md and docs/metrics.md anew from the code and the presets
	@.venv/bin/python -m unlearn.cli.methods_page docs/methods.md
	@.venv/bin/python -m unlearn.cli.metrics_page docs/metrics.md

lint: install ## check rules, layout and types
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy

format: install ## apply the layout and the fixes that are safe
	@.venv/bin/ruff check --fix-only
	@.venv/bin/ruff format

clean: ## remove builds and caches; .venv and the runs in outputs/ stay
	@rm -rf build dist .pytest_cache .ruff_cache .mypy_cache
	@find conf unlearn tests -name __pycache__ -type d -prune -exec rm -rf {} +
