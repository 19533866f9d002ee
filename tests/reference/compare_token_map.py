#!/usr/bin/env python3
"""Compares token maps with ones made by the `tokenizers` package, over every id.

Compares the numpy reference, and with --binary also the map that `penstock hash` makes of the same
tokenizer.json. Needs numpy and tokenizers.
"""
from __future__ import annotations

import argparse
import json
import lzma
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import tokenizers
from tokenizers import Regex, Tokenizer, normalizers

import engram_reference as reference

# Bigrams of a token and the pad token before it, in buckets of a prime: no two compressed ids of a
# vocabulary share a row but by a chance of 1 in 16 million, so equal rows are equal maps.
CONFIG = {
    "engram_layer_ids": [1], "engram_num_embeddings": [16000057], "engram_max_ngram_size": 2,
    "engram_n_heads": 1, "engram_head_dim": 32, "engram_vocab_size": 16000000,
    "engram_pad_token_id": 2, "engram_compressed_vocab_size": 1 << 20,
}


def load_tokenizer(path: pathlib.Path) -> Tokenizer:
    data = path.read_bytes()
    return Tokenizer.from_str((lzma.decompress(data) if path.suffix == ".xz" else data).decode())


def upstream_map(tokenizer: Tokenizer) -> np.ndarray:
    fold = normalizers.Sequence([
        normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "), normalizers.Replace(Regex(r"^ $"), "\ue000"),
        normalizers.Strip(), normalizers.Replace("\ue000", " "),
    ]).normalize_str
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    raw = [tokenizer.id_to_token(i) for i in range(size)]
    texts = [tokenizer.decode([i], skip_special_tokens=False) for i in range(size)]
    text_of_raw = dict(zip(raw, texts))
    return reference.token_map_of_vocabulary(raw, text_of_raw.__getitem__, fold)


def binary_rows(binary: str, tokenizer: pathlib.Path, tokens: int) -> np.ndarray:
    """Row of every token id as a request of one token."""
    with tempfile.TemporaryDirectory() as folder:
        config, batch = pathlib.Path(folder, "config.json"), pathlib.Path(folder, "batch.json")
        config.write_text(json.dumps(CONFIG))
        requests = [{"ids": [i], "position": 0} for i in range(tokens)]
        batch.write_text(json.dumps({"requests": requests, "token_map": str(tokenizer.resolve())}))
        command = [binary, "hash", str(config), "--batch", str(batch), "--json"]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return np.array(json.loads(answer)["rows"]).reshape(tokens)


def rows_of_map(ids: np.ndarray) -> np.ndarray:
    numbers = reference.layout(CONFIG)
    pad = np.full(len(ids), ids[numbers.pad_token])
    history = np.stack([ids, pad], axis=1).astype(np.int64)
    return reference.history_rows(numbers, history).reshape(len(ids))


def agrees(name: str, found: np.ndarray, expected: np.ndarray) -> bool:
    differs = np.flatnonzero(found != expected)
    print(f"  {name}: {'equal' if not len(differs) else f'{len(differs)} ids differ, first {differs[0]}'}")
    return not len(differs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizers", nargs="+", type=pathlib.Path, help="tokenizer.json or .json.xz")
    parser.add_argument("--binary", help="the penstock command")
    options = parser.parse_args()
    ok = True
    for path in options.tokenizers:
        upstream = upstream_map(load_tokenizer(path))
        print(f"{path.name}: {len(upstream)} tokens, {upstream.max() + 1} compressed ids, "
              f"SHA-256 {reference.sha256_of(upstream)} (tokenizers {tokenizers.__version__})")
        mine = reference.token_map_of_vocabulary(reference.read_vocabulary(path))
        ok &= agrees("numpy reference", mine, upstream)
        if options.binary:
            rows = binary_rows(options.binary, path, len(upstream))
            ok &= agrees("penstock", rows, rows_of_map(upstream))
    return not ok


if __name__ == "__main__":
    sys.exit(main())
