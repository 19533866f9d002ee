"""What Python adds to a lookup: Table.lookup beside the C++ call that it ends in.

Both are timed in the same run, on the same model and the same row ids, one after the other, five
times over; the medians are printed as one JSON line. torch tensors are measured where torch is
installed. `lookup_baseline` is built with the benchmarks.

    python bench/python/lookup_overhead.py --baseline build/cpu-release/bench/python/lookup_baseline
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable

import numpy as np
import penstock


def write_model(path: pathlib.Path, heads: int, head_dim: int) -> None:
    """A model directory with one small table."""
    config = {"engram_layer_ids": [1], "engram_max_ngram_size": 4, "engram_n_heads": heads,
              "engram_head_dim": head_dim, "engram_vocab_size": 1000, "engram_pad_token_id": 2,
              "engram_compressed_vocab_size": 1000, "engram_num_embeddings": [0]}
    rows = penstock.HashLayout({**config, "engram_num_embeddings": [1 << 20]}).row_counts[0]
    config["engram_num_embeddings"] = [rows]
    (path / "config.json").write_text(json.dumps(config))
    sizes = {"weight": ("F8_E4M3", head_dim), "scale": ("F8_E8M0", head_dim // 32)}
    header, offset = {}, 0
    for part, (dtype, width) in sizes.items():
        header[f"layers.1.engram.embed.{part}"] = {
            "dtype": dtype, "shape": [rows, width], "data_offsets": [offset, offset + rows * width]}
        offset += rows * width
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = np.random.default_rng(0).integers(100, 120, offset, dtype=np.uint8).tobytes()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def microseconds(call: Callable[[], object], repeat: int) -> float:
    """Median over batches of 100 calls."""
    batches = []
    for _ in range(max(1, repeat // 100)):
        start = time.perf_counter_ns()
        for _ in range(100):
            call()
        batches.append((time.perf_counter_ns() - start) / 100 / 1000)
    return statistics.median(batches)


class Calls:
    """The ways to look one step up, by name; times in microseconds."""

    def __init__(self, table: penstock.Table, tokens: int) -> None:
        ids = np.arange(tokens * 24, dtype=np.int32).reshape(tokens, 24)
        self.calls: dict[str, Callable[[], object]] = {"numpy": lambda: table.lookup(ids)}
        if importlib.util.find_spec("torch") is not None:
            import penstock.torch
            import torch

            tensor, module = torch.from_numpy(ids), penstock.torch.Table(table)
            self.calls["torch"] = lambda: table.lookup(tensor)
            self.calls["torch_operator"] = lambda: module(tensor)
        self.calls["empty_method"] = lambda: table.layer


def cpp_microseconds(program: str, path: pathlib.Path, tokens: int, repeat: int) -> float:
    ran = subprocess.run([program, str(path), "1", str(tokens), str(repeat)], check=True,
                         capture_output=True, text=True)
    return float(ran.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", required=True, help="the program lookup_baseline")
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=20000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory)
        write_model(path, heads=8, head_dim=256)
        calls = Calls(penstock.Table.open(path, 1, placement="host", device="cpu"),
                      options.tokens).calls
        times: dict[str, list[float]] = {"cpp": [], **{name: [] for name in calls}}
        for _ in range(5):
            times["cpp"].append(
                cpp_microseconds(options.baseline, path, options.tokens, options.repeat))
            for name, call in calls.items():
                times[name].append(microseconds(call, options.repeat))
    medians = {name: statistics.median(values) for name, values in times.items()}
    answer: dict[str, float] = {"tokens": options.tokens}
    answer |= {f"{name}_us": round(value, 2) for name, value in medians.items()}
    answer |= {f"{name}_overhead_us": round(medians[name] - medians["cpp"], 2)
               for name in calls if name != "empty_method"}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
