# make sweep: a fresh machine to a first result; make test: a fresh machine to green tests. Both need python3, pip and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SITE_TORCH := $(shell $(PYTHON) -c 'import importlib.util as u; print(int(bool(u.find_spec("torch"))))' 2>/dev/null)
SWEEP ?=

.PHONY: sweep test test-versions lint docs dist coverage fuzz clean

sweep: $(VENV)/installed
	@$(BIN)/python -c 'import torch; from nccl_bench.measure.nccl_library import running_nccl as r; print("torch", torch.__version__, "- libnccl:", *filter(None, r()) if any(r()) else ("none loaded: no NCCL in this torch",))'
	$(BIN)/nccl-bench sweep $(SWEEP)
	@if $(BIN)/nccl-bench report --help >/dev/null 2>&1; then $(BIN)/nccl-bench report latest; fi

test: $(VENV)/tools lint
	$(BIN)/python -m pytest -q -m "not slow" || { echo "once more, what failed: real processes on a busy machine"; $(BIN)/python -m pytest -q -m "not slow" --last-failed; }
	$(MAKE) --no-print-directory test-versions

lint: $(VENV)/tools
	$(BIN)/ruff check nccl_bench tests benchmarks
	$(BIN)/mypy

# What needs no torch also runs on the other Pythons that are installed here.
test-versions: $(VENV)/tools
	tests/other_pythons.sh

# The pages of docs/ as a site in build/site; what is wrong in them ends it.
docs: $(VENV)/tools
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -q

# wheel and sdist in dist/
dist: $(VENV)/tools
	$(BIN)/python -m build --no-isolation -o dist .

# Where the base python has torch already, the venv takes it, so that the site's own NCCL is measured.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(if $(filter 1,$(SITE_TORCH)),--system-site-packages) $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	@touch $@

$(VENV)/tools: $(VENV)/installed
	$(BIN)/python -m pip install -q -c constraints.txt pytest pytest-timeout pytest-cov hypothesis ruff mypy pandas-stubs types-defusedxml pyarrow build setuptools mkdocs-material
	@touch $@

# Every property of parsers, criteria and records with TIMES its usual examples (100 at TIMES=1); says how many were tried.
TIMES ?= 20
FUZZED := any_record readers criteria store hostlist spec groups env nccl_tests_import nccl_tests_log tables_import watchdog deepspeed \
  fabric_files fabric_ib fabric_nccl_log fabric_nccl_xml fabric_select fabric_smi launchers interfaces stopping
fuzz: $(VENV)/tools
	mkdir -p build
	NCCL_BENCH_EXAMPLES_TIMES=$(TIMES) nice $(BIN)/python -m pytest -q -p no:cacheprovider --hypothesis-show-statistics $(FUZZED:%=tests/test_%.py) > build/fuzz.log; \
	code=$$?; tail -n 3 build/fuzz.log; awk '/ passing, / {n += $$2} END {print n, "examples passed"}' build/fuzz.log; exit $$code

# Lines of nccl_bench/ that the tests reach, without what needs GPUs.
coverage: $(VENV)/tools
	$(BIN)/python -m pytest -q -m "not slow" --cov=nccl_bench --cov-report=term-missing:skip-covered

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
