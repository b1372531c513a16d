# SPDX-License-Identifier: Apache-2.0
# The verbs of this repository. `make test` on a fresh machine sets everything up first; later it only does what is stale.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest
# Else each worker of pytest, and each process that a test starts, compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# Arguments for the tool behind a verb: make test ARGS="-k desync", make demo ARGS="--backend gloo"
ARGS ?=
# How long `make check` runs each fuzz target; 0: so many times as take some seconds.
FUZZ_SECONDS ?= 0

C_FILES := $(wildcard transport_c/*.py transport_c/*.h transport_c/core/*/*.[ch] transport_c/ext/*.c transport_c/ext/*/*.[ch] transport_c/kernels/*.[ch] \
	transport_c/cipher/*.[ch] \
	transport_c/udp/*.[ch] transport_c/sim/*.[ch] transport_c/sim/*/*.[ch] transport_c/lan/*.[ch])

.PHONY: help setup demo test check prove soak gpu gpu-wheels floors test-long torchft deb deb-test image docs torch-compliance lint format schema proto bench bench-long tta quant-accuracy local-accuracy lab wheels release clean

help:
	@echo "make setup      a virtual environment in $(VENV), with all that the tests need and the extension built in place"
	@echo "make demo       four daemons on this machine train LeNet-5 on real images"
	@echo "make test       the tests of all that a user is promised, three at a time; ARGS=\"-k desync\""
	@echo "make check      all else that CI runs after them: lint, sanitizers, long simulations, planted bugs, other torches (40 minutes); FUZZ_SECONDS=60 fuzzes each target for a minute (10 more)"
	@echo "make prove      forged datagrams and garbage against whole engines, keys that change all the time, nonces; ARGS=\"FORGED=1e9 GARBAGE=1e8 ROTATIONS=1e6 NONCES=1e9 SEEDS=100000\""
	@echo "make soak       three daemons under jobs that come, go and are killed: how their memory grows (15 minutes); ARGS=\"--minutes 60\""
	@echo "make gpu        what only an accelerator can say, on one GPU (5 minutes); ARGS=--fake runs it on the CPU"
	@echo "make gpu-wheels what tests/gpu/bare.sh needs to do the same on a machine without an index, in build/gpu/wheels"
	@echo "make floors     the tests of client and daemon with the lowest versions that pyproject.toml names (5 minutes)"
	@echo "make test-long  every test there is, thousands of simulated worlds and torch's own tests among them (hours)"
	@echo "make torchft    torchft's own tests of process groups on Ultima, and its Manager; fetches torchft (two minutes)"
	@echo "make torch-compliance  torch's own c10d tests on Ultima beside Gloo; writes docs/torch_compliance.md (ten minutes)"
	@echo "make lint       style, types, and that generated code is current"
	@echo "make format     rewrites the C and Python sources in the house's style"
	@echo "make schema     writes what schema/ says into the files that spell it, and then as make proto"
	@echo "make proto      regenerates the code of proto/ultima/v1"
	@echo "make bench      Ultima beside Gloo in a lab of namespaces, with pass or fail (root, 35 minutes); ARGS=\"--only loss\", ARGS=--quick"
	@echo "make bench-long the same with 2000 ops a case, for the tails (hours); ARGS=\"--only loss --case '25 MB, 1 %'\""
	@echo "make tta        time to accuracy beside Gloo on bad networks, with curves (root, 30 to 40 minutes); ARGS=--quick"
	@echo "make quant-accuracy  LeNet-5 in float32 and in 16, 8 and 4 bits an element, three seeds (an hour); ARGS=\"--steps 300\""
	@echo "make local-accuracy  DiLoCo, lost rounds and few bits beside DDP, three models, ten seeds (hours); ARGS=\"--model lenet\""
	@echo "make reproduce-ultima  the paper's own claims, each with its criterion (root, 3 minutes); ARGS=\"--only mse\""
	@echo "make reproduce-eager   eager-SGD's claims: virtual time, the simulator, 8 real daemons and trainers (4 minutes)"
	@echo "make reproduce-rna     RNA's claims, in the same way (3 minutes)"
	@echo "make reproduce-deepreduce  DeepReduce's claims: containers, codecs, toy training, a slow link (root, 3 minutes)"
	@echo "make reproduce-coded       CodedReduce's claims: loads, exact sums, virtual time, 13 real daemons (4 minutes)"
	@echo "make lab        a shell in a lab of four hosts (root); ARGS=\"--rate 1000 --loss 1\""
	@echo "make deb        the Debian package, in build/deb: service, tool, manual pages, completion (2 minutes)"
	@echo "make deb-test   the package on fresh roots: install, train, break, upgrade, purge (root, debootstrap, 5 minutes)"
	@echo "make image      a container image of the daemon, in build/image, without a registry (root, buildah, debootstrap)"
	@echo "make docs       the site of the documents and the API reference, in build/docs/site; it asks nothing of other hosts"
	@echo "make wheels     wheels for x86-64 and aarch64, checked, in build/wheels (4 minutes); ARGS=\"--only x86_64\""
	@echo "make release    archives, bill of materials, hashes and their signature in dist/; ARGS=\"--key ~/.ssh/release\""
	@echo "make clean      removes what builds and tests left behind, but not $(VENV)"

setup: $(VENV)/.installed

# Packages first, the extension after: a changed C file rebuilds the one without looking at the other.
$(VENV)/.packages: pyproject.toml deploy/development.lock deploy/torch-cpu.lock deploy/torch.lock .ci/install
	@.ci/packages
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@VENV=$(VENV) .ci/install
	@touch $@

$(VENV)/.installed: $(VENV)/.packages setup.py $(C_FILES)
	@echo "Building the extension"
	@PYTHONWARNINGS=ignore $(PY) -m pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

demo: setup
	@.ci/dataset
	@$(VENV)/bin/ultima demo $(ARGS)

# So many at a time on two cores, a file of tests to each, for they wait for four tenths of their time. More need more
# memory and cores.
JOBS ?=
beside = -n $(or $(JOBS),3) --dist loadfile --no-loadscope-reorder

test: setup
	@$(PYTEST) -q $(beside) -m "not long and not check" --durations=15 $(ARGS)

# What is fetched from elsewhere comes while lint runs; what apt does, one after the other, for it has a lock.
check: setup
	@{ .ci/prometheus; .ci/browser; .ci/arm64; } & .ci/torches & .ci/lint || wrong=$$?; wait; exit $${wrong:-0}
	@ULTIMA_FUZZ_SECONDS=$(FUZZ_SECONDS) $(PYTEST) -q $(beside) -m "check and not long" --durations=40 $(ARGS)

prove: setup
	@$(MAKE) -s -j$(or $(JOBS),2) -C transport_c prove $(ARGS)

soak: setup
	@$(PY) -m tests.soak.main $(ARGS)

gpu: setup
	@$(PY) -m tests.gpu.main $(ARGS)

gpu-wheels: setup
	@$(PY) -m tests.gpu.wheels $(ARGS)

floors: setup
	@$(PY) -m tests.floors

test-long: setup
	@$(PYTEST) -q --durations=15 $(ARGS)

torchft: setup
	@.ci/torchft $(ARGS)

torch-compliance: setup
	@$(PY) -m tests.torch.c10d.suite $(ARGS)

lint: setup
	@.ci/lint

format: setup
	@$(PY) -m ruff format --quiet client daemon examples tests proto schema setup.py
	@$(PY) -m ruff check --quiet --fix client daemon examples tests proto schema setup.py
	@find transport_c tests -name '*.[ch]' -not -path '*/build/*' -exec $(VENV)/bin/clang-format -i {} +

# Not after setup: a header that the schema has yet to change need not compile.
schema: $(VENV)/.packages
	@$(PY) -m schema.generate
	@$(PY) proto/generate.py

proto: setup
	@$(PY) proto/generate.py

bench: setup
	@$(PY) -m tests.bench.main $(ARGS)

bench-long: setup
	@$(PY) -m tests.bench.main --long $(ARGS)

tta: setup
	@.ci/dataset
	@$(PY) -m tests.bench.tta.main $(ARGS)

quant-accuracy: setup
	@.ci/dataset
	@nice -n 10 $(PY) -m tests.bench.quant_accuracy $(ARGS)

local-accuracy: setup
	@.ci/dataset
	@nice -n 10 $(PY) -m tests.bench.local_accuracy $(ARGS)

reproduce-%: setup
	@$(PY) -m tests.reproduce.main $* $(ARGS)

lab: setup
	@$(PY) -m tests.lab.lab $(ARGS)

deb: setup
	@deploy/deb/build $(ARGS)

deb-test: setup
	@$(PYTEST) -q -m long tests/packages $(ARGS)

image: setup
	@deploy/image/build $(ARGS)

docs: setup
	@$(PY) deploy/site/build.py build/docs

wheels: setup
	@$(PY) deploy/wheels.py $(ARGS)

release: setup
	@$(PY) deploy/release.py make $(ARGS)

clean:
	rm -rf build dist *.egg-info client/*.so transport_c/build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find client daemon proto schema tests transport_c -name __pycache__ -prune -exec rm -rf {} +
	rm -f $(VENV)/.installed
