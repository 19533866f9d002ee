#include "penstock/engram/ngram_hasher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"
#include "penstock/engram/lookback_window.hpp"
#include "support/engram_cases.hpp"
#include "support/hash_oracle.hpp"

namespace penstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::engram_config_of;
using testing_support::golden;
using testing_support::identity_ids;
using testing_support::released_config;
using testing_support::sequence_rows;
using testing_support::small_config;

using Tokens = std::vector<std::int32_t>;

/// The arrays behind a TokenBatch.
struct Batch {
  explicit Batch(int depth_in) : depth(depth_in) {}

  void add(std::span<const std::int32_t> ids, std::int64_t position,
           std::span<const std::int32_t> window) {
    token_ids.insert(token_ids.end(), ids.begin(), ids.end());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      positions.push_back(position + static_cast<std::int64_t>(i));
    }
    query_start.push_back(static_cast<std::int32_t>(token_ids.size()));
    lookback.insert(lookback.end(), window.begin(), window.end());
    lookback.resize((query_start.size() - 1) * static_cast<std::size_t>(depth), -1);
  }

  TokenBatch view() const { return {token_ids, query_start, positions, lookback}; }

  int depth;
  Tokens token_ids;
  std::vector<std::int32_t> query_start{0};
  std::vector<std::int64_t> positions;
  Tokens lookback;
};

Tokens random_tokens(std::mt19937& random, std::size_t count, std::int32_t below) {
  Tokens tokens(count);
  for (auto& token : tokens) token = static_cast<std::int32_t>(random()) & 0x7fffffff;
  for (auto& token : tokens) token %= below;
  return tokens;
}

/// A map in which several tokens share an id; its largest id is `size` - 1.
Tokens random_map(std::mt19937& random, std::size_t tokens, std::int32_t size) {
  Tokens map = random_tokens(random, tokens, size);
  map[tokens / 2] = size - 1;
  return map;
}

TEST(NgramHasher, AgreesWithGoldenCases) {
  const auto cases = golden("hash.json");
  ASSERT_EQ(cases.size(), 24U);
  for (const auto& item : cases) {
    const auto config = engram_config_of(item.at("config"));
    const auto map = item.at("token_map").is_string()
                         ? TokenMap::identity(static_cast<int>(config.compressed_vocab_size))
                         : TokenMap(item.at("token_map").get<Tokens>());
    std::optional<std::int32_t> dead;
    if (!item.at("dead_token").is_null()) dead = item.at("dead_token").get<std::int32_t>();
    Batch batch(config.lookback_depth());
    for (const auto& request : item.at("requests")) {
      batch.add(request.at("ids").get<Tokens>(), request.at("position"),
                request.at("lookback").get<Tokens>());
    }
    Tokens expected;
    for (const auto& token : item.at("rows")) {
      for (const auto& layer : token) {
        for (const auto& row : layer) expected.push_back(row);
      }
    }
    EXPECT_EQ(NgramHasher(HashLayout(config), map, dead)(batch.view()), expected);
  }
}

/// Rows of one token in one layer of the released model.
Tokens rows_of(const Tokens& all, std::size_t token, std::size_t layer) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>((token * 2 + layer) * 24);
  return {begin, begin + 24};
}

TEST(NgramHasher, GivesThePublishedRowsOfTheReleasedModel) {
  const NgramHasher hasher(HashLayout(released_config()), TokenMap::identity(99092));
  Batch batch(3);
  batch.add(Tokens{0, 1234, 56789, 99091, 42, 7}, 0, {});
  const Tokens rows = hasher(batch.view());
  EXPECT_THAT(rows_of(rows, 0, 0),
              ElementsAre(5702652, 24393184, 39183301, 61503783, 78984481, 90144770, 103724983,
                          121476532, 131476717, 152385926, 164143652, 191599181, 198145581,
                          217419202, 238329687, 247482304, 257520185, 283540304, 288689443,
                          315264704, 322314652, 348890037, 367865216, 380066193));
  EXPECT_THAT(rows_of(rows, 3, 1),
              ElementsAre(12306562, 27289845, 41202467, 61103816, 64642065, 86841183, 105979901,
                          115701154, 132290865, 146392734, 160156147, 179472124, 199373964,
                          211928248, 237602374, 243331557, 268500474, 284033899, 301978563,
                          306763182, 328590494, 347241693, 357003060, 377759647));
  EXPECT_THAT(rows_of(rows, 5, 0),
              ElementsAre(10635489, 23985305, 39744525, 53818166, 66930043, 81967808, 97486831,
                          123477372, 133503831, 147890110, 175423203, 179404797, 206010704,
                          217325771, 233813515, 251094404, 259673095, 283250480, 289751103,
                          317343674, 330531803, 342503611, 354279404, 380497778));
}

