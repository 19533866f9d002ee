#include "gate/strategies/strategies.hpp"

namespace penstock::detail {

std::span<std::byte> take_tile(const GateContext& gate, std::int64_t tokens, Arena& arena) {
  const std::size_t bytes = gate.operations->tile_bytes(tokens, gate.shape.output_size);
  return arena.take<std::byte>(static_cast<std::int64_t>(bytes));
}

void take_replicated(const GateContext& gate, std::int64_t tokens, Arena& arena) {
  take_tile(gate, tokens, arena);
}

void run_replicated(const GateContext& gate, const GateRun& run, Arena& arena) {
  const auto tile = take_tile(gate, run.rows.size(), arena);
  run.rows.visit({0, run.rows.size()}, [&](std::int64_t row, std::int64_t, std::int64_t count) {
    gate.operations->gated_product({.tokens = count,
                                    .rows = gate.shape.output_size,
                                    .hidden = gate.shape.hidden_size,
                                    .x = run.x(gate, row),
                                    .w = gate.weight(),
                                    .target = run.target(gate, row, 0),
                                    .tile = tile},
                                   run.stream);
  });
}

}  // namespace penstock::detail
