#!/usr/bin/env bash
# Tests and measures Penstock on a machine with GPUs, from programs that were built elsewhere.
# Usage: tools/gpu_check.sh PROGRAMS OUT [GIB [PART...]]
#   PROGRAMS  folder with gpu_tests and gpu_lookup_bench
#   OUT       folder for the logs
#   GIB       size of the measured tables (default 24)
#   PART      device, host_shared, host, peer: what is measured (default: all but host)
# Every step has a time limit; the exit status is that of the tests.
set -u
programs=$1 out=$2 gib=${3:-24}
parts=("${@:4}")
[ ${#parts[@]} = 0 ] && parts=(device host_shared peer)
mkdir -p "$out"

# cuBLASLt is opened at run time; it may lie in a Python package only.
lib=$(find / -xdev -name 'libcublasLt.so.1[23]' -not -path '/proc/*' 2>/dev/null | sort -r | head -1)
[ -n "$lib" ] && export LD_LIBRARY_PATH="$(dirname "$lib"):${LD_LIBRARY_PATH:-}"
echo "cuBLASLt: ${lib:-none}"
nvidia-smi --query-gpu=index,name,driver_version,memory.total,pcie.link.gen.current --format=csv 2>&1
nvidia-smi topo -m 2>&1 | head -6
echo "cpus $(nproc), $(free -g | awk '/Mem:/{print $2}') GiB, $(df -h /dev/shm | awk 'END{print $2}') shm"

step() { # step NAME SECONDS COMMAND...
  local name=$1 limit=$2 begin=$SECONDS status
  shift 2
  timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
  status=$?
  echo "== $name: status $status, $((SECONDS - begin)) s"
  return $status
}

step tests 150 "$programs/gpu_tests" --gtest_brief=1
tests=$?
grep -E 'FAILED|PASSED|SKIPPED|Failure|rror' "$out/tests.log" | head -60
[ $tests = 0 ] || tail -40 "$out/tests.log"

sanitizer=$(command -v compute-sanitizer || find / -xdev -name compute-sanitizer -type f 2>/dev/null | head -1)
if [ -n "$sanitizer" ]; then
  step sanitizer 60 "$sanitizer" --error-exitcode 9 "$programs/gpu_tests" \
    --gtest_brief=1 '--gtest_filter=*Sanitizer*:-*Matmul*:*Peer*'
  tail -4 "$out/sanitizer.log"
else
  echo "no compute-sanitizer here"
fi

for part in "${parts[@]}"; do
  step "bench_$part" 110 "$programs/gpu_lookup_bench" --gib "$gib" --parts "$part"
  cat "$out/bench_$part.log"
done
exit $tests
