"""What Python adds to a lookup: Table.lookup of one token beside the numpy work it cannot avoid.

The C++ call alone is measured by `penstock_bench` (bench/reader); here the same call is timed
through Python, beside an empty method call and the making of the result array, so that the part
that the bindings add can be read off. Prints one JSON line.

    python bench/python/lookup_overhead.py [--tokens 1] [--repeat 20000]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import struct
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=20000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory)
        write_model(path, heads=8, head_dim=256)
        table = penstock.Table.open(path, 1, placement="host", device="cpu")
        ids = np.arange(options.tokens * 24, dtype=np.int32).reshape(options.tokens, 24)
        nothing = np.full_like(ids, -1)
        print(json.dumps({
            "tokens": options.tokens,
            "lookup_us": round(microseconds(lambda: table.lookup(ids), options.repeat), 2),
            # The same way through Python with no row to read: conversion, checks, result array.
            "lookup_of_nothing_us": round(
                microseconds(lambda: table.lookup(nothing), options.repeat), 2),
            "empty_call_us": round(microseconds(lambda: table.layer, options.repeat), 2),
            "numpy_empty_us": round(
                microseconds(lambda: np.empty((options.tokens, 24, 256), np.uint16),
                             options.repeat), 2),
        }))


if __name__ == "__main__":
    main()
