#!/usr/bin/env bash
# clang-tidy over the library's and the command's host sources; every finding is an error.
set -euo pipefail
cd "$(dirname "$0")/.."

[ -f build/cpu-release/compile_commands.json ] || cmake --preset cpu-release >/dev/null
git ls-files 'src/*.cpp' | grep -v -E '_cuda\.cpp$|^src/cuda/|nccl_group\.cpp$' |
  xargs -P "$(nproc)" -n 4 clang-tidy-19 --quiet -p build/cpu-release
