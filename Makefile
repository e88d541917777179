# Targets for developers and CI. The text after two hashes describes a target; `make` without a
# target lists them.

SHELL := /bin/sh
CARGO ?= cargo
# Additional flags for the daemon of `make run`, such as DAEMON_FLAGS=-v=4.
DAEMON_FLAGS ?=
# `--unless-tested` skips `make test-image` if nothing but our own code has changed since it passed.
IMAGE_TEST ?=
# The number of seeds of `make chaos`, and of rounds of its tests with several replicas. By default,
# the 14 seeds that contain every fault, and as many rounds as in `make test`.
ROUNDS ?=
# The first seed. A seed determines which faults are combined; set it to the seed that a failure
# reports to reproduce the failure.
SEED ?=
# Selects the features of dependencies that tests use, so that tests and other commands share
# builds. No crate has examples.
SHARED := --examples
# The servers of tests are Go programs with little to do, so they need few threads, and little
# garbage collection before they have this much memory. Their timers may be 20 ms late.
SERVERS := GOMAXPROCS=1 GOGC=800 GOMEMLIMIT=600MiB SERVER_TIMER_SLACK=20000000
# The tests of all crates, as in `make test`. For a selection of them, cargo would build the
# dependencies again, with other features.
TESTS := --tests
# The tests of `make test-release`, which `make test` leaves out.
LONG := release:: chaos::alone:: garbage::aggregated:: scale::migration::
SKIPPED := $(addprefix --skip ,$(LONG) chaos::leaks::)
# Additional arguments for `make bench`, such as BENCH_FLAGS='--only=due --rounds=3'. The program
# lists them with --help.
BENCH_FLAGS ?=

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: servers ## start a control plane, the daemon with every controller and the samples, until Ctrl-C
	@hack/build portreeve kubectl-portreeve portreeve-run
	@target/debug/portreeve-run target/debug/portreeve controllers/*/samples $(DAEMON_FLAGS)

.PHONY: test
# Tests mostly wait for servers, so more of them run than there are cores. Errors have a context, so
# a backtrace would only bury the message.
test test-release test-image: export RUST_TEST_THREADS ?= 10
test test-release test-image: export RUST_BACKTRACE = 0
test: control-plane loom ## run the tests of the workspace, on real servers
	$(SERVERS) hack/test/run --workspace -- $(SKIPPED)

.PHONY: test-release
test-release: control-plane controller-manager manifest-tools prometheus cainjector former-version ## test the chart, the overlays, the alert rules, the update from a former version, and what takes long: each fault alone and combined with others, aggregated APIs, a large migration
	ROUNDS=$(or $(ROUNDS),14) $(SERVERS) hack/test/run --workspace $(TESTS) -- $(LONG) chaos::random:: --skip release::image::

.PHONY: test-image
test-image: control-plane ## build the image's binary and test it; 9 minutes on two cores, 4 after an edit
	$(SERVERS) hack/image/test $(IMAGE_TEST)

.PHONY: test-go
test-go: servers ## test the Go helper for tests of operators, with envtest
	hack/testenv/test

.PHONY: test-all
test-all: test test-release test-go test-image ## run every test

.PHONY: loom
loom: ## test interleavings of threads in the work queue with loom; LOOM_MAX_PREEMPTIONS=n tests more
	RUSTFLAGS="--cfg loom" $(CARGO) test --locked --target-dir target/loom -p portreeve-workqueue --lib interleavings

.PHONY: chaos
chaos: control-plane ## run every fault alone, ROUNDS=n seeds of combined faults from SEED=n on, a kill after every effect, a hanging call of each controller, the search for leaks, 220 rotations of certificates, the tests of several replicas, and namespaces that are created again
	EXHAUSTIVE=1 ROUNDS=$(or $(ROUNDS),14) SEED=$(SEED) $(CARGO) test --locked --workspace $(TESTS) chaos:: -- --nocapture
	ROTATIONS=200 $(CARGO) test --locked --workspace $(TESTS) certificates::replicas -- --nocapture
	ROTATIONS=20 ROTATE_BY=time $(CARGO) test --locked --workspace $(TESTS) certificates::replicas -- --nocapture
	ROUNDS=$(ROUNDS) $(CARGO) test --locked --workspace $(TESTS) -- ha:: namespaces::successors:: --nocapture

.PHONY: compat
compat: control-plane ## run core tests against older releases of kube-apiserver, which take 20 minutes to build
	hack/compat/run

.PHONY: scale
scale: control-plane former-version ## run the tests under load in full size, which `make test` runs in a small form
	SCALE=1 $(CARGO) test --locked --workspace $(TESTS) -- scale:: rolling_update:: webhooks::attacks:: --nocapture

.PHONY: bench
bench: control-plane controller-manager image-binary ## measure the image's binary and its peers into BENCHMARKS.md; takes 80 minutes
	$(CARGO) build --locked --release -p portreeve-bench
	@target/release/portreeve-bench target/image/portreeve $(BENCH_FLAGS)

.PHONY: lint
lint: ## check format, lints, docs, dependencies and the rules of this repository
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --lib --bin portreeve-bench --bin portreeve-run $(SHARED)
	$(CARGO) test --locked --workspace --test tidy
	@folder=$$(hack/deny/build) && "$$folder/cargo-deny" --locked check -D warnings licenses bans sources

.PHONY: verify
verify: lint test-all ## run everything that must pass before a change is merged

.PHONY: servers
servers: ## build etcd and kube-apiserver into the cache, unless they exist
	@hack/controlplane/build etcd kube-apiserver >/dev/null

.PHONY: control-plane
control-plane: servers ## build the servers and a client-go elector into the cache, unless they exist
	@hack/leaderelection/build >/dev/null

.PHONY: controller-manager
controller-manager: ## build kube-controller-manager into the cache, unless it exists
	@hack/controlplane/build kube-controller-manager >/dev/null

.PHONY: manifest-tools
manifest-tools: ## build helm and kustomize into the cache, unless they exist
	@hack/manifests/build >/dev/null

.PHONY: prometheus
prometheus: ## put prometheus, promtool and the Prometheus operator's CRDs into the cache, unless they exist
	@hack/prometheus/install >/dev/null
	@hack/prometheus/crds >/dev/null

.PHONY: cainjector
cainjector: ## build cert-manager's cainjector into the cache, unless it exists
	@hack/cainjector/build >/dev/null

.PHONY: former-version
former-version: ## build the daemon as it was before CronTab v2 into the cache, unless it exists
	@hack/formerversion/build >/dev/null

.PHONY: image
image: ## build the image: one static binary, with buildah, podman or docker
	@hack/image/build image

.PHONY: image-binary
image-binary: ## build only the image's static binary
	@hack/image/build binary >/dev/null

.PHONY: update
update: ## regenerate definitions, policies, roles, fences, FlowSchemas, the PrometheusRule, docs/configuration.md and docs/metrics.md
	UPDATE_EXPECT=1 $(CARGO) test --locked $(patsubst controllers/%/crds.yaml,-p portreeve-%,$(wildcard controllers/*/crds.yaml)) -p portreeve-daemon --lib -- crds_are_generated_from_the_types manifests::
	@hack/update
