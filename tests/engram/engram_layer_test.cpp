// One layer on one rank, from a model directory to the injected stream.

#include "penstock/engram/engram_layer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "penstock/core/error.hpp"
#include "penstock/engram/engram_gate.hpp"
#include "penstock/engram/engram_weights.hpp"
#include "support/small_model.hpp"
#include "support/temp_dir.hpp"

namespace penstock {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kTokens = 9;

class EngramLayerTest : public testing::Test {
 protected:
  EngramLayerTest()
      : small_(test::make_small_model(root_ / "model", 3, 4)),
        model_(ModelDir::open(small_.directory)) {}

  /// Ids of one layer among those of a step, [T, columns] with the step's stride.
  RowIds ids_of(const std::vector<std::int32_t>& ids, std::size_t layer) const {
    const auto columns = small_.columns();
    return {.data = ids.data() + layer * static_cast<std::size_t>(columns),
            .tokens = static_cast<std::int64_t>(ids.size()) / (2 * columns),
            .columns = columns,
            .token_stride = std::int64_t{2} * columns};
  }

  /// What the layer must give, each part by its definition but for the gate, which has its own tests.
  std::vector<BF16> expected(const std::vector<std::int32_t>& ids, std::size_t layer,
                             const std::vector<BF16>& hidden,
                             const std::vector<std::uint8_t>& mask) const {
    const EngramWeights weights = load_engram_weights(model_, test::SmallModel::kLayers[layer]);
    const RowIds rows = ids_of(ids, layer);
    std::vector<BF16> kv;
    for (std::int64_t token = 0; token < rows.tokens; ++token) {
      for (std::int64_t o = 0; o < std::int64_t{weights.hc_mult + 1} * weights.dim; ++o) {
        double sum = 0;
        for (std::int64_t i = 0; i < weights.row_width; ++i) {
          const std::int32_t row = rows.data[token * rows.token_stride + i / small_.head_dim];
          if (row < 0) continue;
          sum +=
              double{to_float(small_.element(layer, row, static_cast<int>(i % small_.head_dim)))} *
              double{to_float(weights.wkv[static_cast<std::size_t>(o * weights.row_width + i)])};
        }
        kv.push_back(to_bf16(static_cast<float>(sum)));
      }
    }
    std::vector<BF16> out(hidden.size());
    engram_gate({.tokens = rows.tokens, .hc_mult = weights.hc_mult, .dim = weights.dim},
                {.hidden = hidden,
                 .kv = kv,
                 .q_weight = weights.q_weight,
                 .k_weight = weights.k_weight,
                 .eps = weights.eps,
                 .mask = mask,
                 .out = out});
    return out;
  }

  std::vector<BF16> random_hidden(std::int64_t tokens = kTokens) const {
    std::mt19937 random(8);
    return test::random_bf16(static_cast<std::size_t>(tokens * small_.hc_mult * small_.hidden),
                             1.0F, random);
  }

  test::TempDir root_;
  test::SmallModel small_;
  ModelDir model_;
};

void expect_near(const std::vector<BF16>& found, const std::vector<BF16>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const float want = to_float(expected[i]);
    ASSERT_NEAR(to_float(found[i]), want, 1e-2F + 1e-2F * std::abs(want)) << i;
  }
}

std::string message_of(ErrorCode code, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST_F(EngramLayerTest, InjectsWhatItsRowsSay) {
  const auto ids = small_.random_ids(kTokens, 5);
  const auto hidden = random_hidden();
  const std::vector<std::uint8_t> mask{1, 1, 0, 1, 1, 1, 0, 1, 1};
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (const Placement placement : {Placement::Host, Placement::HostShared, Placement::File}) {
      EngramLayer engram = EngramLayer::open(model_, test::SmallModel::kLayers[layer],
                                             {.placement = placement, .max_tokens = kTokens});
      EXPECT_EQ(engram.table().status().placement, placement);
      Ticket ticket = engram.prefetch(ids_of(ids, layer));
      std::vector<BF16> out(hidden.size());
      engram.forward(hidden, ticket, mask, out);
      expect_near(out, expected(ids, layer, hidden, mask));
      EXPECT_NE(out, hidden);
    }
  }
}

