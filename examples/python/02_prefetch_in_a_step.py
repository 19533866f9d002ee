"""Prefetch in a step: start every layer's read at step entry, and find it finished at the layer.

    python examples/python/02_prefetch_in_a_step.py demo
"""

import json
import pathlib
import sys

import numpy as np
import penstock

model = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
config = json.loads((model / "config.json").read_text())["text_config"]
layout = penstock.HashLayout(config)
hasher = penstock.NgramHasher(layout, penstock.TokenMap.from_tokenizer(model / "tokenizer.json",
                                                                       config["vocab_size"]))
layers = {layer: penstock.EngramLayer.open(model, layer, max_tokens=512, device="cpu")
          for layer in layout.layer_ids}
weight = np.random.default_rng(0).standard_normal((config["hidden_size"],) * 2, np.float32)


def decoder_layer() -> None:
    """What an engine computes in a layer; here, a few matrix products."""
    for _ in range(20):
        np.maximum(weight @ weight, 0)


def step(token_ids: np.ndarray, position: int, lookback: np.ndarray,
         hidden: np.ndarray) -> np.ndarray:
    """One step of one request: tokens that follow `lookback`, the newest of which comes first."""
    tokens = len(token_ids)
    row_ids = hasher(token_ids, [0, tokens], np.arange(position, position + tokens), lookback)

    # The ids of a step are known before its first layer runs: all reads start here.
    tickets = {layer: engram.prefetch(row_ids) for layer, engram in layers.items()}

    for i in range(max(layers) + 1):
        if i in layers:
            ticket = tickets.pop(i)
            ticket.rows()  # only to be able to ask for the times; the layer waits by itself
            print(f"  layer {i}: read {ticket.read_seconds * 1e6:.0f} us, "
                  f"waited {ticket.wait_seconds * 1e6:.0f} us")
            hidden = layers[i](hidden, ticket)
        decoder_layer()
    return hidden


prompt = np.array([671, 6102, 294, 8760, 344], np.int32)  # "The capital of France is"
shape = (config.get("hc_mult", 1), config["hidden_size"])
hidden = np.full((len(prompt), *shape), 0x3F80, np.uint16)  # ones, in bf16

print("prefill")
unknown = np.full((1, layout.lookback_depth), -1, np.int32)
after_prompt = step(prompt, 0, unknown, hidden)
assert not np.array_equal(after_prompt, hidden)

print("decode")
newest_first = prompt[::-1][: layout.lookback_depth].reshape(1, -1)
last = step(np.array([11111], np.int32), len(prompt), newest_first, hidden[:1])

# Any cut of a sequence gives the same hidden states: here, all six tokens at once.
print("all at once")
whole = step(np.append(prompt, 11111).astype(np.int32), 0, unknown,
             np.concatenate([hidden, hidden[:1]]))
assert np.array_equal(whole, np.concatenate([after_prompt, last]))
print("prefill and decode give what one step gives")
