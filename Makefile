# Each target makes the virtual environment when it is missing, installs what it needs once, and runs.
#   PYTHON  the interpreter a new environment is made with (python3)       VENV  where it lies (.venv)
#   CUDA    cu12, cu13 or nothing: the extra with cuDNN and the CUDA compiler; by default what the driver here runs
#   EXTRAS  more extras of pyproject.toml, such as torch                   ARGS  more arguments for the command run

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
comma := ,
space := $(subst ,, )

# nvidia-smi prints the newest CUDA version that the driver runs
driver_cuda := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA[A-Za-z ]*Version: *\([0-9]*\)\..*/\1/p' | head -n 1)
ifeq ($(origin CUDA), undefined)
  CUDA := $(if $(driver_cuda),$(if $(filter 12,$(driver_cuda)),cu12,$(if $(filter-out 8 9 10 11,$(driver_cuda)),cu13)))
endif

# one stamp for each set of extras, whatever their order; a newer pyproject.toml installs again
stamp = $(VENV)/.installed-$(subst $(space),-,$(strip $(sort $(1) $(subst $(comma), ,$(EXTRAS)) $(CUDA))))

.PHONY: install validate planted test lint format gpu-test fuzz bench benches docs linkcheck lowest clean
.DEFAULT_GOAL := test

# what tests need and EXTRAS, no more
install: $(call stamp,cli test)

validate: $(call stamp,cli)
	$(BIN)/numbadnn validate $(ARGS)

# on every core, but where there is a GPU on 8 at most: each process takes about 1 GB of its memory
test: $(call stamp,cli test)
	$(BIN)/python -m pytest -n auto --dist worksteal $(if $(driver_cuda),--maxprocesses 8) $(ARGS)

# as many processes as there are cores and as the memory of all GPUs holds, 2 GB each
gpu_room = $(shell nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | awk '{n += int($$1 / 2048)} END {print n ? n : 1}')
gpu-test: $(call stamp,cli test)
	$(BIN)/python -m pytest -m gpu -n logical --maxprocesses $(gpu_room) --dist worksteal $(ARGS)

# random problems and random garbage, until the time is over: make fuzz ARGS="--seconds 600 --seed 7"; each problem several
# times on every implementation of a backend: make fuzz ARGS="--backend numba"
fuzz: $(call stamp,cli test)
	$(BIN)/python -m numbadnn.validate.fuzz $(ARGS)

# mistakes planted in one layer, 50 times each in every place where they are to be named, and 200 runs without a false alarm
planted: $(call stamp,cli test onnx)
	TESTS_TRIALS=50 $(BIN)/python -m pytest -n auto --dist worksteal tests/models/test_planted_layers.py $(ARGS)

lint: $(call stamp,lint)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(call stamp,lint)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# layers of real networks beside PyTorch: make bench ARGS=--quick; a table, bench/results/*_layers.json and .png
bench: $(call stamp,bench cli)
	$(BIN)/python bench/bench_layers.py $(ARGS)

# every other bench, one after the other
benches: $(call stamp,bench cli)
	for file in $(filter-out bench/bench_layers.py,$(wildcard bench/bench_*.py)); do $(BIN)/python $$file $(ARGS) || exit 1; done

# build/docs/html, where a warning is an error; the gallery's examples run again when they have changed, those in pages are tests
docs: $(call stamp,docs)
	rm -rf docs/made/api
	$(SPHINX) -W -b html docs build/docs/html $(ARGS)
	@echo "written to build/docs/html/index.html"

# links to other hosts; those within the documentation are checked by every build
linkcheck: $(call stamp,docs)
	$(SPHINX) -b linkcheck docs build/docs/linkcheck || true
	$(BIN)/python docs/_ext/gone.py build/docs/linkcheck/output.json

SPHINX = $(BIN)/python -m sphinx -q -d build/docs/doctrees

# the oldest version of everything that pyproject.toml admits, and some tests on them; make lowest LOWEST=highest: the newest
LOWEST ?= lowest-direct
lowest: $(VENV)/.created
	$(PYTHON) -m venv --clear $(VENV)/$(LOWEST)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(VENV)/$(LOWEST)/bin/python --resolution $(LOWEST) --editable '.[cli,test]'
	$(BIN)/uv pip list --quiet --python $(VENV)/$(LOWEST)/bin/python
	$(VENV)/$(LOWEST)/bin/python -m pytest -n auto $(or $(ARGS),tests/process/test_whole.py tests/cpu/test_cpu_softmax.py tests/ops)

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; v = sys.version_info; (3, 11) <= v < (3, 15) or sys.exit("numbadnn needs Python 3.11 to 3.14, $(PYTHON) is %d.%d: give another with make PYTHON=..." % v[:2])'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed-%: pyproject.toml | $(VENV)/.created
	@echo "installing numbadnn[$(subst -,$(comma),$*)] into $(VENV): once, a few minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(subst -,$(comma),$*)]'
	@touch $@

clean:
	rm -rf $(VENV) build dist docs/made .pytest_cache .ruff_cache .mypy_cache .hypothesis
