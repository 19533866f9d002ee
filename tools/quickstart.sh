#!/usr/bin/env bash
# From a fresh clone on Debian 12 to the main job: installs what is missing, builds, makes a small
# model with the real layout, and serves its Engram layers on real text, checked bit for bit.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/install_dependencies.sh
cmake --preset cpu-release >/dev/null
cmake --build --preset cpu-release

penstock=build/cpu-release/src/cli/penstock
[ -f build/demo/config.json ] || "$penstock" make-model build/demo --like deepseek-v4.1-flash --tokenizer examples/deepseek_v3_tokenizer.json.xz
"$penstock" inspect build/demo
"$penstock" run build/demo --tokens examples/tokens/requests.json --chunk 256 --verify