TEST_F(EngramLayerTest, ReadsAheadAndInjectsInPlace) {
  EngramLayer engram = EngramLayer::open(model_, 1, {.max_tokens = kTokens, .slots = 2});
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<Ticket> tickets;
  for (const std::uint32_t step : {0U, 1U}) {
    ids.push_back(small_.random_ids(kTokens - step, step));
    tickets.push_back(engram.prefetch(ids_of(ids.back(), 0)));
  }
  for (const std::size_t step : {1U, 0U}) {
    const auto hidden = random_hidden(kTokens - static_cast<std::int64_t>(step));
    auto stream = hidden;
    engram.forward(stream, tickets[step], {}, stream);
    expect_near(stream, expected(ids[step], 0, hidden, {}));
  }
  EXPECT_NO_THROW((void)engram.prefetch(ids_of(ids[0], 0)));  // forward has freed the slots
}

TEST_F(EngramLayerTest, TakesAStepWithoutTokens) {
  EngramLayer engram = EngramLayer::open(model_, 1, {.max_tokens = 1});
  Ticket ticket = engram.prefetch(ids_of({}, 0));
  EXPECT_NO_THROW(engram.forward({}, ticket, {}, {}));
}

TEST_F(EngramLayerTest, RefusesWhatDoesNotFitAndWritesNothing) {
  EngramLayer engram = EngramLayer::open(model_, 1, {.max_tokens = kTokens});
  const auto ids = small_.random_ids(kTokens, 5);
  const auto hidden = random_hidden();
  const std::vector<BF16> untouched(hidden.size(), BF16{0x1234});
  auto out = untouched;
  Ticket empty;
  message_of(ErrorCode::InvalidArgument, [&] { engram.forward(hidden, empty, {}, out); });
  Ticket ticket = engram.prefetch(ids_of(ids, 0));
  message_of(ErrorCode::InvalidArgument,
             [&] { engram.forward(std::span(hidden).first(hidden.size() - 1), ticket, {}, out); });
  EXPECT_EQ(out, untouched);
  const auto too_many = small_.random_ids(kTokens + 1, 5);
  EXPECT_THAT(
      message_of(ErrorCode::InvalidArgument, [&] { (void)engram.prefetch(ids_of(too_many, 0)); }),
      HasSubstr("10"));
}

TEST_F(EngramLayerTest, RefusesALayerWithoutEngramAndAShardOfColumns) {
  message_of(ErrorCode::NotFound, [&] { (void)EngramLayer::open(model_, 2); });
  EXPECT_THAT(message_of(ErrorCode::NotFound, [&] { (void)engram_table_spec(model_.config(), 3); }),
              HasSubstr("layer 3"));
  const EngramWeights weights = load_engram_weights(model_, 1);
  Table shard = Table::open(engram_table_spec(model_.config(), 1), open_checkpoint_rows(model_, 1),
                            {.shard = {0, 2}});
  EXPECT_THAT(message_of(ErrorCode::InvalidArgument,
                         [&] { (void)EngramLayer(shard, weights, {.max_tokens = 1}); }),
              HasSubstr("only a shard of the columns"));
}

TEST_F(EngramLayerTest, SizesOfAnInjectionAreThoseOfItsWeights) {
  const EngramWeights weights = load_engram_weights(model_, 1);
  const EngramInjection injection(weights, Device::cpu(), kTokens);
  EXPECT_EQ(injection.hc_mult(), small_.hc_mult);
  EXPECT_EQ(injection.dim(), small_.hidden);
  EXPECT_EQ(injection.row_width(), std::int64_t{small_.columns()} * small_.head_dim);
  const auto elements = static_cast<std::int64_t>(weights.wkv.size() + weights.q_weight.size() +
                                                  weights.k_weight.size()) +
                        kTokens * (small_.hc_mult + 1) * small_.hidden;
  EXPECT_EQ(injection.resident_bytes(), elements * 2);
  message_of(ErrorCode::InvalidArgument, [&] { EngramInjection(weights, Device::cpu(), 0); });
}

TEST_F(EngramLayerTest, AnInjectionRefusesRowsOfAnotherWidth) {
  EngramInjection injection(load_engram_weights(model_, 1), Device::cpu(), 2);
  const auto width = static_cast<std::size_t>(injection.row_width());
  for (const std::size_t elements : {width - 1, width + 1, 3 * width}) {
    const std::vector<BF16> rows(elements);
    EXPECT_THAT(message_of(ErrorCode::InvalidArgument, [&] { injection.project(rows); }),
                HasSubstr(std::to_string(elements)));
  }
}

}  // namespace
}  // namespace penstock
