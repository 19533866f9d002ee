"""Rows of a table in GPU memory, read by a Triton kernel as inference engines write one.

Split arrays of values and scales, a persistent grid of one program per multiprocessor, 16 rows a
step, bf16 out. `penstock bench lookup --placement device` has the same technique in CUDA as its
baseline; this shows how near that comes to what a compiler of tiles makes of it. Needs torch and
triton. Prints one JSON line per grid: the median of 20 measurements of 16 reads each, so that the
time of a launch from Python does not count.
"""

import argparse
import json
import statistics

import torch
import triton
import triton.language as tl

DIM, SCALES, COLUMNS, READS = 256, 8, 24, 16


@triton.jit
def read_rows(values, scales, ids, out, count, PROGRAMS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    element = tl.arange(0, WIDTH)[None, :]
    for step in range(tl.program_id(0), tl.cdiv(count, ROWS), PROGRAMS):
        row = step * ROWS + tl.arange(0, ROWS)
        is_there = row < count
        source = tl.load(ids + row, mask=is_there, other=0).to(tl.int64)[:, None]
        code = tl.load(values + source * WIDTH + element, mask=is_there[:, None], other=0.0)
        exponent = tl.load(scales + source * (WIDTH // 32) + element // 32, mask=is_there[:, None], other=0)
        scale = (exponent.to(tl.int32) << 23).to(tl.float32, bitcast=True)
        tl.store(out + row[:, None] * WIDTH + element, (code.to(tl.float32) * scale).to(tl.bfloat16), mask=is_there[:, None])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=24)
    parser.add_argument("--tokens", type=int, default=8192)
    options = parser.parse_args()
    rows = int(options.gib * 2**30) // (DIM + SCALES)
    values = torch.empty(rows * DIM, dtype=torch.uint8, device="cuda").random_(0, 120)
    scales = torch.full((rows * SCALES,), 127, dtype=torch.uint8, device="cuda")
    count = options.tokens * COLUMNS
    id_sets = [torch.randint(0, rows, (count,), dtype=torch.int32, device="cuda") for _ in range(24)]
    out = torch.empty(count * DIM, dtype=torch.bfloat16, device="cuda")
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    turn = 0
    for name, programs in (("triton_full_grid", processors), ("triton_half_grid", processors // 2)):
        programs = min(programs, triton.cdiv(count, 16))
        times = []
        for repetition in range(-3, 20):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(READS):
                ids = id_sets[turn % len(id_sets)]
                turn += 1
                read_rows[(programs,)](values.view(torch.float8_e4m3fn), scales, ids, out, count, PROGRAMS=programs, ROWS=16, WIDTH=DIM)
            end.record()
            end.synchronize()
            if repetition >= 0:
                times.append(begin.elapsed_time(end) / READS)
        median = statistics.median(times)
        print(json.dumps({"bench": "lookup", "placement": "device", "tokens": options.tokens, "way": name,
                          "ms": median, "gb_per_second": count * (DIM + SCALES) / median / 1e6}))


if __name__ == "__main__":
    main()
