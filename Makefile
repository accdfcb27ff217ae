# Every target makes its own virtual environment first, so a bare machine with Python 3.11+ needs nothing else.
# The first Python that runs, is new enough and can make environments: a name on the PATH alone proves nothing.
PYTHON ?= $(shell for python in python3.14 python3.13 python3.12 python3.11 python3; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && \
	echo $$python && break; done)
BIN := .venv/bin
STAMP := .venv/.installed
CLASSES := .venv/spark-classes.jsa

SEEDS ?= 200
START ?= 0
MUTATION ?=
PAYMENTS ?=
MODEL_ARGUMENTS ?=
KILLS ?= 200
MINUTES ?= 20
ROUNDS ?= 20
TRANSACTIONS ?= 50000
SEED ?= 1
DATABASE ?= sqlite
SAMPLE ?= 12
PROCESSES ?= 3

# Tests start hundreds of processes: one that may not keep what it has compiled compiles all of the project again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: blocking check test nightly demo docs simulate model kill-test soak smoke torture-pipeline torture-delivery packages bench bench-peers format clean

$(STAMP): pyproject.toml proving/pyproject.toml
	@test -n "$(PYTHON)" || { echo "needs Python 3.11 or later with venv (Debian: apt-get install python3-venv)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,all]' -e proving
	touch $(STAMP)

# Half of what each Spark of a test takes to start is saved by an archive of the classes that it loads.
$(CLASSES): $(STAMP) tests/rigs/quickspark.py
	PYTHONPATH=tests $(BIN)/python -m rigs.quickspark

# Three processes for two cores: some tests wait rather than work. mypy has one core, so the tests do not wait for it.
check: $(STAMP) ## format, lint, types, import contracts, unit tests, a few simulation seeds: 2 minutes on 2 cores
	$(BIN)/ruff format --check src proving tests benchmarks examples docs/site
	$(BIN)/ruff check src proving tests benchmarks examples docs/site
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest -m 'not slow' -n 3 --dist worksteal --sample $(SAMPLE); tests=$$?; \
	wait $$types || { echo "mypy has found what stands above the tests"; exit 1; }; exit $$tests

# What needs a browser or a database that is not installed is skipped, with a reason; with POLONAISE_CI=1 that fails.
# Of exhaustive tests, many of a kind, each commit draws another part: tests/exhaustive.py says how to have it again.
# Three processes for two cores: some slow tests wait for what starts, or falls silent. Five were hardly quicker. One of
# them has Spark, and one the databases: tests/together.py.
test: check $(CLASSES) ## all that a newcomer should see pass: about 25 minutes on 2 cores; SAMPLE=n, one of n exhaustive tests; PROCESSES=n
	$(BIN)/python -m pytest -m 'slow and not alone and not campaign' -n $(PROCESSES) --dist loadscope --no-loadscope-reorder --sample $(SAMPLE)
	$(BIN)/python -m pytest -m 'slow and alone and not campaign' --sample $(SAMPLE)

nightly: SAMPLE := 1
nightly: test ## `make test` with all of the exhaustive tests, then the campaigns that are tests: longer
	$(BIN)/python -m pytest -m campaign

demo: $(STAMP) ## a bank on the log, then its accounts on shards; PAYMENTS=file for real payments: under 6 minutes
	$(BIN)/polonaise demo bank --output build/demo $(if $(PAYMENTS),--payments '$(PAYMENTS)')
	$(BIN)/polonaise demo shards

simulate: $(STAMP) ## fault schedules: SEEDS=how many START=first MUTATION=one to find
	$(BIN)/python -m polonaise_proving.simulator --seeds $(SEEDS) --start $(START) $(if $(MUTATION),--mutation $(MUTATION))

model: $(STAMP) ## session start, the owner and the player explored exhaustively over the production decisions
	$(BIN)/python -m polonaise_proving.model $(MODEL_ARGUMENTS)

kill-test: $(STAMP) ## processes on an embedded log, and on a cluster, and its nodes, killed with -9: KILLS=how many SEED=n
	$(BIN)/python -m polonaise_proving.scenarios.kill --kills $(KILLS) --seed $(SEED)
	$(BIN)/python -m polonaise_proving.scenarios.kill --kills $(KILLS) --seed $(SEED) --cluster

soak: $(STAMP) ## a cluster at work, killed and given up on; each process must stay as small as it was: MINUTES=how long SEED=n
	$(BIN)/python -m polonaise_proving.scenarios.soak --minutes $(MINUTES) --seed $(SEED)

# Goes on where an interrupted run was: remove the directory to begin anew.
smoke: $(STAMP) ## a cluster on hosts of its own, whose parts are killed, stopped, cut off and wiped: TRANSACTIONS=n SEED=n
	$(BIN)/polonaise smoke --transactions $(TRANSACTIONS) --seed $(SEED) --directory build/smoke/$(SEED)-$(TRANSACTIONS)

torture-pipeline: $(STAMP) ## Spark's drivers and workers, and the log below them, killed at random: ROUNDS=how many SEED=n DATABASE=kind
	$(BIN)/python -m pytest -m campaign tests/torture
	$(BIN)/python -m polonaise_proving.scenarios.pipeline.campaign --rounds $(ROUNDS) --seed $(SEED) --database $(DATABASE)

torture-delivery: $(STAMP) ## targets, players and the log below them, killed and stopped at random: MINUTES=n SEED=n DATABASE=kind
	$(BIN)/python -m polonaise_proving.scenarios.delivery --minutes $(MINUTES) --seed $(SEED) --database $(DATABASE)

packages: $(STAMP) ## both wheels with all extras, in an empty environment, run the demo: some minutes
	$(BIN)/python -m pytest -m campaign tests/packaging

bench: $(STAMP) ## every benchmark; writes the figures in docs/performance.md and docs/scale.md
	$(BIN)/python benchmarks/append.py --write
	$(BIN)/python benchmarks/one_append.py --write
	$(BIN)/python benchmarks/embedded.py --write
	$(BIN)/python benchmarks/partitions.py --write
	$(BIN)/python benchmarks/idle_clients.py --write
	$(BIN)/python benchmarks/views.py --write
	$(BIN)/python -m benchmarks.delivery --write
	$(BIN)/python benchmarks/fragments.py --write
	$(BIN)/python benchmarks/spark.py --write
	$(BIN)/python benchmarks/scale.py --write

bench-peers: $(STAMP) ## the same work at Kafka, PostgreSQL and NATS JetStream: about 8 minutes; writes the tables in docs/why.md
	$(BIN)/python -m benchmarks.peers --write

docs: $(STAMP) ## the pages of docs/ and the API reference as one searchable site, into build/docs; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/docs/index.html in a browser: neither a server nor a network is needed"

blocking: $(STAMP) ## what threads have, made from the asynchronous classes
	PYTHONPATH=tests $(BIN)/python -m rigs.blockingwriter

format: $(STAMP)
	$(BIN)/ruff format src proving tests benchmarks examples docs/site
	$(BIN)/ruff check --fix src proving tests benchmarks examples docs/site

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
