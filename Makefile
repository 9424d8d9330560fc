# The few commands of the project; each does all it needs on a Debian 12 machine.

PREFIX ?= /usr/local
SOAK_MINUTES ?= 10
STRESS_TIMES ?= 10
STRESS ?=
MUTANTS ?= protocol in-flight sync raw qcow2 log
FUZZ_SECONDS ?= 60
TARGET := $(or $(CARGO_TARGET_DIR),target)
SHARE := $(DESTDIR)$(PREFIX)/share
UNITS := $(DESTDIR)$(PREFIX)/lib/systemd/system
MODELLED := -p flowstone-reactor -p flowstone-cache -p flowstone-image -p flowstone-qcow2 -p flowstone-log \
	-p flowstone-runner

# Where rustup puts cargo, for the run that has just installed it.
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: help demo test bench results evidence evidence-guests soak stress fuzz mutants install

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 24

demo: ## Boot a real Linux guest on a flowstone disk and show what happens
	@scripts/setup
	@cargo build --release -p flowstone-cli -p flowstone-vmtest --bins
	@$(TARGET)/release/demo

test: ## Check everything: style, documentation, licences, all tests, real guests
	scripts/setup --ci
	shellcheck scripts/* tests/vm/libvirt
	cargo fmt --all --check
	cargo deny check licenses bans sources
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy -p flowstone-cli -- -D warnings
	cargo clippy $(MODELLED) --features model --lib --tests -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	cargo build --workspace --bins
	scripts/static-guest
	scripts/run-tests $(MODELLED)

bench: ## Measure against qemu-storage-daemon and fio; writes README.md and docs/benchmarks.md
	scripts/setup
	cargo build --release -p flowstone-bench -p flowstone-cli
	target/release/flowstone-bench results --only bench

results: ## Measure all tables of speed again (2.5 h, estimated); RESULTS="--only NAME" or "--list"
	scripts/setup
	cargo build --release -p flowstone-bench -p flowstone-cli -p flowstone-guest
	target/release/flowstone-bench results $(RESULTS)

evidence: ## Measure the tables of docs/evidence again (47 min); EVIDENCE="--only NAME" or "--quick"
	scripts/setup
	cargo build --release -p flowstone-bench -p flowstone-cli
	target/release/flowstone-bench evidence $(EVIDENCE)

evidence-guests: ## Record the guests whose traces some tables of docs/evidence replay (42 min, once)
	scripts/setup --evidence
	cargo build --release -p flowstone-bench -p flowstone-cli -p flowstone-vmtest --bins
	target/release/flowstone-bench evidence --record $(EVIDENCE)

soak: ## Random long runs of the soak tests; SOAK_MINUTES=10 each
	scripts/setup --soak
	cargo build --release --workspace --bins
	SOAK_MINUTES=$(SOAK_MINUTES) FLOWSTONE_REQUIRE_GUESTS=1 \
		cargo test --release --workspace -- --ignored --nocapture soak

stress: ## All tests but real guests, again and again on a busy machine; STRESS_TIMES=10 STRESS="NAME ..."
	scripts/setup --ci
	scripts/stress-tests $(STRESS_TIMES) $(STRESS)

fuzz: ## Fuzz what guests and monitors can send, and images; FUZZ_SECONDS=60 per target
	scripts/setup --fuzz
	for target in $$(cargo fuzz list); do \
		RUSTC_BOOTSTRAP=1 cargo fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) -timeout=60 -len_control=0 || exit; \
	done

mutants: ## Break what keeps data safe, one step at a time: a test must fail; MUTANTS=log is one of its parts
	scripts/setup --mutants
	scripts/mutants $(MUTANTS)

install: ## Install binaries, manual pages and completions below PREFIX=/usr/local
	cargo build --release -p flowstone-cli
	install -D -m 755 $$(scripts/static-guest) $(DESTDIR)$(PREFIX)/bin/flowstone-guest
	cargo xtask dist
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(TARGET)/release/flowstone
	install -D -m 644 -t $(SHARE)/man/man1 target/dist/man/*.1
	install -D -m 644 -t $(SHARE)/man/man5 target/dist/man/*.5
	for name in flowstone flowstone-guest; do \
		install -D -m 644 target/dist/completions/$$name.bash $(SHARE)/bash-completion/completions/$$name; \
	done
	install -D -m 644 -t $(SHARE)/zsh/site-functions target/dist/completions/_flowstone*
	install -D -m 644 -t $(SHARE)/fish/vendor_completions.d target/dist/completions/*.fish
	install -d $(UNITS)
	sed 's|/usr/local|$(PREFIX)|' guest/cli/systemd/flowstone-guest@.service >$(UNITS)/flowstone-guest@.service
