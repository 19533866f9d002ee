#!/usr/bin/env bash
# Builds a wheel, installs it into a virtual environment of its own, and runs the tests and type
# checks there; then the wheel alone in another environment. PYTHON picks the interpreter. The tests
# of penstock.torch run where that environment has torch, else they print why they do not.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
venv=build/venv-$tag
wheel=$(tools/build_wheel.sh build/dist --config-settings=cmake.define.PENSTOCK_WITH_CUDA=OFF --config-settings=cmake.define.PENSTOCK_WERROR=ON)
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check ml_dtypes pytest hypothesis mypy
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheel"

"$venv/bin/python" -m pytest -q -rs tests/python
"$venv/bin/python" -m mypy --strict -p penstock
"$venv/bin/python" -m mypy --strict tests/python/typing_examples.py
"$venv/bin/python" tools/make_api_docs.py python --check
tools/check_wheel.sh "$wheel"
