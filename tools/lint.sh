#!/usr/bin/env bash
# clang-tidy over the library's and the command's host sources; every finding is an error. The sources are read a
# dozen at a time, as in the unity builds: most of the time goes into headers.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake --preset lint >/dev/null
# The unity files include sources, on purpose; the flags are those of g++.
sed -n 's/^ *"file": "\(.*\)".*/\1/p' build/lint/compile_commands.json |
  xargs -P "$(nproc)" -n 1 clang-tidy-19 --quiet -p build/lint --checks=-bugprone-suspicious-include \
    --extra-arg=-Wno-unknown-warning-option
