# uswap: everything that is done by hand or by CI. `make` alone lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
# A failed test says what happened; a backtrace of the test harness adds nothing to it.
export RUST_BACKTRACE := 0
# Where rustup puts cargo, also before a new shell has been opened.
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: help build demo test house loom test-vm soak bench bench-quick fuzz lint install-deps

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

build: ## the binary, in the target folder under release/uswap
	@./tests/install-deps build
	cargo build --release --workspace

demo: ## a Python program in a quarter of the memory it needs, with and without uswap (sets up what it needs, minutes the first time)
	@./tests/install-deps demo
	cargo build --release -p uswap-cli
	@./demo/run

# Many tests of the command only wait: they run on more threads, but busy programs have places (tests/common/places.rs).
test: install-deps ## all tests that CI runs (about 17 minutes on two cores)
	status=0; \
	cargo test --release --workspace --exclude uswap-cli --no-fail-fast || status=$$?; \
	RUST_TEST_THREADS="$${RUST_TEST_THREADS:-$$((3 * $$(nproc)))}" cargo test --release -p uswap-cli --no-fail-fast || status=$$?; \
	exit $$status

house: ## how the code is laid out: folders, functions, loops of imports, names (a second)
	@tests/house

# Little optimised and without debug information: compiling is most of it.
loom: ## the models of the lock-free protocols: every interleaving (a minute and a half, most of it compiling)
	CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target}/loom" RUSTFLAGS="--cfg loom" \
		CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_DEBUG=0 \
		cargo test --release -p uswap-abi -p uswap-core --lib models

test-vm: build ## --ram auto under cgroup v2, in a virtual machine (a minute with KVM, some without; needs qemu-system-x86, busybox-static)
	@tests/vm/run

soak: install-deps ## the long tests: minutes each (USWAP_SOAK_MINUTES, default 2)
	@tests/soak

bench: build ## uswap beside the kernel: tables and plots in bench-results (25 minutes, BENCH="--budget 90" gives more)
	"$${CARGO_TARGET_DIR:-target}/release/uswap-bench" $(BENCH)

bench-quick: build ## the same in under a minute: four patterns, half of the memory
	"$${CARGO_TARGET_DIR:-target}/release/uswap-bench" --quick $(BENCH)

fuzz: ## whatever reads bytes from outside, a minute for each of its parsers (USWAP_FUZZ_SECONDS)
	fuzz/run

# In the profile of the tests, whose build scripts and macros it shares; also what only debug builds have is looked at.
# The second line is for modules that a registry declares in a macro, where cargo fmt does not see them.
lint: ## format, clippy, and cargo-deny where it is installed
	cargo fmt --all --check
	rustfmt --edition 2024 --check crates/uswap-store/src/codec/*.rs crates/uswap-device/src/kinds/*.rs \
		crates/uswap-core/src/reclaim/*.rs crates/uswap-lab/src/policies/*.rs
	cargo clippy --release --workspace --all-targets -- -C debug-assertions=on -D warnings
	@if command -v cargo-deny >/dev/null; then cargo-deny check bans licenses sources; \
	else echo "cargo-deny is not installed: licences and sources were not checked (cargo install cargo-deny)"; fi

install-deps: ## what the tests use: compilers, servers, interpreters (as root; otherwise says what is missing)
	@./tests/install-deps
