"""What Engram computes, in plain numpy.

Written from the specification of the models, not from the C++ sources; the two are compared by
`check_against_binary.py`. Needs numpy; `python engram_reference.py GOLDEN_DIR` compares this file
itself with the cases in tests/golden.
"""
from __future__ import annotations

import dataclasses
import hashlib
import json
import lzma
import math
import pathlib
import struct
import sys
import unicodedata

import numpy as np

DEAD = -1
IMAGE_TOKEN = 129264


# --- Layout -------------------------------------------------------------------------------------


def _miller_rabin(n: int, base: int) -> bool:
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    x = pow(base, odd, n)
    return x in (1, n - 1) or any((x := x * x % n) == n - 1 for _ in range(twos - 1))


def is_bucket_prime(n: int) -> bool:
    """Trial division by 2 to 37, then Miller-Rabin; base 61 makes 61 itself composite."""
    if n < 2:
        return False
    for small in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        if n % small == 0:
            return n == small
    return all(_miller_rabin(n, base) for base in (2, 7, 61))


@dataclasses.dataclass
class Layout:
    """The numbers that follow from a config.json."""

    layer_ids: list[int]
    max_ngram: int
    heads: int
    head_dim: int
    pad_token: int
    compressed_size: int
    primes: np.ndarray  # [L, C]
    offsets: np.ndarray  # [L, C]
    multipliers: np.ndarray  # [L, N]

    @property
    def row_counts(self) -> list[int]:
        return [int(total) for total in self.primes.sum(axis=1)]


def engram_keys(config: dict) -> dict:
    """The part of a config.json that holds the engram keys."""
    return config if "engram_layer_ids" in config else config["text_config"]