TEST(NgramHasher, CutsHistoryAtADeadToken) {
  const NgramHasher hasher(HashLayout(released_config()), TokenMap::identity(99092), kImageTokenId);
  Batch batch(3);
  batch.add(Tokens{0, 1234, kImageTokenId, 99091, 42, 7}, 0, {});
  const Tokens rows = hasher(batch.view());
  // A dead token hashes as padding alone, also where its id lies outside the map.
  EXPECT_THAT(rows_of(rows, 2, 1),
              ElementsAre(6788701, 28249242, 44401659, 55169969, 76554643, 88007614, 104465141,
                          120694389, 131862336, 159654072, 173141644, 180723153, 199258128,
                          209374005, 226234010, 253188427, 261869729, 284532797, 296826308,
                          304380858, 321414036, 350742427, 363928019, 381853422));
  EXPECT_THAT(rows_of(rows, 4, 0),
              ElementsAre(13131409, 22107638, 46286683, 48259159, 69021570, 87090089, 104214597,
                          115341818, 135168683, 154635978, 171572005, 185028301, 195693925,
                          217838742, 228070194, 252870089, 263344940, 282425859, 298237857,
                          306346728, 327828181, 336162466, 360086191, 369255912));
}

struct Sequence {
  Tokens tokens;
  std::size_t done = 0;
  LookbackWindow window;
  Tokens rows;  ///< As found so far.
};

/// Sends the sequences through `hasher` in random chunks, several sequences a step, and returns
/// their rows one sequence after another.
Tokens rows_in_chunks(const NgramHasher& hasher, std::vector<Sequence>& sequences,
                      std::mt19937& random) {
  const int depth = hasher.layout().config.lookback_depth();
  const auto row = static_cast<std::size_t>(hasher.layout().num_layers()) *
                   static_cast<std::size_t>(hasher.layout().num_columns());
  for (bool is_done = false; !is_done;) {
    Batch batch(depth);
    std::vector<Sequence*> in_step;
    std::ranges::shuffle(sequences, random);
    for (auto& sequence : sequences) {
      if (random() % 3 == 0) continue;
      const std::size_t left = sequence.tokens.size() - sequence.done;
      const std::size_t count = std::min<std::size_t>(left, random() % 6);  // 0: an empty request
      const std::span chunk(sequence.tokens.data() + sequence.done, count);
      Tokens window(static_cast<std::size_t>(depth));
      sequence.window.read(window);
      batch.add(chunk, static_cast<std::int64_t>(sequence.done), window);
      sequence.window.append(chunk);
      sequence.done += count;
      in_step.push_back(&sequence);
    }
    const Tokens found = hasher(batch.view());
    for (std::size_t i = 0; i < in_step.size(); ++i) {
      const auto begin = found.begin() + batch.query_start[i] * static_cast<std::ptrdiff_t>(row);
      const auto end = found.begin() + batch.query_start[i + 1] * static_cast<std::ptrdiff_t>(row);
      in_step[i]->rows.insert(in_step[i]->rows.end(), begin, end);
    }
    is_done =
        std::ranges::all_of(sequences, [](const Sequence& s) { return s.done == s.tokens.size(); });
  }
  Tokens all;
  for (const auto& sequence : sequences) {
    all.insert(all.end(), sequence.rows.begin(), sequence.rows.end());
  }
  return all;
}

TEST(NgramHasher, GivesTheSameRowsForAnyChunking) {
  std::mt19937 random(42);
  for (int round = 0; round < 60; ++round) {
    auto config = small_config();
    config.max_ngram_size = 2 + round % 4;
    const HashLayout layout(config);
    const Tokens map = random_map(random, 60, 50);
    const std::optional<std::int32_t> dead =
        round % 3 == 0 ? std::nullopt : std::optional<std::int32_t>(round % 3 == 1 ? 7 : 1000);
    const NgramHasher hasher(layout, TokenMap(map), dead);
    std::vector<Sequence> sequences;
    for (std::size_t i = 0; i < 1 + random() % 4; ++i) {
      Tokens tokens = random_tokens(random, random() % 40, 60);
      for (auto& token : tokens) {
        if (dead && random() % 5 == 0) token = *dead;
      }
      sequences.push_back({std::move(tokens), 0, LookbackWindow(config.lookback_depth()), {}});
    }
    const Tokens found = rows_in_chunks(hasher, sequences, random);
    Tokens expected;
    for (const auto& sequence : sequences) {
      const Tokens rows = sequence_rows(layout, map, dead, sequence.tokens);
      expected.insert(expected.end(), rows.begin(), rows.end());
    }
    ASSERT_EQ(found, expected) << "round " << round;
  }
}

