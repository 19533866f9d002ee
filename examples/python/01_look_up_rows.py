"""Look up rows: from tokens to the embedding rows of one Engram layer, and a proof that they are exact.

    python examples/python/01_look_up_rows.py demo
"""

import json
import pathlib
import sys

import numpy as np
import penstock

model = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
config = json.loads((model / "config.json").read_text())["text_config"]
layer = config["engram_layer_ids"][0]

# Tokens become row ids: for every token, one row in each column of each layer's table.
layout = penstock.HashLayout(config)
token_map = penstock.TokenMap.from_tokenizer(model / "tokenizer.json", config["vocab_size"])
hasher = penstock.NgramHasher(layout, token_map)

token_ids = np.array([671, 6102, 294, 8760, 344, 11111], np.int32)  # "The capital of France is Paris"
query_start = np.array([0, len(token_ids)], np.int32)               # one request
positions = np.arange(len(token_ids), dtype=np.int64)
lookback = np.full((1, layout.lookback_depth), -1, np.int32)        # nothing before its first token
row_ids = hasher(token_ids, query_start, positions, lookback)
print(f"row ids {row_ids.shape}: tokens, layers, columns")

# Row ids become rows, in bf16: numpy sees the bits as uint16.
table = penstock.Table.open(model, layer)
rows = table.lookup(row_ids)
print(f"rows {rows.shape} of layer {layer}, placement {table.status['placement']}")

# The same by hand: read the bytes of every row from the checkpoint, and multiply.
index = model / "model.safetensors.index.json"
files = json.loads(index.read_text())["weight_map"] if index.exists() else {}


def tensor(name: str) -> np.ndarray:
    """The bytes of a tensor of the checkpoint, [rows, bytes of a row]."""
    path = model / files.get(name, "model.safetensors")
    with open(path, "rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(header_size))[name]
    begin = 8 + header_size + entry["data_offsets"][0]
    return np.memmap(path, np.uint8, "r", begin, tuple(entry["shape"]))


ids = row_ids[:, layout.layer_ids.index(layer)]
codes = tensor(f"layers.{layer}.engram.embed.weight")[ids]
scales = tensor(f"layers.{layer}.engram.embed.scale")[ids]

sign = np.where(codes & 0x80, -1.0, 1.0)
exponent, fraction = (codes >> 3) & 15, codes & 7
numbers = sign * np.where(exponent == 0, fraction / 8 * 2.0**-6,
                          (1 + fraction / 8) * 2.0 ** (exponent.astype(int) - 7))
numbers *= np.repeat(2.0 ** (scales.astype(int) - 127), 32, axis=-1)
bits = numbers.astype(np.float32).view(np.uint32)
by_hand = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

assert np.array_equal(rows, by_hand), "the rows differ from the checkpoint"
print(f"{rows.size} numbers are equal, bit for bit")
