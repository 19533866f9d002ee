"""torch tensors in and out. Skipped, with the reason, where torch is not installed."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import penstock
import pytest
from conftest import random_bf16


def devices(torch: Any) -> list[str]:
    """The devices that both torch and this build can use."""
    has_cuda = "cuda: yes" in penstock.build_description() and torch.cuda.is_available()
    return ["cpu", "cuda"] if has_cuda else ["cpu"]


def bits_of(torch: Any, tensor: Any) -> np.ndarray:
    """The bits of a bfloat16 tensor."""
    assert tensor.dtype == torch.bfloat16
    result: np.ndarray = tensor.cpu().view(torch.int16).numpy().view(np.uint16)
    return result


def as_bf16(torch: Any, bits: np.ndarray, device: str) -> Any:
    """A bfloat16 tensor of these bits."""
    return torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16).to(device)


def test_hasher(torch: Any, small_config: dict[str, Any]) -> None:
    hasher = penstock.NgramHasher(penstock.HashLayout(small_config), penstock.TokenMap.identity(97))
    batch = [np.array([5, 6, 7], np.int32), np.array([0, 3], np.int32), np.arange(3),
             np.array([[-1, -1]], np.int32)]
    want = hasher(*batch)
    for device in devices(torch):
        tensors = [torch.from_numpy(array).to(device) for array in batch]
        rows = hasher(*tensors)
        assert rows.dtype == torch.int32 and rows.device.type == device
        np.testing.assert_array_equal(rows.cpu().numpy(), want)
        wide = hasher(tensors[0].long(), *tensors[1:])
        np.testing.assert_array_equal(wide.cpu().numpy(), want)


def test_dequantize(torch: Any) -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(4, 64)
    scales = np.array([[127, 120], [1, 0], [255, 254], [130, 126]], np.uint8)
    want = penstock.dequantize(codes, scales)
    for device in devices(torch):
        values = torch.from_numpy(codes).to(device)
        factors = torch.from_numpy(scales).to(device)
        np.testing.assert_array_equal(bits_of(torch, penstock.dequantize(values, factors)), want)
        if hasattr(torch, "float8_e4m3fn"):
            values = values.view(torch.float8_e4m3fn)
            np.testing.assert_array_equal(bits_of(torch, penstock.dequantize(values, factors)),
                                          want)


def test_lookup(torch: Any, model_dir: pathlib.Path) -> None:
    ids = np.arange(-1, 23, dtype=np.int32).reshape(3, 2, 4)
    for device in devices(torch):
        table = penstock.Table.open(model_dir, 4, device=device)
        want = penstock.Table.open(model_dir, 4, device="cpu").lookup(ids)
        tensor = torch.from_numpy(ids).to(device)
        for given in (tensor, tensor[:, 1], tensor.long()):
            rows = table.lookup(given)
            assert rows.device.type == device
            np.testing.assert_array_equal(bits_of(torch, rows), want)
        np.testing.assert_array_equal(table.lookup(ids), want)
        with pytest.raises(penstock.InvalidArgument):
            table.lookup(tensor.long() + 2**31)


def test_gate(torch: Any) -> None:
    rng = np.random.default_rng(5)
    arrays = [random_bf16(rng, shape) for shape in [(3, 2, 8), (3, 24), (2, 8), (2, 8)]]
    mask = np.array([True, False, True])
    want = penstock.engram_gate(*arrays, 1e-6, mask)
    for device in devices(torch):
        tensors = [as_bf16(torch, array, device) for array in arrays]
        out = penstock.engram_gate(*tensors, 1e-6, torch.from_numpy(mask).to(device))
        assert out.device.type == device
        got = out.float().cpu().numpy()
        np.testing.assert_allclose(got, as_bf16(torch, want, "cpu").float().numpy(), rtol=1e-2,
                                   atol=1e-2)
        # Parameters that require a gradient are read like others.
        tensors[2].requires_grad_()
        again = penstock.engram_gate(*tensors, 1e-6, torch.from_numpy(mask).to(device))
        assert torch.equal(again, out)
        with pytest.raises(penstock.InvalidArgument, match="hidden"):
            penstock.engram_gate(tensors[0].float(), *tensors[1:], 1e-6)


def test_layer(torch: Any, model_dir: pathlib.Path) -> None:
    ids = np.zeros((3, 4), np.int32)
    for device in devices(torch):
        layer = penstock.EngramLayer.open(model_dir, 4, device=device, max_tokens=8)
        tensor = torch.from_numpy(ids).to(device)
        ticket = layer.prefetch(tensor)
        rows = ticket.rows()
        table = penstock.Table.open(model_dir, 4, device=device)
        assert torch.equal(rows.view(torch.int16), table.lookup(tensor).view(torch.int16))
        hidden = torch.zeros(3, 2, 32, dtype=torch.bfloat16, device=device)
        out = layer(hidden, ticket)
        assert out.device.type == device and out.dtype == torch.bfloat16


def test_token_counts_and_masks_on_mixed_libraries(torch: Any) -> None:
    rng = np.random.default_rng(6)
    arrays = [random_bf16(rng, shape) for shape in [(3, 2, 8), (3, 24), (2, 8), (2, 8)]]
    first = as_bf16(torch, arrays[0], "cpu")
    out = penstock.engram_gate(first, *arrays[1:], 1e-6, np.ones(3, bool))
    assert isinstance(out, torch.Tensor)
    np.testing.assert_array_equal(bits_of(torch, out), penstock.engram_gate(*arrays, 1e-6))
