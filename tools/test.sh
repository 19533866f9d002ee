#!/usr/bin/env bash
# Builds and runs every test that needs no GPU, and ends with the runner's summary.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/install_dependencies.sh
cmake --preset cpu-release >/dev/null
cmake --build --preset cpu-release
ctest --preset cpu-release -j "$(nproc)"