def layout(config: dict) -> Layout:
    keys = engram_keys(config)
    n, heads = keys["engram_max_ngram_size"], keys["engram_n_heads"]
    compressed = keys["engram_compressed_vocab_size"]
    seen: set[int] = set()
    primes = []
    for _ in keys["engram_layer_ids"]:
        row = []
        for _order in range(2, n + 1):
            current = keys["engram_vocab_size"] - 1
            for _head in range(heads):
                current += 1
                while current in seen or not is_bucket_prime(current):
                    current += 1
                seen.add(current)
                row.append(current)
        primes.append(row)
    table = np.array(primes, dtype=np.int64)
    bound = max(1, (2**63 - 1) // compressed // 2)
    multipliers = [
        2 * np.random.default_rng(10007 * layer).integers(0, bound, size=n, dtype=np.int64) + 1
        for layer in keys["engram_layer_ids"]
    ]
    return Layout(
        layer_ids=keys["engram_layer_ids"],
        max_ngram=n,
        heads=heads,
        head_dim=keys["engram_head_dim"],
        pad_token=keys["engram_pad_token_id"],
        compressed_size=compressed,
        primes=table,
        offsets=np.cumsum(table, axis=1) - table,
        multipliers=np.array(multipliers),
    )


# --- Hash ---------------------------------------------------------------------------------------


def history_rows(numbers: Layout, history: np.ndarray) -> np.ndarray:
    """Row ids of effective compressed ids. history [T, N], newest first -> int32 [T, L, C]."""
    tokens, layers = history.shape[0], len(numbers.layer_ids)
    rows = np.empty((tokens, layers, numbers.primes.shape[1]), dtype=np.int32)
    for layer in range(layers):
        rolling = history[:, 0] * numbers.multipliers[layer, 0]
        for shift in range(1, numbers.max_ngram):
            rolling = rolling ^ (history[:, shift] * numbers.multipliers[layer, shift])
            columns = slice((shift - 1) * numbers.heads, shift * numbers.heads)
            primes, offsets = numbers.primes[layer, columns], numbers.offsets[layer, columns]
            rows[:, layer, columns] = rolling[:, None] % primes + offsets
    return rows


def hash_request(numbers: Layout, token_map: np.ndarray, dead_token: int | None,
                 ids, position: int = 0, lookback=()) -> np.ndarray:
    """Row ids of one request's tokens. `lookback` is newest first, -1 unknown, of any length."""
    pad = int(token_map[numbers.pad_token])

    def compress(raw: np.ndarray) -> np.ndarray:
        dead = np.zeros(raw.shape, bool) if dead_token is None else raw == dead_token
        legal = np.where(dead, 0, raw)
        if legal.size and (legal.min() < 0 or legal.max() >= len(token_map)):
            raise ValueError("token id outside the map")
        return np.where(dead, DEAD, token_map[legal]).astype(np.int64)

    ids = np.asarray(ids, dtype=np.int64)
    depth = numbers.max_ngram - 1
    window = np.full(depth, -1, dtype=np.int64)
    window[: len(lookback)] = lookback
    # Line the window up before the tokens: what is unknown counts as padding, what lies before the
    # start of the sequence ends the n-gram.
    known = window >= 0
    before = np.full(depth, pad, dtype=np.int64)
    before[known] = compress(window[known])
    before[np.arange(depth) >= position] = DEAD
    line = np.concatenate([before[::-1], compress(ids)])
    history = np.stack([line[depth - s : depth - s + len(ids)] for s in range(depth + 1)], axis=1)
    blocked = np.logical_or.accumulate(history == DEAD, axis=1)
    return history_rows(numbers, np.where(blocked, pad, history))


def hash_case(case: dict, config: dict | None = None) -> np.ndarray:
    """Row ids of a case as in tests/golden/hash.json."""
    numbers = layout(config or case["config"])
    ids = case.get("token_map", "identity")
    token_map = np.arange(numbers.compressed_size) if ids == "identity" else np.array(ids)
    parts = [
        hash_request(numbers, token_map, case.get("dead_token"), request["ids"],
                     request.get("position", 0), request.get("lookback", ()))
        for request in case["requests"]
    ]
    empty = np.empty((0, len(numbers.layer_ids), numbers.primes.shape[1]), np.int32)
    return np.concatenate([empty, *parts])


# --- Token map ----------------------------------------------------------------------------------

_WHITE_SPACE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def _byte_of_character() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    table.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return table


_BYTES = _byte_of_character()


def decode_token(token: str) -> str:
    if all(character in _BYTES for character in token):
        return bytes(_BYTES[character] for character in token).decode("utf-8", "replace")
    return token


def normalise(text: str) -> str:
    """The models' normaliser with Python's Unicode tables, which are newer than theirs."""
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    text = "".join(c for c in text if not unicodedata.category(c).startswith("M"))
    text = "".join(c.lower() for c in text)
    blanks, joined = " \t\r\n", ""
    for c in text:
        if c not in blanks:
            joined += c
        elif not joined.endswith(" "):
            joined += " "
    if joined == " ":
        joined = "\ue000"
    return joined.strip(_WHITE_SPACE).replace("\ue000", " ")


def read_vocabulary(path: pathlib.Path) -> list[str]:
    """Raw vocabulary strings by token id, added tokens included."""
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        tokenizer = json.load(file)
    token_of_id = {id_: token for token, id_ in tokenizer["model"]["vocab"].items()}
    token_of_id.update({token["id"]: token["content"] for token in tokenizer["added_tokens"]})
    return [token_of_id[i] for i in range(len(token_of_id))]


def token_map_of_vocabulary(tokens: list[str], decode=decode_token, fold=normalise,
                            vocab_size: int | None = None) -> np.ndarray:
    id_of_key: dict[str, int] = {}
    ids = []
    for token in tokens:
        text = decode(token)
        key = token if "\ufffd" in text else (fold(text) or text)
        ids.append(id_of_key.setdefault(key, len(id_of_key)))
    fresh = range(len(id_of_key), len(id_of_key) + (vocab_size or len(tokens)) - len(tokens))
    return np.array([*ids, *fresh], dtype=np.int32)


def encode_token_map(ids: np.ndarray, provenance: str = "") -> bytes:
    """The file of docs/formats/token_map.md."""
    body = np.ascontiguousarray(ids, dtype="<i4").tobytes() + provenance.encode()
    head = struct.pack("<8sIIQQ", b"PENSTMAP", 1, 0, len(ids), len(provenance.encode()))
    return head + hashlib.sha256(head + body).digest() + body


# --- Rows ---------------------------------------------------------------------------------------


def e4m3_to_float(codes: np.ndarray) -> np.ndarray:
    codes = codes.astype(np.int64)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    value = np.where((codes & 127) == 127, np.nan, value)
    return np.where(codes & 128, -value, value).astype(np.float32)


def float_to_bf16(values: np.ndarray) -> np.ndarray:
    """Bits, ties to even; every NaN is 0x7FC0."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def bf16_to_float(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def dequantise(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """e4m3 codes [..., D] and ue8m0 bytes [..., D / 32] -> bf16 bits [..., D]."""
    # The byte is the exponent field of a float: 0 is zero, 255 is infinity.
    factors = (scales.astype(np.uint32) << 23).view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        return float_to_bf16(e4m3_to_float(values) * np.repeat(factors, 32, axis=-1))


class Safetensors:
    """A safetensors file, or the several that a model directory is made of."""

    DTYPES = {"F8_E4M3": np.uint8, "F8_E8M0": np.uint8, "BF16": np.uint16, "U8": np.uint8,
              "F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64, "BOOL": np.bool_}

    def __init__(self, path: pathlib.Path):
        files = [path]
        if path.is_dir():
            index = path / "model.safetensors.index.json"
            names = json.loads(index.read_text())["weight_map"].values() if index.exists() else []
            files = [path / name for name in sorted(set(names))] or [path / "model.safetensors"]
        self.entries: dict[str, tuple[pathlib.Path, int, dict]] = {}
        for file in files:
            with open(file, "rb") as stream:
                (size,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(size))
            header.pop("__metadata__", None)
            self.entries.update({name: (file, 8 + size, item) for name, item in header.items()})

    def __getitem__(self, name: str) -> np.ndarray:
        file, start, item = self.entries[name]
        shape, begin = tuple(item["shape"]), item["data_offsets"][0]
        if 0 in shape:
            return np.empty(shape, self.DTYPES[item["dtype"]])
        return np.memmap(file, self.DTYPES[item["dtype"]], "r", start + begin, shape)


def lookup_rows(model: Safetensors, layer_id: int, row_ids: np.ndarray) -> np.ndarray:
    """bf16 bits [T, C, D] of row ids [T, C]; -1 gives a row of zeros."""
    prefix = f"layers.{layer_id}.engram.embed."
    values, scales = model[prefix + "weight"], model[prefix + "scale"]
    ids = np.where(row_ids < 0, 0, row_ids)
    return np.where(row_ids[..., None] < 0, np.uint16(0), dequantise(values[ids], scales[ids]))


# --- Gate ---------------------------------------------------------------------------------------


def engram_gate(hidden: np.ndarray, kv: np.ndarray, q_weight: np.ndarray, k_weight: np.ndarray,
                eps: float, mask=None, dtype=np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Gates [T, hc] and new hidden [T, hc, dim] before its rounding to bf16. Inputs are bf16 bits:
    hidden [T, hc, dim], kv [T, (hc + 1) * dim], weights [hc, dim]; mask [T], True is active."""
    h, q, k = (bf16_to_float(x).astype(dtype) for x in (hidden, q_weight, k_weight))
    tokens, copies, dim = h.shape
    parts = bf16_to_float(kv).astype(dtype).reshape(tokens, copies + 1, dim)
    keys, value = parts[:, :copies], parts[:, copies:]

    def inverse_norm(x):
        return 1 / np.sqrt((x * x).sum(axis=-1) / dim + dtype(eps))

    dot = (h * q * k * keys).sum(axis=-1)
    dot *= inverse_norm(h) * inverse_norm(keys) / np.sqrt(dtype(dim))
    root = np.sqrt(np.maximum(np.abs(dot), dtype(1e-6)))
    gate = 1 / (1 + np.exp(-np.where(dot < 0, -root, root)))
    out = h + gate[..., None] * value
    if mask is not None:
        out = np.where(np.asarray(mask, bool)[:, None, None], out, h)
    return gate, out


# --- Shards and groups --------------------------------------------------------------------------


def column_shards(head_sizes: list[int], shards: int) -> list[list[int]]:
    """[column_start, column_end, row_start, row_end, local_columns] of each shard."""
    columns = len(head_sizes)
    local = -(-columns // shards)
    if (shards - 1) * local >= columns:
        raise ValueError("a shard would be empty")
    bounds = [0, *np.cumsum(head_sizes).tolist()]
    starts = [shard * local for shard in range(shards)]
    ends = [min(start + local, columns) for start in starts]
    return [[s, e, bounds[s], bounds[e], local] for s, e in zip(starts, ends)]


def edp_groups(node_of_rank: list[int], dp: int, tp: int, pp: int = 1, pcp: int = 1,
               external_dp: int = 1) -> tuple[int, list[list[int]]]:
    replica, world = pp * pcp * tp, external_dp * dp * pp * pcp * tp
    nodes = len(set(node_of_rank))
    replicas_of_node, rest = divmod(world, nodes * replica)
    if rest:
        return 1, []
    size = math.gcd(dp, replicas_of_node)
    if size > 1 and nodes > 1:
        step = replicas_of_node * replica
        for start in range(0, world, step):
            same = [r for r in range(world) if node_of_rank[r] == node_of_rank[start]]
            if same != list(range(start, start + step)):
                return 1, []
    if size == 1:
        return 1, []
    grid = np.arange(world).reshape(external_dp, dp, pp, pcp, tp)
    return size, np.moveaxis(grid, 1, -1).reshape(-1, size).tolist()


# --- Self-check ---------------------------------------------------------------------------------


def sha256_of(ids: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(ids, dtype="<i4").tobytes()).hexdigest()


def self_check(golden: pathlib.Path) -> list[str]:
    """Names of the golden files that this reference contradicts."""
    bad = []

    def check(name: str, holds: bool) -> None:
        if not holds and name not in bad:
            bad.append(name)

    def load(name: str):
        return json.loads((golden / name).read_text())

    for case in load("layouts.json"):
        numbers = layout(case["config"])
        for key in ("primes", "offsets", "multipliers"):
            check("layouts.json", getattr(numbers, key).tolist() == case[key])
    for case in load("hash.json"):
        check("hash.json", hash_case(case).tolist() == case["rows"])
    dequant = load("dequant.json")
    for scale, bits in zip(dequant["scale_bytes"], dequant["bits"]):
        scales = np.full(8, scale, np.uint8)
        check("dequant.json", dequantise(np.arange(256, dtype=np.uint8), scales).tolist() == bits)
    for case in load("shards.json"):
        try:
            found = column_shards(case["head_sizes"], case["shards"])
        except ValueError:
            found = None
        check("shards.json", found == case.get("bounds"))
    for case in load("edp_groups.json"):
        sizes = {key: case[key] for key in ("dp", "tp", "pp", "pcp", "external_dp")}
        check("edp_groups.json", edp_groups(case["node_of_rank"], **sizes) == (case["size"], case["groups"]))
    gates = Safetensors(golden / "engram_gate.safetensors")
    for i in {name.split(".")[0] for name in gates.entries}:
        mask = gates[f"{i}.mask"] if f"{i}.mask" in gates.entries else None
        inputs = [gates[f"{i}.{name}"] for name in ("hidden", "kv", "q_weight", "k_weight")]
        for dtype, tolerance in ((np.float64, 1e-9), (np.float32, 1e-4)):
            _, out = engram_gate(*inputs, float(gates[f"{i}.eps"][0]), mask, dtype)
            check("engram_gate.safetensors", np.allclose(out, gates[f"{i}.out"], tolerance, tolerance))
    expected = load("token_map.json")
    ids = token_map_of_vocabulary(read_vocabulary(golden / expected["tokenizer"]))
    check("token_map.json", sha256_of(ids) == expected["sha256_int32_le"])
    corpora, numbers = load("corpus_hashes.json")["corpora"], layout(load("layouts.json")[0]["config"])
    tokens = Safetensors(golden / "corpus_tokens.safetensors")
    for name, item in corpora.items():
        rows = hash_request(numbers, ids, IMAGE_TOKEN, tokens[name])
        check("corpus_hashes.json", sha256_of(rows) == item["rows_sha256_int32_le"])
    return bad


def main() -> int:
    bad = self_check(pathlib.Path(sys.argv[1]))
    print("\n".join(f"differs: {name}" for name in bad) or "reference: agrees with every golden file")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
