#!/usr/bin/env bash
# Tests the Python package on a machine with GPUs, from a wheel that was built elsewhere with CUDA.
# Usage: tools/gpu_python_check.sh WHEEL OUT [MODEL [GATES]]
#   WHEEL  the wheel, or a folder that holds a built package (for PYTHONPATH)
#   OUT    folder for the logs
#   MODEL  a model directory with Engram layers and a tokenizer; made if it is not given
#   GATES  one with gates at layer 14 and MODEL's hidden size; made if it is not given
# Needs python3 (or $PYTHON) with numpy, torch, pytest, hypothesis and ml_dtypes; fetches nothing.
# Every step has a time limit. The exit status is 0 if every step passed.
set -u
cd "$(dirname "$0")/.." || exit 1
wheel=$1 out=$2
python=${PYTHON:-python3}
mkdir -p "$out"
out=$(realpath "$out")

# Beside whatever is installed: the packages of the machine stay as they are.
if [ -d "$wheel" ]; then
  site=$(realpath "$wheel")
else
  site=$(mktemp -d)
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$wheel" || exit 1
fi
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
model=${3:-$site/demo} gates=${4:-$site/gates}
"$python" -c 'import penstock, torch; print(penstock.build_description()); print("torch", torch.__version__, "GPUs", torch.cuda.device_count())' || exit 1
gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')

failed=0
step() { # step NAME SECONDS COMMAND...
  local name=$1 limit=$2 begin=$SECONDS status
  shift 2
  timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
  status=$?
  echo "== $name: status $status, $((SECONDS - begin)) s"
  if [ $status != 0 ]; then
    failed=1
    tail -40 "$out/$name.log"
  fi
}

if [ ! -f "$model/config.json" ]; then
  step make_model 60 "$python" -m penstock make-model "$model" --hidden 512 --tokenizer examples/deepseek_v3_tokenizer.json.xz
fi
if [ ! -f "$gates/config.json" ]; then
  hidden=$("$python" -c 'import json, sys; c = json.load(open(sys.argv[1])); print(c.get("text_config", c)["hidden_size"])' "$model/config.json")
  step make_gates 60 "$python" -m penstock make-model "$gates" --like hy-v4 --hidden "$hidden" --heads 8 --v-head-dim 64 --layers 14
fi

step tests 240 "$python" -m pytest -q -rs -x --deselect tests/python/test_examples.py tests/python
tail -12 "$out/tests.log"

reference() { # reference NAME RANKS PLACEMENT STRATEGY OPTION...
  local name=$1 ranks=$2 placement=$3 strategy=$4
  shift 4
  step "$name" 120 "$python" -m torch.distributed.run --standalone --nproc-per-node "$ranks" \
    examples/python/reference_step.py "$model" "$gates" --device cuda \
    --placement "$placement" --strategy "$strategy" "$@"
  cat "$out/$name.log"
}
reference step_1_device 1 device replicated --graph
reference step_1_host_shared 1 host_shared replicated --graph
if [ "$gpus" -ge 2 ]; then
  reference step_2_host_shared 2 host_shared weight_gather --graph
  reference step_2_peer 2 peer weight_gather --graph
  reference step_2_torch 2 peer weight_gather --communicator torch
fi
exit $failed
