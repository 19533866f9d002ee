#!/usr/bin/env bash
# Installs a build, and uses it from another project as the README tells a C++ user to.
#   tools/test_install.sh [BUILD]      default build/cpu-release, which must have been built
set -euo pipefail
cd "$(dirname "$0")/.."

build=${1:-build/cpu-release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/penstock" >/dev/null
cmake -S examples/cpp -B "$work/example" -DCMAKE_PREFIX_PATH="$work/penstock" >/dev/null
cmake --build "$work/example"

# The README's C++ lines, as a function of what they leave to the reader.
block() { sed -n '/^```cpp$/,/^```$/{/^```/d;p}' README.md; }
{
  block | grep '^#include'
  echo 'void readme(penstock::TokenBatch batch, std::int64_t tokens, int columns, std::int64_t layers,'
  echo '            std::span<penstock::BF16> hidden, std::span<const std::uint8_t> mask) {'
  block | grep -v '^#include'
  echo '}'
} >"$work/readme.cpp"
"${CXX:-c++}" -std=c++20 -fsyntax-only -I "$work/penstock/include" "$work/readme.cpp"

"$work/penstock/bin/penstock" make-model "$work/demo" --engram-vocab-size 500 --hidden 64 \
  --tokenizer examples/deepseek_v3_tokenizer.json.xz >/dev/null
"$work/example/look_up_rows" "$work/demo"
