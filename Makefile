# The two commands of a newcomer, and the few of a developer.
# `make demo` shows the product; `make test` runs every check there is. Both install the Debian
# packages that they need.

.PHONY: help build demo test tidy clean

help:
	@echo "make demo   build everything and show it, every result checked"
	@echo "make test   run every check: format, lints, tests, documentation"
	@echo "make build  build target/release/bastide"
	@echo "make tidy   check the house rules only"

build:
	scripts/install-deps.sh build
	cargo build --locked --release --package cli --bin bastide

demo:
	scripts/install-deps.sh demo
	cargo build --locked --release --package cli --bin bastide
	cargo xtask demo

test:
	scripts/install-deps.sh test
	cargo xtask ci

tidy:
	cargo xtask tidy

clean:
	cargo clean
