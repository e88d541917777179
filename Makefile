# What a person or CI runs. Each target says what it is for after two hashes; `make` alone lists them.

SHELL := /bin/sh
CARGO ?= cargo
# More flags for the daemon of `make run`, such as DAEMON_FLAGS=-v=4.
DAEMON_FLAGS ?=
# How many seeds `make chaos` tries, and how many hand-overs, crashes, partitions and races of replicas; without it, as many as `make test` runs.
ROUNDS ?=
# The first of the seeds that say which faults come together: the one that a failure names, to play it again.
SEED ?=
# More arguments for `make bench`, such as BENCH_FLAGS='--only=due --rounds=1'; the program lists them with --help.
BENCH_FLAGS ?=

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: servers ## start a control plane, the daemon with every controller and the samples, until Ctrl-C
	$(CARGO) build --locked -p portreeve -p portreeve-run
	@target/debug/portreeve-run target/debug/portreeve deploy/samples $(DAEMON_FLAGS)

.PHONY: test
# Tests wait for servers more than they work, and the servers are Go programs that live for seconds.
test: export RUST_TEST_THREADS ?= 6
test: export GOGC ?= off
test: export GOMEMLIMIT ?= 1GiB
test: control-plane manifest-tools image-binary loom ## run every test of the workspace, on real servers
	$(CARGO) test --locked --workspace

.PHONY: loom
loom: ## try the ways in which threads can meet in the work queue, with loom; LOOM_MAX_PREEMPTIONS=n tries more
	RUSTFLAGS="--cfg loom" $(CARGO) test --locked --target-dir target/loom -p portreeve-workqueue --lib interleavings

.PHONY: chaos
chaos: control-plane ## run every fault alone, ROUNDS=n seeds of them together from SEED=n on, and those of several replicas
	ROUNDS=$(ROUNDS) SEED=$(SEED) $(CARGO) test --locked -p portreeve --test integration chaos:: -- --nocapture
	ROUNDS=$(ROUNDS) $(CARGO) test --locked -p portreeve --test ha -- --nocapture

.PHONY: bench
bench: control-plane image-binary ## measure what goes into the image beside its peers, into BENCHMARKS.md; 6 hours
	@hack/controlplane/build kube-controller-manager >/dev/null
	$(CARGO) build --locked --release -p portreeve-bench
	@target/release/portreeve-bench target/image/portreeve $(BENCH_FLAGS)

.PHONY: lint
lint: ## check format, lints, docs and the rules of this tree
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps
	$(CARGO) test --locked -p portreeve-tests --test tidy
	@hack/verify

.PHONY: verify
verify: lint test ## everything that has to pass before a change goes in

.PHONY: servers
servers: ## build etcd and kube-apiserver into the cache, unless they are there
	@hack/controlplane/build etcd kube-apiserver >/dev/null

.PHONY: control-plane
control-plane: servers ## build the servers and a client-go elector into the cache, unless they are there
	@hack/leaderelection/build >/dev/null

.PHONY: manifest-tools
manifest-tools: ## build helm and kustomize into the cache, unless they are there
	@hack/manifests/build >/dev/null

.PHONY: image
image: ## build the image: one static binary, with buildah, podman or docker
	@hack/image/build image

.PHONY: image-binary
image-binary: ## build only the static binary that goes into the image
	@hack/image/build binary >/dev/null

.PHONY: order
order: control-plane ## find out which functions of the daemon run, for the linker, into hack/image/order.ld; needs valgrind
	@hack/image/order

.PHONY: update
update: ## regenerate what is written from the code: definitions, roles, fences, docs/configuration.md
	@hack/update
