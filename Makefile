# Everything here is a thin name for a command that works without make.
PYTHON ?= python3

.PHONY: verify test test-all lint types check golden docs site requirements tool-locks mutants soak clean

verify:          ## set up, then detect, build and verify on this machine
	$(PYTHON) bootstrap.py

test:            ## set up and run the tests that can run here, within five minutes
	$(PYTHON) bootstrap.py test

test-all:        ## the slow tests, too
	$(PYTHON) bootstrap.py test --all

lint: .venv/dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python tools/rooms.py --check

types: .venv/dev
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo

check: lint types test

golden: .venv/dev  ## rewrite all golden files, digests of images among them, then look at the diff
	.venv/bin/python -m pytest --rewrite-golden --all -q

docs: .venv/dev    ## rewrite what is generated: pages of docs/reference, man pages, completions
	.venv/bin/python tools/refresh_docs.py
	.venv/bin/python tools/refresh_shell_files.py

site: .venv/dev    ## build the site into build/site; a broken link is an error
	.venv/bin/zensical build --clean --strict

requirements: .venv/dev  ## lock what envbuilder needs; UPGRADE=--upgrade for the newest versions
	.venv/bin/python tools/refresh_requirements.py $(UPGRADE)

tool-locks: .venv/dev  ## lock JupyterLab, which `envbuilder jupyter` runs; UPGRADE=--upgrade for the newest versions
	.venv/bin/python tools/refresh_tool_locks.py $(UPGRADE)

.venv/dev: pyproject.toml $(wildcard requirements/*.txt)
	$(PYTHON) bootstrap.py setup dev
	touch $@

mutants: .venv/dev ## change the code that trust rests on; at least 90 % of the changes must be noticed
	.venv/bin/python tools/mutants.py

soak: .venv/dev    ## the long proofs: thousands of examples, 50,000 hostile inputs, all sabotage, all mutants
	.venv/bin/python -m pytest tests/unit --hypothesis-profile=soak -q --durations=10
	.venv/bin/python -m pytest tests/fuzz --soak -m soak -q -s -n0
	.venv/bin/python -m pytest tests/integration --all --soak -m soak -q --durations=10
	.venv/bin/python -m pytest tests/seams --soak -m soak -q -s -n0
	.venv/bin/envbuilder verify --profile zendnn --backend venv --quick --epochs 1
	$(MAKE) mutants

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
