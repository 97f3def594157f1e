# Two commands: `make demo` shows the product, `make test` tries it. Each does its own set-up
# with nothing but python3 >= 3.11 (with its venv module), make and git.
SHELL := /bin/sh
VENV ?= .venv
PY := $(VENV)/bin/python
ARGS ?=
TREE ?= .
# Some machines forbid bytecode files. Hundreds of processes would compile the sources anew then.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test faults rules floors lint types messages venv venv-test venv-demo

help:
	@echo 'make demo [ARGS="--for 60 --json"]  a whole cluster in your terminal, on SQLite'
	@echo 'make demo ARGS="--postgres --for 90"  two coordinators on PostgreSQL; the leader is killed'
	@echo 'make test [ARGS="tests/house"]      the suite on PostgreSQL, then on SQLite'
	@echo 'make faults [ARGS="-k f5"]          coordinators killed, stopped, cut off; ten minutes at most'
	@echo 'make rules                          which test tries which rule of the design'
	@echo 'make floors [TREE=path]             imports go down, one table has one writing module'
	@echo 'make lint | types | messages        ruff; mypy; translations'

venv:
	@VENV=$(VENV) sh tools/venv.sh dev

venv-test:
	@VENV=$(VENV) sh tools/venv.sh test

venv-demo:
	@VENV=$(VENV) sh tools/venv.sh $(if $(findstring --postgres,$(ARGS)),demo-postgres,demo) >&2

demo: venv-demo
	@exec $(PY) manage.py demo $(ARGS)

test: venv-test
	@VENV=$(VENV) sh tools/suite.sh $(ARGS)

faults: venv
	@FAULTS=all TEST_ENGINE=postgres $(PY) -m pytest tests/cluster/faults -q --session-timeout=600 $(ARGS)

rules: venv-test
	@$(PY) -m tools.rules $(ARGS)

floors: venv-test
	@$(PY) -m tools.floors $(TREE)

lint: venv
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

types: venv
	@$(PY) -m mypy

messages: venv
	@$(PY) -m tools.messages --write
