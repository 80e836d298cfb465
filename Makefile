# make demo: trains, evaluates and exports a tiny T5 on the text in tasks/demo_corpus.
# make test: runs the tests; make test-all: also the slow cases.
# Both make .venv and install what they need, once.

VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN = $(VENV)/bin
# An editable installation warns about folders named like packages; ours are meant to be.
INSTALL = PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet

demo: $(VENV)/demo-installed
	$(BIN)/python -m t5jax.train --gin_file=demo.gin

test: $(VENV)/test-installed
	$(BIN)/python -m pytest

test-all: $(VENV)/test-installed
	$(BIN)/python -m pytest -m ""

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip

$(VENV)/demo-installed: setup.py | $(VENV)/bin/python
	$(INSTALL) --editable '.[hf]'
	touch $@

# t5 comes without its requirements: they would overwrite the files of seqio and tensorflow-datasets.
$(VENV)/test-installed: setup.py | $(VENV)/bin/python
	$(INSTALL) --editable '.[hf,test]'
	$(INSTALL) --no-deps t5==0.9.4
	touch $@

clean:
	rm -rf $(VENV) runs/demo

.PHONY: demo test test-all clean
