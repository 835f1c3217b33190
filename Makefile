# Each target makes or updates .venv first. Examples: make lab ARGS="--no-browser --port 8890",
# make test-units ARGS="-k devices"
# TORCH=cpu or TORCH=cuda chooses PyTorch's build; without it Linux without an NVIDIA driver gets the one without CUDA.
PYTHON ?= python3
ARGS ?=
TORCH ?=
BIN := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
READY := .venv/.course-ready
LAB := .venv/.course-lab
# A worker for each core, up to eight: each takes 2 GB with its kernel and its ranks.
PYTEST := $(BIN)/python -m pytest --nbval -n auto --maxprocesses 8
UNITS := tests/gpu_course tests/course_utils tests/simgpu tests/kernelcheck tests/ranklaunch tests/benchmarks tests/project

.PHONY: lab test test-all test-units test-mistakes test-machines test-torch card lint format record site pdf slides solutions address wheel chosen

lab: $(LAB)  ## open the lessons in JupyterLab
	@$(BIN)/python tools/workbook.py $(ARGS)

test: $(READY)  ## every notebook, the gates on them, and the answers with which lessons go on
	@$(PYTEST) $(ARGS)

test-all: $(READY)  ## what takes longer as well
	@$(PYTEST) -m "slow or not slow" notebooks tests $(ARGS)
	@$(MAKE) test-torch

test-units: $(READY)  ## the tests of exercises, helpers, engines, figures and the project; CI runs it as well
	@$(PYTEST) $(UNITS) $(ARGS)

test-mistakes: $(READY)  ## answers to exercises that `make test-units` does not try; CI runs it as well
	@$(PYTEST) -m mistakes tests/gpu_course $(ARGS)

test-torch: $(READY)  ## the same tests on the oldest supported and the newest torch (GBs are downloaded)
	@$(BIN)/python tools/torch_versions.py

test-machines: $(READY)  ## every notebook as older x86 processors compute it, on 1, 2 and 4 threads (ARGS=--once: two runs of nine)
	@$(BIN)/python -m tests.machine $(ARGS)

card: $(READY)  ## draw docs/what_is_wrong.svg and .pdf from the table of symptoms
	@$(BIN)/python tools/card.py

lint: $(READY)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/python tools/notebooks.py --check && $(BIN)/lint-imports

format: $(READY)
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format . && $(BIN)/python tools/notebooks.py --fix

site: $(READY)  ## the lessons as a web site, in build/site
	@$(BIN)/python -m tools.website $(ARGS)

pdf: $(READY)  ## print the built site to build/site/course.pdf, where there is Chromium
	@$(BIN)/python -m tools.pdf $(ARGS)

slides: $(READY)  ## a deck of slides for each lesson, in build/slides
	@$(BIN)/python -m tools.slides

solutions: $(READY)  ## build/solutions.html, for instructors
	@$(BIN)/python -m tools.solutions

wheel: $(READY)  ## the wheels of the course and its engines, in dist: one for Colab and Kaggle to upload
	@$(BIN)/python tools/wheels.py

address: $(READY)  ## make address URL=https://github.com/you/your-fork: badges and set-up cells follow (AT=commit: they install it; URL=none takes it back)
	@$(BIN)/python tools/notebooks.py --address $(URL) $(AT)

record: $(READY)  ## run every lesson on this machine's GPU and write notebooks/recorded/<device>.json
	@$(BIN)/python tools/notebooks.py --record

$(LAB) $(READY): pyproject.toml constraints.txt $(if $(TORCH),chosen)
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found: install Python 3.11 or newer, or name one: make lab PYTHON=python3.13" >&2; exit 1; }
	@$(PYTHON) tools/environment.py $(if $(filter $(LAB),$@),--only lab) $(if $(TORCH),--build $(TORCH))
