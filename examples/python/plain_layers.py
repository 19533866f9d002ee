"""Stand-ins for the layers of a decoder that Penstock has nothing to do with.

Two of a kind: numpy on the host, and torch on the CPU or a GPU. Their weights are made up from a
seed, the same on every rank. hidden is bf16 [T, hc, dim]; in numpy that is uint16 bits.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

_EMBEDDINGS = 4096  # token ids share embeddings; a real table would say nothing more here
_EPS = 1e-6


def _weight(seed: int, rows: int, columns: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Bits of the nearest bf16 numbers, ties to even; for finite float32."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_float(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


class NumpyLayers:
    """On the host, without torch."""

    def __init__(self, hc: int, dim: int, gate_width: int) -> None:
        self.hc = hc
        self.embeddings = _weight(1, _EMBEDDINGS, dim) * np.float32(np.sqrt(dim))
        self.up, self.down = _weight(2, 4 * dim, dim), _weight(3, dim, 4 * dim)
        self.value, self.output = _weight(4, gate_width, dim), _weight(5, dim, gate_width)

    def array(self, values: np.ndarray) -> Any:
        return values

    def embed(self, token_ids: Any) -> Any:
        once = self.embeddings[token_ids % _EMBEDDINGS]
        return to_bf16(np.repeat(once[:, None], self.hc, axis=1))

    def normed(self, hidden: Any) -> Any:
        """The mean of the copies after an RMS norm: bf16 [T, dim]."""
        mean = to_float(hidden).mean(axis=1)
        return to_bf16(mean / np.sqrt((mean * mean).mean(axis=1, keepdims=True) + _EPS))

    def mlp(self, hidden: Any) -> Any:
        wide = np.maximum(to_float(self.normed(hidden)) @ self.up.T, 0)
        return self.add(hidden, wide @ self.down.T)

    def attention(self, x: Any, query_start: Any) -> Any:
        """One causal head over each request: bf16 [T, gate width]."""
        keys = to_float(x)
        values = keys @ self.value.T
        out = np.empty_like(values)
        for begin, end in zip(query_start[:-1], query_start[1:]):
            scores = keys[begin:end] @ keys[begin:end].T / np.float32(np.sqrt(keys.shape[1]))
            scores[np.triu_indices(end - begin, 1)] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[begin:end] = weights @ values[begin:end] / weights.sum(axis=1, keepdims=True)
        return to_bf16(out)

    def project_attention(self, hidden: Any, gated: Any) -> Any:
        return self.add(hidden, to_float(gated) @ self.output.T)

    def add(self, hidden: Any, update: Any) -> Any:
        return to_bf16(to_float(hidden) + update[:, None])

    def bits(self, hidden: Any) -> np.ndarray:
        return np.asarray(hidden)


class TorchLayers:
    """The same in torch; nothing of it waits for the device, so that a graph can capture it."""

    def __init__(self, hc: int, dim: int, gate_width: int, device: str) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.hc, self.device = hc, device
        plain = NumpyLayers(hc, dim, gate_width)
        self.embeddings, self.up, self.down, self.value, self.output = (
            self.torch.from_numpy(weight).to(device).bfloat16() for weight in (
                plain.embeddings, plain.up, plain.down, plain.value, plain.output))

    def array(self, values: np.ndarray) -> Any:
        return self.torch.from_numpy(values).to(self.device)

    def embed(self, token_ids: Any) -> Any:
        once = self.embeddings[token_ids.long() % _EMBEDDINGS]
        return once[:, None].repeat(1, self.hc, 1)

    def normed(self, hidden: Any) -> Any:
        mean = hidden.float().mean(dim=1)
        scale = (mean.square().mean(dim=1, keepdim=True) + _EPS).rsqrt()
        return (mean * scale).bfloat16()

    def mlp(self, hidden: Any) -> Any:
        wide = self.torch.relu(self.normed(hidden) @ self.up.T)
        return self.add(hidden, wide @ self.down.T)

    def attention(self, x: Any, query_start: Any) -> Any:
        # One mask for all requests: a token sees its own request, up to itself.
        order = self.torch.arange(x.shape[0], device=x.device)
        request = self.torch.bucketize(order, query_start[1:].long(), right=True)
        visible = (request[:, None] == request[None]) & (order[:, None] >= order[None])
        scores = (x @ x.T).float() / x.shape[1] ** 0.5
        weights = scores.masked_fill(~visible, -self.torch.inf).softmax(dim=1)
        return weights.bfloat16() @ (x @ self.value.T)

    def project_attention(self, hidden: Any, gated: Any) -> Any:
        return self.add(hidden, gated @ self.output.T)

    def add(self, hidden: Any, update: Any) -> Any:
        return (hidden.float() + update.float()[:, None]).bfloat16()

    def bits(self, hidden: Any) -> np.ndarray:
        result: np.ndarray = hidden.cpu().view(self.torch.int16).numpy().view(np.uint16)
        return result
