#!/bin/bash
# Installs the Debian packages that a command of this repository needs and that are missing.
# Usage: scripts/install-deps.sh build|demo|test
set -euo pipefail

build=(gcc libc6-dev)
run=(btrfs-progs e2fsprogs mmdebstrap ca-certificates curl git python3 util-linux)
clients=(python3-venv uidmap)
# A real browser, and real programs that go through egress.
programs=(chromium openssh-client openssh-server openssl postgresql)

case "${1:-}" in
  build) wanted=("${build[@]}") ;;
  demo) wanted=("${build[@]}" "${run[@]}") ;;
  test) wanted=("${build[@]}" "${run[@]}" "${clients[@]}" "${programs[@]}") ;;
  *) echo "usage: $0 build|demo|test" >&2; exit 2 ;;
esac

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
# Node may come from elsewhere than Debian, and then brings npm with it.
if [ "$1" = test ]; then
  command -v node >/dev/null || missing+=(nodejs)
  command -v npm >/dev/null || missing+=(npm)
  command -v javac >/dev/null || missing+=(default-jdk-headless)
fi
if ! command -v cargo >/dev/null; then
  echo "error: no Rust toolchain: cargo" >&2
  echo "hint: install one with rustup" >&2
  exit 1
fi
if [ "${#missing[@]}" -gt 0 ]; then
  sudo=()
  [ "$(id -u)" = 0 ] || sudo=(sudo)
  echo "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  "${sudo[@]}" apt-get -qq update
  "${sudo[@]}" apt-get -qq install --yes --no-install-recommends "${missing[@]}" >/dev/null
fi
if [ "$1" = test ] && ! cargo nextest --version >/dev/null 2>&1; then
  echo "installing cargo-nextest"
  cargo install --quiet --locked cargo-nextest
fi
# Python programs that tests need, each group in an environment of its own.
environment() {
  cd "$(dirname "$0")/../$1"
  if ! [ venv/installed -nt requirements.txt ]; then
    echo "installing $2"
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check --requirement requirements.txt
    touch venv/installed
  fi
}
if [ "$1" = test ]; then
  # A local server that speaks AWS's APIs, and what tries out our own.
  (environment tests-aws "the double of AWS")
  (environment tests-api "the tester of the contract")
  # The published clients that the guest has to keep working with.
  (environment tests-sdk "the Python client")
  cd "$(dirname "$0")/../tests-sdk"
  if ! [ node_modules/installed -nt package.json ]; then
    echo "installing the Node client"
    npm install --silent --no-audit --no-fund
    touch node_modules/installed
  fi
  # Clients of the Model Context Protocol, with the Node that they need; their own scripts are not run.
  cd ../tests-mcp
  if ! [ node_modules/installed -nt package.json ]; then
    echo "installing the clients of the Model Context Protocol"
    npm install --silent --no-audit --no-fund --ignore-scripts --force
    touch node_modules/installed
  fi
fi
