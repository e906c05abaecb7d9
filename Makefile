# The two commands are `make book` and `make test`; each first makes .venv when there is none or when the pins changed.
PYTHON ?= python3
RUN ?= runs/main
BUILD ?= _build
BIN := .venv/bin
READY := .venv/.ready

.PHONY: book test lint execute claims lab bench env clean
.DEFAULT_GOAL := book

book: $(READY)  ## execute every chapter for RUN, render the site into BUILD, print where it opens
	@$(BIN)/python -m tools.render --run "$(RUN)" --build "$(BUILD)"

test: lint  ## the checks, the tests, and every committed notebook again
	$(BIN)/python -m pytest --nbval -n auto --dist loadfile

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

execute: $(READY)  ## execute the chapters' committed notebooks anew
	@$(BIN)/python -m tools.execute
	@$(BIN)/python -m tools.readme

claims: $(READY)  ## measure every claim on every saved seed anew
	$(BIN)/python -m mc_lib claims runs/seeds

lab: $(READY)  ## open JupyterLab on the chapters
	OMP_NUM_THREADS=1 $(BIN)/jupyter lab --notebook-dir=. \
	  --LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate \
	  --LabApp.news_url=None book/index.ipynb

bench: $(READY)  ## time training, and print bench/results
	$(BIN)/python -m mc_lib bench
	@$(BIN)/python -m tools.readme

env: $(READY)  ## only make .venv

# torch comes first and by itself, so that no other package's requirement decides which build of it is taken.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 14) else \
	"Python %d.%d will not do: name a Python 3.11 to 3.13 by `make PYTHON=...`" % sys.version_info[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $$(grep '^torch==' requirements.lock)
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
	@touch $@

clean:  ## remove what was built, but not .venv
	rm -rf $(BUILD)
