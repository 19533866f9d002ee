#!/usr/bin/env python3
"""Runs models with the penstock command over several deployments and compares what `run --out` writes
with the numpy reference: row ids and rows bit for bit, hidden states within rtol = atol = 1e-2.

Needs numpy. Prints one line per deployment; the exit status is 1 if any of them fails.
"""
from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import engram_reference as reference

IMAGE_TOKEN = 129264
DEPLOYMENTS = [
    [], ["--chunk", "7", "--decode", "3"], ["--placement", "file"], ["--placement", "host"],
    ["--tp", "2", "--dp", "2", "--placement", "host", "--dp-shard"], ["--tp", "3", "--sp"],
    ["--tp", "2", "--dp", "3", "--sp", "--placement", "host", "--dp-shard"],
    ["--pp", "2", "--pp-cuts", "14"], ["--pp", "3", "--pp-cuts", "1,14", "--dp", "2"],
    ["--tp", "5", "--placement", "host"], ["--dp", "2", "--processes"],
    ["--tp", "2", "--dp", "2", "--processes", "--placement", "host", "--dp-shard"],
]


def dequantised_projection(model: reference.Safetensors, prefix: str) -> np.ndarray:
    codes = model[prefix + "wkv.weight"]
    if codes.dtype == np.uint16:
        return reference.bf16_to_float(codes)
    scales = (model[prefix + "wkv.scale"].astype(np.uint32) << 23).view(np.float32)
    block = codes.shape[0] // scales.shape[0]
    factors = np.repeat(np.repeat(scales, block, axis=0), block, axis=1)
    return reference.bf16_to_float(reference.float_to_bf16(reference.e4m3_to_float(codes) * factors))


def expected_hidden(model, config, layer, rows, hidden, ids):
    prefix = f"layers.{layer}.engram."
    flat = reference.bf16_to_float(rows.reshape(len(rows), -1)).astype(np.float64)
    kv = flat @ dequantised_projection(model, prefix).astype(np.float64).T
    _, out = reference.engram_gate(
        hidden, reference.float_to_bf16(kv.astype(np.float32)), model[prefix + "q_weight"],
        model[prefix + "k_weight"], config["rms_norm_eps"], mask=np.array(ids) != IMAGE_TOKEN)
    return out


def write_inputs(path: pathlib.Path, layers, tokens: int, hc: int, dim: int) -> dict:
    """bf16 hidden states of every layer, as a safetensors file of our own writing."""
    random = np.random.default_rng(3)
    hidden = {layer: reference.float_to_bf16(random.standard_normal((tokens, hc, dim)).astype(np.float32))
              for layer in layers}
    header, begin = {}, 0
    for layer, values in hidden.items():
        header[f"hidden.{layer}"] = {"dtype": "BF16", "shape": list(values.shape),
                                     "data_offsets": [begin, begin + values.nbytes]}
        begin += values.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(v.tobytes() for v in hidden.values()))
    return hidden


def main() -> int:
    binary = sys.argv[1]
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        model_dir, tokens_file, inputs = root / "model", root / "tokens.json", root / "inputs.safetensors"
        subprocess.run([binary, "make-model", model_dir, "--engram-vocab-size", "997", "--hidden", "64",
                        "--vocab-size", "130000", "--compressed-vocab-size", "130000"], check=True,
                       capture_output=True)
        config = json.loads((model_dir / "config.json").read_text())
        keys = reference.engram_keys(config)
        config = config.get("text_config", config)
        random = np.random.default_rng(1)
        requests = [random.integers(0, 129000, size=n).tolist() for n in (40, 1, 23, 9, 17)]
        requests[0][5] = requests[2][3] = requests[2][4] = IMAGE_TOKEN
        tokens_file.write_text(json.dumps(requests))
        ids = [token for request in requests for token in request]
        hidden = write_inputs(inputs, keys["engram_layer_ids"], len(ids), config["hc_mult"], config["hidden_size"])
        numbers = reference.layout(config)
        row_ids = np.concatenate([reference.hash_request(numbers, np.arange(130000), IMAGE_TOKEN, request)
                                  for request in requests])
        model = reference.Safetensors(model_dir)
        for number, deployment in enumerate(DEPLOYMENTS):
            out = root / f"out{number}"
            result = subprocess.run(
                [binary, "run", model_dir, "--tokens", tokens_file, "--token-map", "identity", "--inputs", inputs,
                 "--out", out, "--verify", *deployment], capture_output=True, text=True, timeout=300)
            ok = result.returncode == 0
            for index, layer in enumerate(keys["engram_layer_ids"] if ok else []):
                found = reference.Safetensors(out / f"layer{layer}.safetensors")
                rows = reference.lookup_rows(model, layer, row_ids[:, index])
                expected = expected_hidden(model, config, layer, rows, hidden[layer], ids)
                ok &= np.array_equal(found["row_ids"], row_ids[:, index]) and np.array_equal(found["rows"], rows)
                ok &= np.allclose(reference.bf16_to_float(found["hidden"]), expected, rtol=1e-2, atol=1e-2)
            print(f"{'ok  ' if ok else 'FAIL'} run {' '.join(deployment)}", flush=True)
            if result.returncode != 0:
                print(f"  exit {result.returncode}: {result.stderr.strip()}")
            failed |= not ok
    return failed


if __name__ == "__main__":
    sys.exit(main())
