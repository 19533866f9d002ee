#include <dnnl.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/keyed_numbers.hpp"
#include "core/matmul_impl.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"

// Of OpenMP, whose threads oneDNN uses; its header is not everywhere a compiler is.
extern "C" void omp_set_num_threads(int threads);

namespace penstock::detail {
namespace {

using dnnl::memory;

constexpr auto kBf16 = memory::data_type::bf16;
constexpr auto kFloat = memory::data_type::f32;

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

/// x, w as oneDNN wants it (k by n, the first index dense), out.
struct Descriptions {
  memory::desc x;
  memory::desc w;
  memory::desc out;
};

Descriptions describe(const MatmulShape& shape, memory::data_type in, memory::data_type out) {
  return {.x = {{shape.m, shape.k}, in, {shape.x_stride, 1}},
          .w = {{shape.k, shape.n}, in, {1, shape.w_stride}},
          .out = {{shape.m, shape.n}, out, {shape.out_stride, 1}}};
}

/// Nothing if oneDNN has no such product on this processor.
std::optional<dnnl::matmul::primitive_desc> plan(const Descriptions& d) {
  try {
#if DNNL_VERSION_MAJOR >= 3
    return dnnl::matmul::primitive_desc(engine(), d.x, d.w, d.out);
#else
    return dnnl::matmul::primitive_desc(dnnl::matmul::desc(d.x, d.w, d.out), engine());
#endif
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) return std::nullopt;
    throw Error(ErrorCode::System, std::string("matmul_bf16: oneDNN: ") + error.what());
  }
}

/// oneDNN's word for the kernel that it would use; of a typical shape, so that it is one answer.
const std::string& implementation() {
  static const std::string name = [] {
    const auto planned = plan(describe({64, 256, 256, 256, 256, 256}, kBf16, kBf16));
    return planned ? std::string(planned->impl_info_str()) : std::string("float");
  }();
  return name;
}

bool is_brgemm(std::string_view name) {
  return name.starts_with("brg:");
}

/// With AMX, oneDNN cuts long sums over its threads when there are 16 or more, as it sees fit for m
/// and n: an element's bits would depend on both.
int most_threads() {
  static const bool has_amx = implementation().find("amx") != std::string::npos;
  return has_amx ? 15 : std::numeric_limits<int>::max();
}

void execute(const dnnl::matmul::primitive_desc& planned, const Descriptions& d, const void* x,
             const void* w, void* out) {
  // oneDNN takes mutable pointers for operands that it only reads.
  const auto wrap = [](const memory::desc& desc, const void* data) {
    return memory(desc, engine(), const_cast<void*>(data));
  };
  omp_set_num_threads(std::min(parallel_threads(), most_threads()));  // of the calling thread alone
  try {
    dnnl::stream stream(engine());
    dnnl::matmul(planned).execute(stream, {{DNNL_ARG_SRC, wrap(d.x, x)},
                                           {DNNL_ARG_WEIGHTS, wrap(d.w, w)},
                                           {DNNL_ARG_DST, wrap(d.out, out)}});
    stream.wait();
  } catch (const dnnl::error& error) {
    throw Error(ErrorCode::System, std::string("matmul_bf16: oneDNN: ") + error.what());
  }
}

std::vector<float> widened(const BF16* source, std::int64_t rows, std::int64_t columns,
                           std::int64_t stride) {
  std::vector<float> wide(static_cast<std::size_t>(rows * columns));
  parallel_for(rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* target = wide.data() + row * columns;
      for (std::int64_t i = 0; i < columns; ++i) target[i] = to_float(source[row * stride + i]);
    }
  });
  return wide;
}

/// For processors without bf16 products: float operands, float sums, rounded by us.
void multiply_widened(const MatmulTask& task) {
  const MatmulShape& s = task.shape;
  const auto x = widened(task.x, s.m, s.k, s.x_stride);
  const auto w = widened(task.w, s.n, s.k, s.w_stride);
  std::vector<float> sums(static_cast<std::size_t>(s.m * s.n));
  const auto d = describe({s.m, s.n, s.k, s.k, s.k, s.n}, kFloat, kFloat);
  const auto planned = plan(d);
  if (!planned) throw Error(ErrorCode::Unsupported, "matmul_bf16: oneDNN has no float product");
  execute(*planned, d, x.data(), w.data(), sums.data());
  for (std::int64_t row = 0; row < s.m; ++row) {
    for (std::int64_t i = 0; i < s.n; ++i) {
      const float sum = sums[static_cast<std::size_t>(row * s.n + i)];
      if (task.out_float != nullptr) task.out_float[row * s.out_stride + i] = sum;
      if (task.out_bf16 != nullptr) task.out_bf16[row * s.out_stride + i] = to_bf16(sum);
    }
  }
}

/// One row of w: oneDNN takes another path there, whose sums have other bits. Twice that row keeps
/// it on the path of every wider product.
void multiply_one_column(const MatmulTask& task) {
  const MatmulShape& s = task.shape;
  std::vector<BF16> twice(static_cast<std::size_t>(2 * s.k));
  std::copy_n(task.w, s.k, twice.begin());
  std::copy_n(task.w, s.k, twice.begin() + s.k);
  std::vector<float> sums(static_cast<std::size_t>(2 * s.m));
  matmul_onednn({.shape = {s.m, 2, s.k, s.x_stride, s.k, 2},
                 .x = task.x,
                 .w = twice.data(),
                 .out_float = sums.data()});
  for (std::int64_t row = 0; row < s.m; ++row) {
    const float sum = sums[static_cast<std::size_t>(2 * row)];
    if (task.out_float != nullptr) task.out_float[row * s.out_stride] = sum;
    if (task.out_bf16 != nullptr) task.out_bf16[row * s.out_stride] = to_bf16(sum);
  }
}

