"""engram_gate and EngramLayer against the numpy reference."""

from __future__ import annotations

import gc
import pathlib
from types import ModuleType
from typing import Any

import numpy as np
import penstock
import pytest
from conftest import random_bf16
from hypothesis import given, settings
from hypothesis import strategies as st


def ulp_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distance in bf16 numbers, across zero as well."""
    def ordered(bits: np.ndarray) -> np.ndarray:
        wide = bits.astype(np.int32)
        return np.where(wide & 0x8000, 0x8000 - wide, wide)
    return np.abs(ordered(a) - ordered(b))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), tokens=st.integers(0, 5), copies=st.integers(1, 4),
       dim=st.sampled_from([1, 7, 96, 257]), has_mask=st.booleans())
def test_gate_matches_reference(reference: ModuleType, seed: int, tokens: int, copies: int,
                                dim: int, has_mask: bool) -> None:
    rng = np.random.default_rng(seed)
    hidden = random_bf16(rng, (tokens, copies, dim))
    kv = random_bf16(rng, (tokens, (copies + 1) * dim))
    q, k = random_bf16(rng, (copies, dim)), random_bf16(rng, (copies, dim))
    mask = rng.random(tokens) < 0.6 if has_mask else None
    out = penstock.engram_gate(hidden, kv, q, k, 1e-6, mask)
    assert out.dtype == np.uint16 and out.shape == hidden.shape
    _, want = reference.engram_gate(hidden, kv, q, k, 1e-6, mask)
    assert (ulp_distance(out, reference.float_to_bf16(want)) <= 1).all()
    if mask is not None:
        np.testing.assert_array_equal(out[~mask], hidden[~mask])


def gate_arguments() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {"hidden": random_bf16(rng, (3, 2, 8)), "kv": random_bf16(rng, (3, 24)),
            "q_weight": random_bf16(rng, (2, 8)), "k_weight": random_bf16(rng, (2, 8)), "eps": 1e-6}


def test_gate_takes_ml_dtypes_views_and_keywords() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arguments = gate_arguments()
    want = penstock.engram_gate(**arguments)
    typed = {name: value if name == "eps" else value.view(ml_dtypes.bfloat16)
             for name, value in arguments.items()}
    np.testing.assert_array_equal(penstock.engram_gate(**typed), want)
    strided = np.zeros((3, 4, 8), np.uint16)
    strided[:, ::2] = arguments["hidden"]
    np.testing.assert_array_equal(
        penstock.engram_gate(**{**arguments, "hidden": strided[:, ::2]}), want)
    np.testing.assert_array_equal(
        penstock.engram_gate(**arguments, mask=np.ones(3, np.uint8)), want)


@pytest.mark.parametrize("change", [
    {"hidden": np.zeros((3, 2, 8), np.float32)}, {"hidden": np.zeros((3, 16), np.uint16)},
    {"kv": np.zeros((3, 23), np.uint16)}, {"kv": np.zeros((2, 24), np.uint16)},
    {"q_weight": np.zeros((2, 7), np.uint16)}, {"k_weight": np.zeros(16, np.uint16)},
    {"mask": np.ones(2, bool)}, {"mask": np.ones(3, np.float32)},
    {"q_weight": np.zeros((2, 8), np.int16)},
])
def test_gate_refuses_what_does_not_fit(change: dict[str, Any]) -> None:
    with pytest.raises(penstock.InvalidArgument, match=next(iter(change))):
        penstock.engram_gate(**{**gate_arguments(), **change})


@pytest.fixture(scope="module")
def layer(model_dir: pathlib.Path) -> penstock.EngramLayer:
    return penstock.EngramLayer.open(model_dir, 4, "host", max_tokens=16, device="cpu")


def layer_reference(reference: ModuleType, model_dir: pathlib.Path, ids: np.ndarray,
                    hidden: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """The new hidden in float64, from rows that are finite."""
    model = reference.Safetensors(model_dir)
    rows = reference.bf16_to_float(reference.lookup_rows(model, 4, ids)).astype(np.float64)
    wkv = reference.bf16_to_float(model["layers.4.engram.wkv.weight"]).astype(np.float64)
    kv = reference.float_to_bf16((rows.reshape(len(ids), -1) @ wkv.T).astype(np.float32))
    _, out = reference.engram_gate(hidden, kv, model["layers.4.engram.q_weight"],
                                   model["layers.4.engram.k_weight"], 1e-6, mask)
    result: np.ndarray = out
    return result


def finite_ids(reference: ModuleType, model_dir: pathlib.Path, tokens: int) -> np.ndarray:
    """Ids of rows of moderate numbers: the random table has every scale and NaN."""
    model = reference.Safetensors(model_dir)
    rows = len(model["layers.4.engram.embed.weight"])
    values = reference.bf16_to_float(
        reference.lookup_rows(model, 4, np.arange(rows, dtype=np.int32)[:, None]))
    moderate = np.flatnonzero((np.abs(np.nan_to_num(values, nan=1e9)) < 1e9).all(axis=(1, 2)))
    moderate = np.append(moderate, -1)
    picked = np.random.default_rng(tokens).choice(moderate, (tokens, 4))
    return picked.astype(np.int32)


@pytest.mark.parametrize("tokens", [1, 5, 16])
def test_layer_matches_reference(layer: penstock.EngramLayer, reference: ModuleType,
                                 model_dir: pathlib.Path, tokens: int) -> None:
    ids = finite_ids(reference, model_dir, tokens)
    hidden = random_bf16(np.random.default_rng(tokens), (tokens, 2, 32))
    mask = np.arange(tokens) % 3 != 1
    ticket = layer.prefetch(ids)
    assert ticket.tokens == tokens
    out = layer(hidden, ticket, mask)
    want = layer_reference(reference, model_dir, ids, hidden, mask)
    np.testing.assert_allclose(reference.bf16_to_float(out), want, rtol=1e-2, atol=1e-2)
    np.testing.assert_array_equal(out[~mask], hidden[~mask])


def test_ticket_rows_are_the_tables(layer: penstock.EngramLayer, reference: ModuleType,
                                    model_dir: pathlib.Path) -> None:
    ids = np.arange(12, dtype=np.int32).reshape(3, 4)
    rows = layer.prefetch(ids).rows()  # the array keeps the ticket
    gc.collect()
    assert not rows.flags.writeable
    want = reference.lookup_rows(reference.Safetensors(model_dir), 4, ids)
    np.testing.assert_array_equal(rows, want)


def test_tickets_tell_how_long_their_read_took(layer: penstock.EngramLayer) -> None:
    ticket = layer.prefetch(np.zeros((8, 4), np.int32))
    ticket.rows()
    assert ticket.read_seconds > 0 and ticket.wait_seconds >= 0


def test_rows_outlive_the_layer(reference: ModuleType, model_dir: pathlib.Path) -> None:
    layer = penstock.EngramLayer.open(model_dir, 4, "host", max_tokens=4, device="cpu")
    ids = np.arange(12, dtype=np.int32).reshape(3, 4)
    ticket = layer.prefetch(ids)
    del layer
    gc.collect()
    rows = ticket.rows()
    del ticket
    gc.collect()
    want = reference.lookup_rows(reference.Safetensors(model_dir), 4, ids)
    np.testing.assert_array_equal(rows, want)


def test_tickets_hold_slots_until_they_are_gone(layer: penstock.EngramLayer) -> None:
    ids = np.zeros((2, 4), np.int32)
    first, second = layer.prefetch(ids), layer.prefetch(ids)
    with pytest.raises(penstock.InvalidArgument, match="slot"):
        layer.prefetch(ids)
    del first
    gc.collect()
    third = layer.prefetch(ids)
    layer(np.zeros((2, 2, 32), np.uint16), third)
    with pytest.raises(penstock.InvalidArgument):
        third.rows()
    layer(np.zeros((2, 2, 32), np.uint16), second)
    with pytest.raises(penstock.InvalidArgument):
        layer(np.zeros((2, 2, 32), np.uint16), second)


def test_layer_refuses_what_does_not_fit(layer: penstock.EngramLayer) -> None:
    with pytest.raises(penstock.InvalidArgument, match="max_tokens"):
        layer.prefetch(np.zeros((17, 4), np.int32))
    with pytest.raises(penstock.InvalidArgument, match="row_ids"):
        layer.prefetch(np.zeros((2, 5), np.int32))
    ticket = layer.prefetch(np.zeros((2, 4), np.int32))
    for hidden in [np.zeros((3, 2, 32), np.uint16), np.zeros((2, 2, 31), np.uint16),
                   np.zeros((2, 2, 32), np.float32)]:
        with pytest.raises(penstock.InvalidArgument, match="hidden"):
            layer(hidden, ticket)
