#include "gate/strategies/strategies.hpp"

namespace penstock::detail {

void take_weight_gather(const GateContext& gate, std::int64_t tokens, Arena& arena) {
  take_tile(gate, tokens, arena);
}

void run_weight_gather(const GateContext& gate, const GateRun& run, Arena& arena) {
  // Who pulls needs nobody, and nobody needs him; a gather needs all.
  if (run.rows.size() == 0 && gate.layer.rows->are_readable()) return;
  const auto tile = take_tile(gate, run.rows.size(), arena);
  const auto multiply = [&](const ArrivedRows& arrived) {
    run.rows.visit({0, run.rows.size()}, [&](std::int64_t row, std::int64_t, std::int64_t count) {
      gate.operations->gated_product({.tokens = count,
                                      .rows = arrived.rows.size(),
                                      .hidden = gate.shape.hidden_size,
                                      .x = run.x(gate, row),
                                      .w = arrived.data,
                                      .target = run.target(gate, row, arrived.rows.begin),
                                      .tile = tile},
                                     run.stream);
    });
  };
  gate.stream->consume(gate.layer, multiply, run.stream);
}

}  // namespace penstock::detail