bool is_dense(const MatmulShape& s) {
  const bool is_one_row = s.m == 1;
  return (is_one_row || (s.x_stride == s.k && s.out_stride == s.n)) && s.w_stride == s.k;
}

std::vector<BF16> dense_copy(const BF16* source, std::int64_t rows, std::int64_t columns,
                             std::int64_t stride) {
  std::vector<BF16> copy(static_cast<std::size_t>(rows * columns));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(source + row * stride, columns, copy.data() + row * columns);
  }
  return copy;
}

/// The brgemm kernels take dense arrays only; for others oneDNN has a kernel with other bits. Copies
/// keep the bits.
void multiply_dense(const MatmulTask& task) {
  const MatmulShape& s = task.shape;
  std::vector<BF16> x;
  std::vector<BF16> w;
  if (s.x_stride != s.k) x = dense_copy(task.x, s.m, s.k, s.x_stride);
  if (s.w_stride != s.k) w = dense_copy(task.w, s.n, s.k, s.w_stride);
  std::vector<float> sums(static_cast<std::size_t>(s.m * s.n));
  matmul_onednn({.shape = {s.m, s.n, s.k, s.k, s.k, s.n},
                 .x = x.empty() ? task.x : x.data(),
                 .w = w.empty() ? task.w : w.data(),
                 .out_float = sums.data()});
  for (std::int64_t row = 0; row < s.m; ++row) {
    const auto from = sums.begin() + row * s.n;
    if (task.out_float != nullptr) std::copy_n(from, s.n, task.out_float + row * s.out_stride);
    if (task.out_bf16 == nullptr) continue;
    std::transform(from, from + s.n, task.out_bf16 + row * s.out_stride,
                   [](float sum) { return to_bf16(sum); });
  }
}

/// Numbers around 0 that are the same in every process.
std::vector<BF16> sample_values(std::int64_t count, std::uint64_t seed) {
  std::vector<BF16> made(static_cast<std::size_t>(count));
  fill_even_numbers(made, seed);
  return made;
}

/// Whether a few parts of one product have the bits of the whole on this processor.
bool do_parts_keep_bits() {
  constexpr std::int64_t kRows = 33;
  constexpr std::int64_t kColumns = 72;
  constexpr std::int64_t kSum = 2 * 1024 + 36;  // oneDNN thinks of cutting sums from 1,024 on
  struct Part {
    std::int64_t row;
    std::int64_t rows;
    std::int64_t column;
    std::int64_t columns;
  };
  constexpr Part kWhole{0, kRows, 0, kColumns};
  constexpr std::array kParts{Part{0, 1, 0, kColumns}, Part{5, 2, 3, 2}, Part{0, kRows, 0, 35},
                              Part{1, 32, 35, 37}};
  const auto x = sample_values(kRows * kSum, 1);
  const auto w = sample_values(kColumns * kSum, 2);
  const auto multiply = [&](const Part& part) {
    std::vector<float> out(static_cast<std::size_t>(part.rows * part.columns));
    matmul_onednn({.shape = {part.rows, part.columns, kSum, kSum, kSum, part.columns},
                   .x = x.data() + part.row * kSum,
                   .w = w.data() + part.column * kSum,
                   .out_float = out.data()});
    return out;
  };
  const auto whole = multiply(kWhole);
  return std::ranges::all_of(kParts, [&](const Part& part) {
    const auto found = multiply(part);
    for (std::int64_t row = 0; row < part.rows; ++row) {
      const auto* expected = whole.data() + (part.row + row) * kColumns + part.column;
      const auto* mine = found.data() + row * part.columns;
      if (!std::equal(mine, mine + part.columns, expected)) return false;
    }
    return true;
  });
}

}  // namespace

bool matmul_onednn_keeps_bits() {
  // Measured with 2.6.3: the brgemm kernels keep an element's bits over any cut of m and n; the
  // gemm:jit ones take another path for m = 1 and for odd widths. Other versions and processors are
  // asked.
  static const bool keeps = is_brgemm(implementation()) && do_parts_keep_bits();
  return keeps;
}

std::string matmul_onednn_name() {
  return "onednn:" + implementation();
}

void matmul_onednn(const MatmulTask& task) {
  if (task.shape.n == 1) return multiply_one_column(task);
  const auto d = describe(task.shape, kBf16, task.out_bf16 != nullptr ? kBf16 : kFloat);
  const auto planned = plan(d);
  if (!planned) return multiply_widened(task);
  const bool has_other_bits = is_brgemm(implementation()) && !is_brgemm(planned->impl_info_str());
  if (has_other_bits && !is_dense(task.shape)) return multiply_dense(task);
  void* out = task.out_bf16 != nullptr ? static_cast<void*>(task.out_bf16)
                                       : static_cast<void*>(task.out_float);
  execute(*planned, d, task.x, task.w, out);
}

}  // namespace penstock::detail
