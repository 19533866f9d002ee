"""Rows: dequantize and Table.lookup against the numpy reference."""

from __future__ import annotations

import concurrent.futures
import gc
import pathlib
from types import ModuleType
from typing import Any

import numpy as np
import penstock
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

LAYERS = [1, 4]


def test_dequantize_of_every_code_and_scale(reference: ModuleType) -> None:
    codes = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 8, axis=1)
    bits = penstock.dequantize(codes, scales)
    assert bits.dtype == np.uint16
    np.testing.assert_array_equal(bits, reference.dequantise(codes, scales))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), rows=st.integers(0, 9), blocks=st.integers(1, 9),
       is_strided=st.booleans())
def test_dequantize_matches_reference(reference: ModuleType, seed: int, rows: int, blocks: int,
                                      is_strided: bool) -> None:
    rng = np.random.default_rng(seed)
    step = 2 if is_strided else 1
    values = rng.integers(0, 256, (rows * step, 32 * blocks), dtype=np.uint8)[::step]
    scales = rng.integers(0, 256, (rows * step, blocks), dtype=np.uint8)[::step]
    np.testing.assert_array_equal(penstock.dequantize(values, scales),
                                  reference.dequantise(values, scales))


def test_dequantize_matches_golden_cases(golden: Any) -> None:
    cases = golden("dequant.json")
    codes = np.arange(256, dtype=np.uint8)[None]
    for scale, want in zip(cases["scale_bytes"], cases["bits"]):
        bits = penstock.dequantize(codes, np.full((1, 8), scale, np.uint8))[0]
        np.testing.assert_array_equal(bits, want)


def test_dequantize_takes_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codes = np.arange(64, dtype=np.uint8).reshape(2, 32)
    scales = np.array([[127], [120]], np.uint8)
    want = penstock.dequantize(codes, scales)
    got = penstock.dequantize(codes.view(ml_dtypes.float8_e4m3fn),
                              scales.view(ml_dtypes.float8_e8m0fnu))
    np.testing.assert_array_equal(got, want)


def test_dequantize_refuses_what_does_not_fit() -> None:
    codes, scales = np.zeros((2, 64), np.uint8), np.zeros((2, 2), np.uint8)
    for values, factors in [(codes[:, :31], scales[:, :1]), (codes, scales[:1]),
                            (codes.astype(np.int32), scales), (codes, scales.astype(np.float32)),
                            (codes[0], scales[0]), (np.zeros((2, 0), np.uint8), scales[:, :0])]:
        with pytest.raises(penstock.InvalidArgument):
            penstock.dequantize(values, factors)
    assert penstock.dequantize(codes[:0], scales[:0]).shape == (0, 64)


@pytest.fixture(scope="module", params=["host", "host_shared", "file"])
def table(request: pytest.FixtureRequest, model_dir: pathlib.Path) -> penstock.Table:
    return penstock.Table.open(model_dir, 4, placement=request.param, device="cpu")


def random_ids(config: dict[str, Any], rng: np.random.Generator, tokens: int) -> np.ndarray:
    """[T, L, C] with ids anywhere in the rows of their columns, -1 among them."""
    layout = penstock.HashLayout(config)
    ids = np.array(layout.offsets) + rng.integers(0, layout.primes, (tokens, 2, 4))
    ids = ids.astype(np.int32)
    ids[rng.random(ids.shape) < 0.1] = -1
    return ids


def want_rows(reference: ModuleType, model_dir: pathlib.Path, layer: int,
              ids: np.ndarray) -> np.ndarray:
    rows: np.ndarray = reference.lookup_rows(reference.Safetensors(model_dir), layer, ids)
    return rows


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), tokens=st.integers(0, 9))
def test_lookup_matches_reference(table: penstock.Table, reference: ModuleType,
                                  model_dir: pathlib.Path, small_config: dict[str, Any], seed: int,
                                  tokens: int) -> None:
    ids = random_ids(small_config, np.random.default_rng(seed), tokens)
    want = want_rows(reference, model_dir, 4, ids[:, 1])
    for given_ids in (ids, ids[:, 1], np.ascontiguousarray(ids[:, 1]), ids.astype(np.int64),
                      ids[:, 1].astype(np.int16)):
        rows = table.lookup(given_ids)
        assert rows.dtype == np.uint16 and rows.shape == (tokens, 4, 64)
        np.testing.assert_array_equal(rows, want)


def test_lookup_through_every_column_shard(reference: ModuleType, model_dir: pathlib.Path,
                                           small_config: dict[str, Any]) -> None:
    ids = random_ids(small_config, np.random.default_rng(1), 20)
    want = want_rows(reference, model_dir, 1, ids[:, 0])
    for count in (1, 2, 4):
        parts = [penstock.Table.open(model_dir, 1, shard=(index, count), device="cpu").lookup(ids)
                 for index in range(count)]
        assert all(part.shape == (20, 4 // count, 64) for part in parts)
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), want)


