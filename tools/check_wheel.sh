#!/usr/bin/env bash
# Uses a wheel where there is nothing else: tools/check_wheel.sh WHEEL
# A fresh virtual environment, an empty folder, and an environment without variables or a PATH, so
# that no compiler, no CUDA and no other library of ours can be found. PYTHON picks the interpreter.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
wheel=$(realpath "$1")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"

bare() { (cd "$work" && env -i PATH=/nowhere HOME="$work" PYTHONNOUSERSITE=1 "$@"); }
bare "$work/venv/bin/penstock" --version
bare "$work/venv/bin/penstock" make-model demo --engram-vocab-size 500 --hidden 64 \
  --tokenizer "$root/examples/deepseek_v3_tokenizer.json.xz" >/dev/null
bare "$work/venv/bin/python" "$root/examples/python/01_look_up_rows.py" demo
bare "$work/venv/bin/python" "$root/examples/python/03_one_table_many_processes.py" demo
