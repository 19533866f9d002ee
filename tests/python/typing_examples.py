"""Uses of penstock that a type checker must understand; also run as a test."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt
import penstock


def token_rows(config: dict[str, Any], ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Row ids of one sequence from its start: the array type of the first argument comes back."""
    layout = penstock.HashLayout(config)
    primes: list[list[int]] = layout.primes
    assert len(primes) == layout.num_layers
    token_map = penstock.TokenMap.identity(config["engram_compressed_vocab_size"])
    compressed: npt.NDArray[np.int32] = token_map.ids
    assert len(compressed) == token_map.size
    hasher = penstock.NgramHasher(layout, token_map, dead_token_id=None)
    window = np.full((1, layout.lookback_depth), -1, np.int32)
    return hasher(ids, np.array([0, len(ids)]), np.arange(len(ids)), window)


def rules_broken(deployment: dict[str, Any] | pathlib.Path) -> list[str]:
    """Ids of the rules that a deployment breaks."""
    return [violation["rule"] for violation in penstock.check(deployment)]


def code_of(error: penstock.Error) -> str:
    """What kind of thing went wrong."""
    return error.code
