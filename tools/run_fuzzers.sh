#!/usr/bin/env bash
# Runs every fuzzer for its share of SECONDS; a finding ends with status 1 and the file that shows it.
#   tools/run_fuzzers.sh SECONDS
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?usage: tools/run_fuzzers.sh SECONDS}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "run_fuzzers: SECONDS is '$seconds', needed a whole number from 1" >&2; exit 2; }

cmake --preset cpu-asan >/dev/null
cmake --build --preset cpu-asan --target fuzzers
fuzzers=(build/cpu-asan/fuzzers/*_fuzz)
jobs=$(nproc)
# Several run at a time, so each may take that many times its share.
share=$((seconds * (jobs < ${#fuzzers[@]} ? jobs : ${#fuzzers[@]}) / ${#fuzzers[@]}))
[ "$share" -ge 1 ] || share=1

fuzz() {
  local name corpus findings
  name=$(basename "$1" _fuzz)
  corpus=build/fuzz/corpus/$name    # grows from run to run
  findings=build/fuzz/findings/$name
  mkdir -p "$corpus" "$findings"
  if "$1" "$corpus" "tests/fuzz/corpus/$name" -dict=tests/fuzz/json.dict -artifact_prefix="$findings/" \
    -max_total_time="$share" -max_len=16384 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    >"$findings/log" 2>&1; then
    printf '%-20s %9s runs, no finding\n' "$name" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$findings/log")"
  else
    printf '%-20s FINDING, see %s\n' "$name" "$findings"
    tail -40 "$findings/log"
    return 1
  fi
}
export -f fuzz
export share
printf '%s\0' "${fuzzers[@]}" | xargs -0 -n 1 -P "$jobs" bash -c 'fuzz "$0"' || exit 1
