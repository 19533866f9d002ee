#!/usr/bin/env bash
# Tests and measures Penstock on a machine with GPUs, from a built tree (preset cuda-release, with
# -DPENSTOCK_WITH_NCCL=ON where NCCL is). Usage: tools/gpu_check.sh BUILD OUT [PART...]
#   BUILD   the build folder
#   OUT     folder for the logs
#   PART    tests, sanitizer, lookup, backing, prefetch, gate, run, full: what is done (default: all but full)
# TOKEN_MAP names a tokenizer.json for builds without liblzma (default: examples' own). Every step has
# a time limit; the exit status tells whether all steps passed.
set -u
build=$1 out=$2
parts=("${@:3}")
[ ${#parts[@]} = 0 ] && parts=(tests sanitizer lookup backing prefetch gate run)
cd "$(dirname "$0")/.."
mkdir -p "$out"
penstock=$build/src/cli/penstock tests=$build/tests/gpu/gpu_tests
token_map=${TOKEN_MAP:-examples/deepseek_v3_tokenizer.json.xz}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# cuBLASLt and NCCL are opened at run time; they may lie in a Python package only.
for name in libcublasLt.so.13 libnccl.so.2; do
  lib=$(find / -xdev -name "$name" -not -path '/proc/*' 2>/dev/null | head -1)
  [ -n "$lib" ] && export LD_LIBRARY_PATH="$(dirname "$lib"):${LD_LIBRARY_PATH:-}"
done
gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader | wc -l)
{
  date -u +%F
  nvidia-smi --query-gpu=index,name,driver_version,memory.total,pcie.link.gen.current --format=csv
  echo "cpus $(nproc), $(free -g | awk '/Mem:/{print $2}') GiB"
} | tee "$out/machine.log"

failed=0
step() { # step NAME SECONDS COMMAND...: its output goes to NAME.log
  local name=$1 limit=$2 begin=$SECONDS status
  shift 2
  echo "\$ $*" | sed "s|$build/[a-z/]*/||g; s|$work|WORK|g" >>"$out/$name.log"
  timeout -k 5 "$limit" "$@" >>"$out/$name.log" 2>&1
  status=$?
  echo "== $name: status $status, $((SECONDS - begin)) s"
  [ $status = 0 ] || { failed=1; tail -15 "$out/$name.log" | cut -c1-300; }
}

part_tests() { step tests 300 "$tests"; }

part_sanitizer() {
  local tool sanitizer
  sanitizer=$(command -v compute-sanitizer || find / -xdev -name compute-sanitizer -type f 2>/dev/null | head -1)
  [ -n "$sanitizer" ] || { echo "== sanitizer: not run, there is no compute-sanitizer here"; return; }
  # initcheck does not see what cuBLASLt's kernels write, and so not what follows a product. racecheck
  # takes minutes of a library's sort, and none of our kernels is part of it.
  for tool in memcheck racecheck initcheck; do
    local without='*Matmul*'
    [ $tool = initcheck ] && without='*Matmul*:*Step*'
    [ $tool = racecheck ] && without='*Matmul*:*Ordered*'
    step "sanitizer_$tool" 120 "$sanitizer" --tool "$tool" --error-exitcode 9 "$tests" --gtest_brief=1 \
      "--gtest_filter=*Sanitizer*:PeerRows*:-$without"
  done
}

part_lookup() {
  local bench=("$penstock" bench lookup --device cuda --gib 24)
  step lookup 120 "${bench[@]}" --placement device
  step lookup 120 "${bench[@]}" --placement device --graph --tokens 1,8,64
  step lookup 120 "${bench[@]}" --placement host_shared
  step lookup 120 "${bench[@]}" --placement host_shared --graph --tokens 1,8,64
  if python3 -c 'import torch, triton' 2>/dev/null; then
    step lookup 120 python3 bench/gpu/triton_lookup.py
  else
    echo "== triton_lookup.py: not run, torch or triton is missing"
  fi
  [ "$gpus" -lt 2 ] && { echo "== lookup of peer: not run, one GPU"; return; }
  step lookup 120 "${bench[@]}" --placement peer --ranks 2
  step lookup 120 "${bench[@]}" --placement peer --ranks 2 --graph --tokens 1,8,64
}

# Tables made of each kind of host memory: what opening them costs, and that the rows are right.
part_backing() {
  local bench=("$penstock" bench lookup --device cuda --placement host_shared --gib 8 --tokens 8192)
  local run=("$penstock" run "$work/backing" --tokens examples/tokens/requests.json --device cuda --verify
    --placement host_shared)
  local backings=(auto memfd cumem) pages=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages before=0
  [ -r $pages ] && before=$(cat $pages)
  { echo $((before + 4200)) >$pages; } 2>/dev/null && backings+=(hugetlb auto) ||
    echo "== backing hugetlb: not run, no right to reserve huge pages"
  "$penstock" make-model "$work/backing" --tokenizer "$token_map" >/dev/null
  for backing in "${backings[@]}"; do
    step backing 120 "${bench[@]}" --backing "$backing"
    [ "$gpus" -lt 2 ] || step backing 120 "${bench[@]}" --backing "$backing" --ranks 2
    step backing 60 "${run[@]}" --backing "$backing"
    [ "$gpus" -lt 2 ] || step backing 60 "${run[@]}" --backing "$backing" --dp 2 --processes
  done
  { echo "$before" >$pages; } 2>/dev/null
}

part_prefetch() {
  step prefetch 120 "$penstock" bench prefetch --gib 24 --tokens 8192,1024
  step prefetch 120 "$penstock" bench prefetch --gib 24 --tokens 8192 --work 48 --work-tokens 2048
}

part_gate() {
  [ "$gpus" -lt 2 ] && { echo "== gate: not run, one GPU"; return; }
  local bench=("$penstock" bench gate --device cuda --ranks 2 --repeat 20)
  step gate 120 "${bench[@]}" --shape 2816x8192 --tokens 1024,4096,16384 --way three_op,auto,k_shard_naive
  step gate 120 "${bench[@]}" --shape 6144x16384 --tokens 1024,4096 --way three_op,auto
  step gate 120 "${bench[@]}" --layers 48 --tokens 1,8,64 --way identical_rows,auto_identical
  step gate 120 "${bench[@]}" --work 4 --tokens 512,1024 --way auto
  step gate_overlap 120 "${bench[@]}" --shape 2816x8192 --tokens 4096,16384 --max-temp-mib 96 \
    --way k_shard,k_shard_in_turn,k_shard_naive
  step gate_plan 60 "$penstock" bench gate --device cuda --ranks 2 --plan --measure --plan-ranks 2,4,8 \
    --tokens 64,512,1024,4096,16384
}

part_run() {
  "$penstock" make-model "$work/engram" --tokenizer "$token_map" >/dev/null
  "$penstock" make-model "$work/gate" --like hy-v4 --layers 1,2 >/dev/null
  local run=("$penstock" run "$work/engram" --tokens examples/tokens/requests.json --device cuda --verify)
  step run 60 "${run[@]}" --placement device
  local gate=("$penstock" run "$work/gate" --tokens examples/tokens/requests.json --token-map identity
    --device cuda --chunk 64 --verify)
  [ "$gpus" -lt 2 ] && { echo "== run of two ranks: not run, one GPU"; return; }
  local one_column=("$penstock" run "$work/one_column" --tokens examples/tokens/requests.json --device cuda --verify)
  "$penstock" make-model "$work/one_column" --tokenizer "$token_map" --heads 1 --max-ngram 2 \
    --engram-vocab-size 40000 --hidden 256 >/dev/null
  for ranks in "" --processes; do
    for placement in host_shared peer; do
      step run 60 "${run[@]}" --placement $placement --dp 2 $ranks
      step run 60 "${run[@]}" --placement $placement --tp 2 $ranks
    done
    for strategy in auto weight_gather; do
      step run 60 "${gate[@]}" --pcp 2 --strategy $strategy $ranks
    done
    # Rows and tokens that travel through NCCL.
    step nccl 60 "${run[@]}" --placement device --tp 2 --engine nccl $ranks
    step nccl 60 "${run[@]}" --placement device --tp 2 --sp --engine nccl $ranks
    step nccl 60 "${run[@]}" --placement device --dp 2 --dp-shard --engine nccl $ranks
    step nccl 60 "${one_column[@]}" --placement device --dp 2 --dp-shard --engine nccl $ranks
    step nccl 60 "${one_column[@]}" --placement device --tp 2 --engine nccl $ranks
    for strategy in n_shard k_shard; do
      step nccl 60 "${gate[@]}" --pcp 2 --strategy $strategy --engine nccl $ranks
    done
  done
}

# A table of the released size, made up in memory, for two processes on two GPUs.
part_full() {
  "$penstock" make-model "$work/full" --full --sparse --layers 1 --tokenizer "$token_map" >/dev/null
  step full 300 "$penstock" run "$work/full" --tokens examples/tokens/requests.json --rows random:1 --layers 1 \
    --placement host_shared --dp 2 --processes --device cuda --verify --json
}

for part in "${parts[@]}"; do "part_$part"; done
exit $failed
