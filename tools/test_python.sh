#!/usr/bin/env bash
# Installs the Python package into a virtual environment of its own and runs its tests and type
# checks. PYTHON picks the interpreter. With ccache the library is compiled once for this and for
# the release preset: compiler, flags, warnings and the depth of the build folder are the same.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
venv=build/venv-$tag
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  'scikit-build-core>=1.1' 'nanobind>=3.1' ninja numpy ml_dtypes pytest hypothesis mypy
export CXX=${CXX:-c++}
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
  --force-reinstall -Cbuild-dir="build/wheel-$tag" -Ccmake.define.PENSTOCK_WERROR=ON .

"$venv/bin/python" -m pytest -q -rs tests/python
"$venv/bin/python" -m mypy --strict -p penstock
"$venv/bin/python" -m mypy --strict tests/python/typing_examples.py
