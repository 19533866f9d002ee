#!/usr/bin/env bash
# Installs what Penstock needs on Debian 12. Does nothing where everything is there already.
#   tools/install_dependencies.sh [--checks]     --checks: also what the linters, sanitizers and fuzzers need
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config git xz-utils ca-certificates
  nlohmann-json3-dev libfmt-dev libcli11-dev liblzma-dev libdnnl-dev ocl-icd-opencl-dev
  libopenmpi-dev openmpi-bin iproute2 util-linux libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev libicu-dev
  python3 python3-dev python3-venv)
[ "${1:-}" = --checks ] && packages+=(clang-19 clang-format-19 clang-tidy-19 libclang-rt-19-dev ccache)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
"${sudo[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