TEST(NgramHasher, NeedsTheWindowWhereAnotherInstanceDidThePrompt) {
  // The negative control of the test above: without a window exactly the first N - 1 tokens differ.
  std::mt19937 random(43);
  const HashLayout layout(released_config());
  const NgramHasher hasher(layout, TokenMap::identity(99092), kImageTokenId);
  constexpr std::size_t kPrompt = 12;
  Tokens tokens = random_tokens(random, 20, 99092);
  tokens[kPrompt - 3] = kImageTokenId;
  const Tokens whole = sequence_rows(layout, identity_ids(99092), std::nullopt, [&] {
    Tokens same = tokens;
    same.erase(same.begin(), same.begin() + kPrompt - 2);
    return same;
  }());
  const std::span decoded(tokens.data() + kPrompt, tokens.size() - kPrompt);
  Batch with(3);
  with.add(decoded, kPrompt, Tokens{tokens[kPrompt - 1], tokens[kPrompt - 2], tokens[kPrompt - 3]});
  Batch without(3);
  without.add(decoded, kPrompt, {});
  const Tokens found = hasher(with.view());
  // What lies behind the dead token is as if the sequence began after it.
  EXPECT_TRUE(std::ranges::equal(found, std::span(whole).subspan(2 * 48)));
  const Tokens blind = hasher(without.view());
  for (std::size_t token = 0; token < decoded.size(); ++token) {
    const bool is_known = token >= 3;
    EXPECT_EQ(rows_of(found, token, 0) == rows_of(blind, token, 0), is_known) << token;
    EXPECT_EQ(rows_of(found, token, 1) == rows_of(blind, token, 1), is_known) << token;
  }
}

TEST(NgramHasher, UnknownWindowEntryDoesNotHideOlderTokens) {
  const NgramHasher hasher(HashLayout(small_config()), TokenMap::identity(50));
  const auto rows = [&](std::int64_t position, const Tokens& window) {
    Batch batch(2);
    batch.add(Tokens{9}, position, window);
    return hasher(batch.view());
  };
  EXPECT_EQ(rows(5, {-1, 8}), rows(5, {1, 8}));  // 1 is the pad id
  EXPECT_NE(rows(5, {-1, 8}), rows(5, {-1, -1}));
  // Before the start of the sequence a window entry counts for nothing.
  EXPECT_EQ(rows(1, {3, 8}), rows(1, {3, -1}));
  EXPECT_EQ(rows(0, {3, 8}), rows(0, {-1, -1}));
}

TEST(NgramHasher, HashesPaddingAsTokensOfTheLastRequest) {
  const NgramHasher hasher(HashLayout(small_config()), TokenMap::identity(50));
  Batch batch(2);
  batch.add(Tokens{3, 4, 5}, 7, Tokens{2, 1});
  batch.add(Tokens{6, 7, 8, 9}, 4, Tokens{30, 31});
  const Tokens real = hasher(batch.view());
  // The same tokens with the last two outside every request.
  batch.query_start.back() = 5;
  EXPECT_EQ(hasher(batch.view()), real);
  // Repeated boundaries: padding belongs to the last, empty request, and real rows stay.
  batch.query_start.insert(batch.query_start.end(), {5, 5, 5});
  batch.lookback.resize(2 * (batch.query_start.size() - 1), -1);
  batch.positions[5] = -9;
  batch.positions[6] = -8;
  const Tokens padded = hasher(batch.view());
  EXPECT_TRUE(std::equal(real.begin(), real.begin() + 5 * 12, padded.begin()));
  for (std::size_t i = 0; i < padded.size(); ++i) {
    const std::size_t layer = i / 4 % 3;
    EXPECT_GE(padded[i], 0);
    EXPECT_LT(padded[i], hasher.layout().row_counts[layer]);
  }
}

TEST(NgramHasher, PaddingMayCarryAnyPosition) {
  const NgramHasher hasher(HashLayout(small_config()), TokenMap::identity(50));
  for (const std::int64_t position :
       {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(),
        std::int64_t{-1}, std::int64_t{0}}) {
    Batch batch(2);
    batch.add(Tokens{3, 4, 5}, 0, {});
    batch.query_start = {0, 1, 1};
    batch.lookback.resize(4, -1);
    batch.positions = {0, position, position};
    EXPECT_EQ(hasher(batch.view()).size(), 36U);
  }
}

TEST(NgramHasher, AcceptsNoTokens) {
  const NgramHasher hasher(HashLayout(small_config()), TokenMap::identity(50));
  Batch batch(2);
  EXPECT_TRUE(hasher(batch.view()).empty());
  EXPECT_TRUE(hasher(TokenBatch{}).empty());
  batch.add({}, 0, {});
  batch.add({}, 5, Tokens{1, 2});
  EXPECT_TRUE(hasher(batch.view()).empty());
}