def test_lookup_through_row_shards(reference: ModuleType, model_dir: pathlib.Path,
                                   small_config: dict[str, Any]) -> None:
    ids = random_ids(small_config, np.random.default_rng(2), 20)
    want = want_rows(reference, model_dir, 1, ids[:, 0])
    tables = [penstock.Table.open(model_dir, 1, shard=(index, 7), device="cpu")
              for index in range(7)]
    assert all(table.status["is_row_sharded"] for table in tables)
    # Every row comes from one shard; the others answer with zeros.
    together = np.bitwise_or.reduce([table.lookup(ids) for table in tables])
    np.testing.assert_array_equal(together, want)


def test_ids_out_of_range_give_zeros_and_are_counted(model_dir: pathlib.Path) -> None:
    table = penstock.Table.open(model_dir, 1, device="cpu")
    ids = np.array([[table.num_rows, -2, 2**31 - 1, -1]], np.int32)
    assert table.rejected_ids == 0
    assert not table.lookup(ids).any()
    assert table.rejected_ids == 3


def test_lookup_refuses_other_shapes(table: penstock.Table) -> None:
    for bad in [np.zeros(4, np.int32), np.zeros((2, 3), np.int32), np.zeros((2, 3, 4), np.int32),
                np.zeros((2, 2, 3), np.int32), np.zeros((2, 4), np.float64),
                np.array([[2**31, 0, 0, 0]])]:
        with pytest.raises(penstock.InvalidArgument, match="row_ids"):
            table.lookup(bad)


def test_rows_outlive_the_table(model_dir: pathlib.Path, reference: ModuleType) -> None:
    table = penstock.Table.open(model_dir, 1, device="cpu")
    ids = np.arange(8, dtype=np.int32).reshape(2, 4)
    rows = table.lookup(ids)
    del table
    gc.collect()
    np.testing.assert_array_equal(rows, want_rows(reference, model_dir, 1, ids))


def test_the_table_outlives_its_arrays(model_dir: pathlib.Path, reference: ModuleType) -> None:
    table = penstock.Table.open(model_dir, 1, device="cpu")
    ids = np.arange(8, dtype=np.int32).reshape(2, 4)
    want = want_rows(reference, model_dir, 1, ids)
    for _ in range(3):
        rows = table.lookup(ids.copy())
        np.testing.assert_array_equal(rows, want)
        del rows
        gc.collect()


def test_lookups_run_on_threads_at_once(table: penstock.Table, reference: ModuleType,
                                        model_dir: pathlib.Path,
                                        small_config: dict[str, Any]) -> None:
    batches = [random_ids(small_config, np.random.default_rng(seed), 300) for seed in range(4)]
    want = [want_rows(reference, model_dir, 4, ids[:, 1]) for ids in batches]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for which, rows in [(i % 4, pool.submit(table.lookup, batches[i % 4])) for i in range(24)]:
            np.testing.assert_array_equal(rows.result(), want[which])


def test_open_is_collective_over_a_group(model_dir: pathlib.Path, reference: ModuleType) -> None:
    ids = np.arange(8, dtype=np.int32).reshape(2, 4)
    want = want_rows(reference, model_dir, 1, ids)

    def rank(comm: penstock.Communicator) -> np.ndarray:
        table = penstock.Table.open(model_dir, 1, placement="host_shared", comm=comm, device="cpu")
        assert table.status["placement"] == "host_shared"
        return table.lookup(ids)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for rows in pool.map(rank, penstock.Communicator.threads(3)):
            np.testing.assert_array_equal(rows, want)


def test_open_says_what_is_wrong(model_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for arguments, code in [
        ({"model_dir": tmp_path / "none", "layer": 1}, "NotFound"),
        ({"model_dir": model_dir, "layer": 2}, "NotFound"),
        ({"model_dir": model_dir, "layer": 1, "placement": "cloud"}, "InvalidArgument"),
        ({"model_dir": model_dir, "layer": 1, "backing": "cloud"}, "InvalidArgument"),
        ({"model_dir": model_dir, "layer": 1, "placement": "host", "backing": "memfd"},
         "InvalidArgument"),
        ({"model_dir": model_dir, "layer": 1, "backing": "cumem"}, "Unsupported"),
        ({"model_dir": model_dir, "layer": 1, "shard": (2, 2)}, "InvalidArgument"),
        ({"model_dir": model_dir, "layer": 1, "device": "tpu"}, "InvalidArgument"),
        ({"model_dir": model_dir, "layer": 1, "device": "cuda:x"}, "InvalidArgument"),
    ]:
        with pytest.raises(penstock.Error) as caught:
            penstock.Table.open(**{"device": "cpu", **arguments})
        assert caught.value.code == code, arguments


def test_the_backing_is_the_one_asked_for(model_dir: pathlib.Path) -> None:
    status = penstock.Table.open(model_dir, 1, device="cpu", backing="memfd").status
    assert status["backing"].startswith("memfd")
    assert status["backing_choice"] == "asked for"
    chosen = penstock.Table.open(model_dir, 1, device="cpu").status
    assert chosen["backing_choice"].startswith("auto")


def test_status_names_the_memory(table: penstock.Table) -> None:
    status = table.status
    assert status["placement"] in ("host", "host_shared", "file")
    assert status["device"] == "cpu"
    assert status["degraded"] == ""
    assert table.layer == 4
    assert table.columns == (0, 4) and table.local_columns == 4 and table.head_dim == 64
