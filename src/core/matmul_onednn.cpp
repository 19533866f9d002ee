#include <dnnl.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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

void execute(const dnnl::matmul::primitive_desc& planned, const Descriptions& d, const void* x,
             const void* w, void* out) {
  // oneDNN takes mutable pointers for operands that it only reads.
  const auto wrap = [](const memory::desc& desc, const void* data) {
    return memory(desc, engine(), const_cast<void*>(data));
  };
  omp_set_num_threads(parallel_threads());  // counts for the calling thread alone
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

/// oneDNN's word for the kernel that it would use; of a typical shape, so that it is one answer.
const std::string& implementation() {
  static const std::string name = [] {
    const auto planned = plan(describe({64, 256, 256, 256, 256, 256}, kBf16, kBf16));
    return planned ? std::string(planned->impl_info_str()) : std::string("float");
  }();
  return name;
}

}  // namespace

bool matmul_onednn_keeps_bits() {
  // Measured with 2.6.3: the brgemm kernels keep an element's bits over any cut of m and n; the
  // gemm:jit ones take another path for m = 1 and for odd widths.
  return implementation().starts_with("brg:");
}

std::string matmul_onednn_name() {
  return "onednn:" + implementation();
}

void matmul_onednn(const MatmulTask& task) {
  if (task.shape.n == 1) return multiply_one_column(task);
  const auto d = describe(task.shape, kBf16, task.out_bf16 != nullptr ? kBf16 : kFloat);
  const auto planned = plan(d);
  if (!planned) return multiply_widened(task);
  void* out = task.out_bf16 != nullptr ? static_cast<void*>(task.out_bf16)
                                       : static_cast<void*>(task.out_float);
  execute(*planned, d, task.x, task.w, out);
}

}  // namespace penstock::detail