TEST(NgramHasher, GivesTheSameRowsOnAnyNumberOfThreads) {
  std::mt19937 random(44);
  const NgramHasher hasher(HashLayout(small_config()), TokenMap::identity(50));
  Batch batch(2);
  while (batch.token_ids.size() < 5000) {
    batch.add(random_tokens(random, random() % 700, 50), 3, random_tokens(random, 2, 50));
  }
  const Tokens several = hasher(batch.view());
  const int threads = parallel_threads();
  set_parallel_threads(1);
  EXPECT_EQ(hasher(batch.view()), several);
  set_parallel_threads(threads);
}

TEST(NgramHasher, RefusesATokenOutsideTheMapAndWritesNothing) {
  const HashLayout layout(small_config());
  const auto expect_refused = [](const NgramHasher& hasher, const Batch& batch,
                                 const char* message) {
    Tokens out(batch.token_ids.size() * 12, -5);
    EXPECT_THAT([&] { hasher.hash(batch.view(), out); }, ThrowsMessage<Error>(HasSubstr(message)));
    EXPECT_THAT(out, testing::Each(-5));
  };
  const NgramHasher hasher(layout, TokenMap::identity(50));
  Batch token(2);
  token.add(Tokens{1, 2, 50}, 0, {});
  expect_refused(hasher, token, "token_ids[2] is 50, needed: 0 <= id < 50");
  token.token_ids[2] = -1;
  expect_refused(hasher, token, "token_ids[2] is -1, needed: 0 <= id < 50");
  Batch window(2);
  window.add(Tokens{1}, 4, Tokens{3, 77});
  expect_refused(hasher, window, "lookback[1] is 77, needed: 0 <= id < 50, or -1 for unknown");
  window.lookback[1] = -2;
  expect_refused(hasher, window, "lookback[1] is -2");
  const NgramHasher with_dead(layout, TokenMap::identity(50), 77);
  window.lookback[1] = 77;
  EXPECT_NO_THROW(with_dead(window.view()));
  window.lookback[1] = 78;
  expect_refused(with_dead, window, "or the dead token 77");
}

TEST(NgramHasher, RefusesShapesThatDoNotFit) {
  using Change = void (*)(Batch&);
  const NgramHasher hasher(HashLayout(small_config()), TokenMap::identity(50));
  const std::vector<std::pair<Change, const char*>> cases{
      {[](Batch& b) { b.positions.pop_back(); }, "found 4 positions, needed: 5"},
      {[](Batch& b) { b.lookback.pop_back(); }, "lookback has 3 entries, needed: 4"},
      {[](Batch& b) { b.lookback.clear(); }, "lookback has 0 entries, needed: 4"},
      {[](Batch& b) { b.query_start[0] = 1; }, "query_start[0] is 1, needed: 0 to 0"},
      {[](Batch& b) { b.query_start[1] = -1; }, "query_start[1] is -1, needed: 0 to 5"},
      {[](Batch& b) { b.query_start[2] = 2; }, "query_start[2] is 2, needed: 3 to 5"},
      {[](Batch& b) { b.query_start[2] = 6; }, "query_start[2] is 6, needed: 3 to 5"},
      {[](Batch& b) {
         b.query_start = {0};
         b.lookback.clear();
       },
       "5 tokens and no request"},
      {[](Batch& b) { b.positions[1] = 9; }, "positions[1] is 9 after 0, needed: consecutive"},
      {[](Batch& b) { b.positions[3] = -1; }, "positions[3] is -1, needed: >= 0"}};
  for (const auto& [change, message] : cases) {
    Batch batch(2);
    batch.add(Tokens{1, 2, 3}, 0, {});
    batch.add(Tokens{4, 5}, 8, Tokens{6, 7});
    change(batch);
    EXPECT_THAT([&] { hasher(batch.view()); }, ThrowsMessage<Error>(HasSubstr(message)));
  }
  Batch batch(2);
  batch.add(Tokens{1, 2, 3}, 0, {});
  Tokens out(35);
  EXPECT_THAT([&] { hasher.hash(batch.view(), out); },
              ThrowsMessage<Error>(HasSubstr("out has 35 entries, needed: 3 tokens times 12")));
}

TEST(NgramHasher, RefusesAMapThatDoesNotFitTheLayout) {
  const HashLayout layout(small_config());
  EXPECT_THAT([&] { NgramHasher(layout, TokenMap::identity(51)); },
              ThrowsMessage<Error>(HasSubstr("51 compressed ids, needed: at most")));
  EXPECT_NO_THROW(NgramHasher(layout, TokenMap::identity(49)));
  EXPECT_THAT([&] { NgramHasher(layout, TokenMap::identity(1)); },
              ThrowsMessage<Error>(HasSubstr("pad_token_id is 1, needed: a token of the map")));
  EXPECT_THROW(NgramHasher(layout, TokenMap::identity(50), -1), Error);
}

}  // namespace
}  // namespace penstock
