#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "penstock/checkpoint/model_dir.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"
#include "penstock/table/row_source.hpp"
#include "penstock/table/table.hpp"
#include "support/process_state.hpp"
#include "support/safetensors_oracle.hpp"
#include "support/sanitizers.hpp"
#include "support/temp_dir.hpp"
#include "support/vector_rows.hpp"

namespace penstock {
namespace {

using test::PlainTensor;
using testing::HasSubstr;

constexpr int kLayer = 14;

std::string text_of(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

/// A model directory with one Engram layer whose table is `table`.
class CheckpointRows : public testing::Test {
 protected:
  CheckpointRows() : table_(test::make_whole_table(64, {7, 11})) {
    const std::int64_t rows = test::num_rows(table_);
    tensors_["layers.14.engram.embed.weight"] = {"F8_E4M3", {rows, 64}, text_of(table_.values)};
    tensors_["layers.14.engram.embed.scale"] = {"F8_E8M0", {rows, 2}, text_of(table_.scales)};
    write_config(rows);
  }

  void write_config(std::int64_t rows) const {
    dir_.write("config.json",
               fmt::format(R"({{"engram_layer_ids": [14], "engram_num_embeddings": [{}],
                               "engram_max_ngram_size": 2, "engram_n_heads": 2,
                               "engram_head_dim": 64, "engram_vocab_size": 7,
                               "engram_pad_token_id": 2, "engram_compressed_vocab_size": 100}})",
                           rows));
  }

  ModelDir model() const {
    dir_.write("model.safetensors", test::write_plain_safetensors(tensors_));
    return ModelDir::open(dir_.path());
  }

  std::string corrupt_file_error() const {
    try {
      open_checkpoint_rows(model(), kLayer);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::CorruptFile) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return {};
  }

  test::TempDir dir_;
  oracle::WholeTable table_;
  std::map<std::string, PlainTensor> tensors_;
};

void expect_records(const RowSource& rows, const oracle::WholeTable& table) {
  const test::VectorRows expected(table);
  for (std::int64_t first = 0; first < rows.num_rows(); ++first) {
    const auto bytes = static_cast<std::size_t>((rows.num_rows() - first) * row_record_bytes(64));
    std::vector<std::byte> found(bytes, std::byte{0xA5});
    std::vector<std::byte> wanted(bytes);
    rows.read(first, found);
    expected.read(first, wanted);
    EXPECT_EQ(found, wanted) << first;
  }
}

TEST_F(CheckpointRows, AreTheRecordsOfTheTwoTensors) {
  const auto rows = open_checkpoint_rows(model(), kLayer);
  EXPECT_EQ(rows->num_rows(), 18);
  EXPECT_EQ(rows->head_dim(), 64);
  expect_records(*rows, table_);
}

TEST_F(CheckpointRows, TakeScalesThatAreTaggedAsPlainBytesAsTheyAre) {
  tensors_["layers.14.engram.embed.scale"].dtype = "U8";
  tensors_["layers.14.engram.embed.weight"].dtype = "U8";
  expect_records(*open_checkpoint_rows(model(), kLayer), table_);
}

TEST_F(CheckpointRows, UnderstandMappedTensorNames) {
  std::map<std::string, PlainTensor> renamed;
  renamed["model.layers.14.engram.embed_tokens.weight"] = tensors_["layers.14.engram.embed.weight"];
  renamed["model.layers.14.engram.embed_tokens.weight_scale_inv"] =
      tensors_["layers.14.engram.embed.scale"];
  tensors_ = renamed;
  expect_records(*open_checkpoint_rows(model(), kLayer), table_);
}

TEST_F(CheckpointRows, OutliveTheModelDirThatTheyCameFrom) {
  const auto rows = [this] {
    const auto opened = model();
    return open_checkpoint_rows(opened, kLayer);
  }();
  expect_records(*rows, table_);
}

TEST_F(CheckpointRows, FillATableOfEveryPlacement) {
  const auto rows = open_checkpoint_rows(model(), kLayer);
  for (const Placement placement : {Placement::Host, Placement::HostShared, Placement::File}) {
    const auto opened = Table::open(test::spec_of(table_, kLayer), rows, {.placement = placement});
    for (std::int64_t row = 0; row < 18; ++row) {
      EXPECT_TRUE(test::has_row(opened.view(), table_, row));
    }
  }
}

// The file's pages must not stay in this process beside the table's.
TEST_F(CheckpointRows, LoadingKeepsNoSecondCopyInMemory) {
  if (!test::kSanitizers.empty()) {
    GTEST_SKIP() << "weighs memory, and a sanitizer's shadow weighs too";
  }
  constexpr std::int64_t kRows = 400000;
  constexpr std::int64_t kTableBytes = kRows * row_record_bytes(64);  // 29 MB
  write_config(kRows);
  tensors_ = {};
  tensors_["layers.14.engram.embed.weight"] = {"U8", {kRows, 64}, std::string(kRows * 64, 'w')};
  tensors_["layers.14.engram.embed.scale"] = {"U8", {kRows, 2}, std::string(kRows * 2, 's')};
  const auto rows = open_checkpoint_rows(model(), kLayer);
  tensors_ = {};
  const TableSpec spec{
      .layer_id = kLayer, .head_sizes = {kRows}, .num_rows = kRows, .head_dim = 64};
  set_parallel_threads(1);
  test::reset_peak_memory();
  const std::int64_t before = test::status_bytes("VmRSS:");
  const auto table = Table::open(spec, rows, {.placement = Placement::Host});
  const std::int64_t peak = test::status_bytes("VmHWM:") - before;
  EXPECT_GT(peak, kTableBytes * 9 / 10);
  EXPECT_LT(peak, kTableBytes + kTableBytes / 4) << "needed: the table and one read of 4 MiB";
}

TEST_F(CheckpointRows, RefuseAnotherShape) {
  tensors_["layers.14.engram.embed.scale"].shape = {2, 18};
  const auto message = corrupt_file_error();
  EXPECT_THAT(message, HasSubstr("model.safetensors"));
  EXPECT_THAT(message, HasSubstr("[2, 18]"));
  EXPECT_THAT(message, HasSubstr("[18, 2]"));
}

TEST_F(CheckpointRows, RefuseAnotherNumberOfRowsThanTheConfigSays) {
  auto& tensor = tensors_["layers.14.engram.embed.weight"];
  tensor.shape = {17, 64};
  tensor.bytes.resize(17 * 64);
  EXPECT_THAT(corrupt_file_error(), HasSubstr("[17, 64]"));
}

TEST_F(CheckpointRows, RefuseAnotherElementType) {
  tensors_["layers.14.engram.embed.weight"].dtype = "F8_E5M2";
  EXPECT_THAT(corrupt_file_error(), HasSubstr("F8_E5M2"));
}

TEST_F(CheckpointRows, AreNotFoundForAnotherLayerOrWithoutTheTensors) {
  const auto code_of = [&](int layer) {
    try {
      open_checkpoint_rows(model(), layer);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::Internal;
  };
  EXPECT_EQ(code_of(1), ErrorCode::NotFound);
  tensors_.erase("layers.14.engram.embed.scale");
  EXPECT_EQ(code_of(kLayer), ErrorCode::NotFound);
}

}  // namespace
}  // namespace penstock
