# make install   make .venv and install into it
# make run       install, fetch the default model, answer a question
# make test      install with the test extras, run the tests
# Each step leaves a stamp in .venv, so that a second call starts at once.

PYTHON   ?= python3
VENV     ?= .venv
QUESTION ?= Why is the sky blue? Answer in three sentences.
TORCH    ?= torch==2.13.0
TESTS    ?=
PYTEST_FLAGS ?=

BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := pyproject.toml $(shell find CMakeLists.txt native src -type f -not -name '*.pyc' -not -name '*.so' 2>/dev/null)

.PHONY: install run test lint clean
.DELETE_ON_ERROR:

install: $(VENV)/installed

run: $(VENV)/installed
	@$(BIN)/forwardpass run "$(QUESTION)"

test: $(VENV)/installed $(VENV)/test-tools
	@$(BIN)/forwardpass pull smollm2-135m
	$(BIN)/python -m pytest $(PYTEST_FLAGS) $(TESTS)

lint: $(VENV)/made
	$(PIP) install -qq "ruff>=0.9"
	$(BIN)/ruff check src tests benchmarks examples docs

clean:
	rm -rf build dist $(VENV)

# The build tools live in the environment, not in a temporary one, so that a rebuild compiles only what changed.
$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit("forwardpass needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) || { echo "could not make $(VENV): install Python's venv module (python3-venv)"; rm -rf $(VENV); exit 1; }
	@echo "installing the build tools"
	@$(PIP) install -qq "scikit-build-core>=0.10" "nanobind>=2.4" "cmake>=3.25" ninja
	@touch $@

$(VENV)/installed: $(VENV)/made $(SOURCES)
	@echo "building and installing forwardpass (the first time takes a minute or two)"
	@PATH="$(abspath $(BIN)):$$PATH" $(PIP) install -qq --no-build-isolation -C build-dir=build/make .
	@touch $@

$(VENV)/test-tools: $(VENV)/made pyproject.toml
	@echo "installing what the tests compare with: $(TORCH), transformers and others"
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["test"], sep="\n")' > $(VENV)/test.txt
	@$(PIP) install -qq $(TORCH) -r $(VENV)/test.txt
	@touch $@
