# Two commands: `make try` sets all up and runs the main job; `make test` sets all up and passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
FABRIC ?= examples/shenzhen-shanghai.yaml
SEED ?= 0
RUNS ?= 0-19
# Real ranks, rails and daemons on a busy machine miss a time-out now and then: what failed is run once more, by itself, and must pass.
once_more = { echo "isthmus: not all passed; what failed runs once more"; $(BIN)/python -m pytest -q -p no:randomly --last-failed --last-failed-no-failures none $(1); }
WORKLOAD ?= examples/workloads/llama-3-8b-256k.yaml

.PHONY: try test test-tunnel test-slurm guide docs figures check bench accuracy bench-codecs bench-peers quality prediction accuracy-steps bench-layouts chaos chaos-sample fuzz doctor-accuracy fuzz-doctor validate-crds clean help

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@echo "isthmus: setting up $(VENV) (Python $$($(PYTHON) -c 'import platform; print(platform.python_version())'))"
	@echo "isthmus: torch 2.13.0 is the largest part: about 200 MB as a CPU wheel, some GB where pip only finds a CUDA build"
	@$(PYTHON) -c 'import sys; sys.exit("isthmus needs Python >= 3.11, found " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[runtime,report,docs,dev]'
	@touch $(STAMP)

## make try      set up, then train in the wind tunnel: describe, plan, try (FABRIC=examples/...)
try: $(STAMP)
	$(BIN)/isthmus try $(FABRIC) --workload $(WORKLOAD)

## make test     set up, then all tests: the fast ones, then those with real ranks and namespaces
test: $(STAMP)
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 || $(call once_more,)
	$(BIN)/python -m pytest -q -m tunnel -p no:randomly || $(call once_more,-m tunnel)

## make test-slurm  two real Slurm clusters in the wind tunnel train together; root, Debian's slurmctld and slurmd (about two minutes)
test-slurm: $(STAMP)
	$(BIN)/python -m pytest -q -rs -s -m slurm -p no:randomly tests/deploy || $(call once_more,-s -m slurm)

## make guide    every command of docs/guide/first-hour.md, in order, in a fresh folder (two minutes)
guide: $(STAMP)
	$(BIN)/python -m pytest -q -m guide -p no:randomly tests/docs

## make docs     the site: guides, concepts, reference, decisions; into build/site (a warning is an error)
docs: $(STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d build/doctrees docs build/site
	@echo "isthmus: open build/site/index.html"

## make figures  the figures of docs/concepts, drawn anew from the program's own formulas
figures: $(STAMP)
	$(BIN)/python docs/site/figures.py

## make check    formatters, linters, types, import contracts
check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports

## make bench    benchmarks with their physical limits
bench: $(STAMP)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/link_fidelity.py --quick
	$(BIN)/python benchmarks/all_reduce.py
	$(BIN)/python benchmarks/doctor_bundle.py

## make accuracy predictions of collectives against public measurements, sources left out (2 minutes of one core)
accuracy: $(STAMP)
	$(BIN)/python benchmarks/accuracy.py

## make bench-codecs  encode + decode of each codec on one core, as a share of a copy's speed (half a minute)
bench-codecs: $(STAMP)
	$(BIN)/python benchmarks/codecs.py

## make accuracy-steps  predicted against public training steps, source by source (a few seconds)
accuracy-steps: $(STAMP)
	$(BIN)/python benchmarks/accuracy_steps.py

## make bench-layouts  Calculon's 1,031,448 layouts priced and ranked on one core (CALCULON=checkout CALCULON_PYTHON=bin compares)
bench-layouts: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/layouts.py $(if $(CALCULON),--calculon $(CALCULON) --calculon-python $(CALCULON_PYTHON))

## make validate-crds CRDS=folder  every manifest of every example against the CRDs of Volcano, JobSet, Trainer and Kueue
validate-crds: $(STAMP)
	$(BIN)/python tests/deploy/kubernetes/validate_crds.py $(CRDS)

## make quality  final loss of int4 and local steps against every-step fp32 (three seeds, about 12 minutes)
quality: $(STAMP)
	$(BIN)/python benchmarks/quality.py

## make prediction  predicted against measured steps in the wind tunnel, three unlike fabrics, cell by cell (FABRIC=metro STRATEGY=int4; CHUNK=6: a fabric a trial; SHOW=1)
prediction: $(STAMP)
	$(BIN)/python benchmarks/prediction.py $(if $(filter file,$(origin FABRIC)),,--fabric $(FABRIC)) $(if $(STRATEGY),--strategy $(STRATEGY)) $(if $(CHUNK),--chunk $(CHUNK)) $(if $(SHOW),--show)

## make bench-peers  torchft, hivemind and isthmus beside each other (own environments in build/peers; about 25 minutes)
bench-peers: $(STAMP)
	$(BIN)/python benchmarks/peers/run.py --json build/peers/runs.json

## make chaos    200 scripted faults over 2, 3 and 4 regions in 20 runs (about 35 minutes); SEED=n draws others, RUNS=0-4 plays a part
chaos: $(STAMP)
	$(BIN)/python benchmarks/chaos/run.py --seed $(SEED) --runs $(RUNS) --results build/chaos-$(SEED).json

## make chaos-sample  20 faults in three runs (about three minutes)
chaos-sample: $(STAMP)
	$(BIN)/python benchmarks/chaos/run.py --sample --seed $(SEED)

## make fuzz     10^6 frames, good, damaged and invented, into the frame reader (some minutes); SEED=n draws others
fuzz: $(STAMP)
	$(BIN)/python benchmarks/fuzz_frames.py --seed $(SEED)

## make doctor-accuracy  recall and precision of the doctor (CORPUS=folder with INDEX.md; ../shared/corpus when there)
doctor-accuracy: $(STAMP)
	$(BIN)/python benchmarks/doctor_accuracy.py $(CORPUS)

## make fuzz-doctor  10^5 damaged, mixed and foreign texts into the doctor (about ten minutes); SEED=n draws others
fuzz-doctor: $(STAMP)
	$(BIN)/python benchmarks/fuzz_doctor.py --seed $(SEED)

## make clean    remove the environment and caches
clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache build dist
