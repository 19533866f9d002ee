#include "cuda/matmul_cuda.hpp"

#include <cublasLt.h>
#include <fmt/format.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/dynamic_library.hpp"
#include "penstock/core/error.hpp"

namespace penstock::cuda {
namespace {

/// The part of cuBLASLt that is used.
struct CublasLt {
  decltype(&::cublasLtCreate) create = nullptr;
  decltype(&::cublasLtDestroy) destroy = nullptr;
  decltype(&::cublasLtMatmul) matmul = nullptr;
  decltype(&::cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&::cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&::cublasLtMatrixLayoutInit_internal) layout_init = nullptr;
  decltype(&::cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&::cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&::cublasLtMatmulAlgoCheck) algo_check = nullptr;
  decltype(&::cublasLtGetStatusString) status_string = nullptr;
};

CublasLt open_cublas_lt() {
  constexpr std::array<const char*, 3> kNames{"libcublasLt.so.13", "libcublasLt.so.12",
                                              "libcublasLt.so"};
  const DynamicLibrary library = DynamicLibrary::open(kNames);
  CublasLt lt;
  const auto find = [&library](const char* name, auto& function) {
    function = library.find<std::remove_reference_t<decltype(function)>>(name);
  };
  find("cublasLtCreate", lt.create);
  find("cublasLtDestroy", lt.destroy);
  find("cublasLtMatmul", lt.matmul);
  find("cublasLtMatmulDescCreate", lt.desc_create);
  find("cublasLtMatmulDescDestroy", lt.desc_destroy);
  find("cublasLtMatmulDescSetAttribute", lt.desc_set);
  find("cublasLtMatrixLayoutInit_internal", lt.layout_init);
  find("cublasLtMatmulPreferenceCreate", lt.preference_create);
  find("cublasLtMatmulPreferenceDestroy", lt.preference_destroy);
  find("cublasLtMatmulPreferenceSetAttribute", lt.preference_set);
  find("cublasLtMatmulAlgoGetHeuristic", lt.heuristic);
  find("cublasLtMatmulAlgoCheck", lt.algo_check);
  find("cublasLtGetStatusString", lt.status_string);
  return lt;
}

const CublasLt& cublas_lt() {
  static const CublasLt lt = open_cublas_lt();
  return lt;
}

void check_lt(cublasStatus_t status, const char* call,
              CodeLocation location = CodeLocation::current()) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(
      ErrorCode::System,
      fmt::format("{}: {} ({})", call, cublas_lt().status_string(status), static_cast<int>(status)),
      location);
}

/// The three layouts of a product. cuBLASLt counts by columns, so that a row-major [r, c] array is
/// a column-major c x r matrix, and out = x w^T becomes out^T = w x^T.
struct Layouts {
  cublasLtMatrixLayoutOpaque_t w;
  cublasLtMatrixLayoutOpaque_t x;
  cublasLtMatrixLayoutOpaque_t out;
};

void init_layout(cublasLtMatrixLayoutOpaque_t& layout, cudaDataType_t type, std::int64_t rows,
                 std::int64_t columns, std::int64_t stride) {
  check_lt(
      cublas_lt().layout_init(&layout, sizeof(layout), type, static_cast<std::uint64_t>(columns),
                              static_cast<std::uint64_t>(rows), stride),
      "cublasLtMatrixLayoutInit");
}

Layouts make_layouts(const MatmulSizes& sizes, cudaDataType_t out_type) {
  Layouts layouts{};
  init_layout(layouts.w, CUDA_R_16BF, sizes.n, sizes.k, sizes.w_stride);
  init_layout(layouts.x, CUDA_R_16BF, sizes.m, sizes.k, sizes.x_stride);
  init_layout(layouts.out, out_type, sizes.m, sizes.n, sizes.out_stride);
  return layouts;
}

/// `sizes` with its strides resolved.
MatmulSizes resolved(const MatmulSizes& sizes) {
  MatmulSizes result = sizes;
  if (result.x_stride == 0) result.x_stride = sizes.k;
  if (result.w_stride == 0) result.w_stride = sizes.k;
  if (result.out_stride == 0) result.out_stride = sizes.n;
  expects(sizes.m >= 0 && sizes.n >= 0 && sizes.k >= 1,
          fmt::format("Matmul: sizes {} x {} x {}, needed m, n >= 0 and k >= 1", sizes.m, sizes.n,
                      sizes.k));
  expects(
      result.x_stride >= sizes.k && result.w_stride >= sizes.k && result.out_stride >= sizes.n,
      fmt::format("Matmul: strides {}, {}, {} are below the rows' lengths {}, {}, {}",
                  result.x_stride, result.w_stride, result.out_stride, sizes.k, sizes.k, sizes.n));
  return result;
}

/// The product that stands for `sizes` when an algorithm is chosen.
MatmulSizes tuned(const MatmulSizes& sizes) {
  if (sizes.tuned_m == 0 && sizes.tuned_n == 0) return sizes;
  MatmulSizes result;
  result.m = sizes.tuned_m != 0 ? sizes.tuned_m : sizes.m;
  result.n = sizes.tuned_n != 0 ? sizes.tuned_n : sizes.n;
  result.k = sizes.k;
  return resolved(result);
}

}  // namespace

struct Matmul::State {
  struct Choice {
    MatmulSizes sizes;
    cudaDataType_t out_type;
    cublasLtMatmulAlgo_t algorithm;
  };

  explicit State(Device where) : device(where) {
    const DeviceGuard guard(device);
    check_lt(cublas_lt().create(&handle), "cublasLtCreate");
    try {
      make_descriptions();
    } catch (...) {
      destroy();
      throw;
    }
  }
  ~State() { destroy(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void make_descriptions() {
    const CublasLt& lt = cublas_lt();
    check_lt(lt.desc_create(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F),
             "cublasLtMatmulDescCreate");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_lt(lt.desc_set(description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
             "cublasLtMatmulDescSetAttribute");
    check_lt(lt.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    // One block owns an output tile and adds along k alone: bits do not depend on the grid.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
    // Shards begin in the middle of arrays: 16 bytes is what is promised.
    constexpr std::uint32_t kAlignment = 16;
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kAlignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kAlignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignment);
  }

  template <typename Value>
  void prefer(cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
    check_lt(cublas_lt().preference_set(preference, attribute, &value, sizeof(value)),
             "cublasLtMatmulPreferenceSetAttribute");
  }

  void destroy() noexcept {
    const CublasLt& lt = cublas_lt();
    if (preference != nullptr) static_cast<void>(lt.preference_destroy(preference));
    if (description != nullptr) static_cast<void>(lt.desc_destroy(description));
    if (handle != nullptr) static_cast<void>(lt.destroy(handle));
  }

  /// The algorithm that cuBLASLt thinks fastest for a product; nothing if it has none.
  std::optional<cublasLtMatmulAlgo_t> ask(const MatmulSizes& sizes, cudaDataType_t out_type) {
    Layouts layouts = make_layouts(sizes, out_type);
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status =
        cublas_lt().heuristic(handle, description, &layouts.w, &layouts.x, &layouts.out,
                              &layouts.out, preference, 1, &result, &found);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0) return std::nullopt;
    return result.algo;
  }

  /// Whether an algorithm can compute a product within the workspace.
  bool fits(const cublasLtMatmulAlgo_t& algorithm, const MatmulSizes& sizes,
            cudaDataType_t out_type) {
    Layouts layouts = make_layouts(sizes, out_type);
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status =
        cublas_lt().algo_check(handle, description, &layouts.w, &layouts.x, &layouts.out,
                               &layouts.out, &algorithm, &result);
    return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kWorkspaceBytes;
  }

  const Choice& choose(const MatmulSizes& sizes, cudaDataType_t out_type) {
    for (const auto& choice : choices) {
      if (choice->sizes == sizes && choice->out_type == out_type) return *choice;
    }
    std::optional<cublasLtMatmulAlgo_t> algorithm = ask(tuned(sizes), out_type);
    // An algorithm for dense rows may not take the strides of a shard; then speed goes first.
    if (!algorithm || !fits(*algorithm, sizes, out_type)) algorithm = ask(sizes, out_type);
    if (!algorithm) {
      throw Error(
          ErrorCode::Unsupported,
          fmt::format("Matmul: cuBLASLt has no algorithm for {} x {} x {}, strides {}, {}, {}",
                      sizes.m, sizes.n, sizes.k, sizes.x_stride, sizes.w_stride, sizes.out_stride));
    }
    choices.push_back(std::make_unique<Choice>(Choice{sizes, out_type, *algorithm}));
    return *choices.back();
  }

  void run(const MatmulSizes& given, const BF16* x, const BF16* w, void* out,
           cudaDataType_t out_type, std::span<std::byte> workspace, StreamRef stream) {
    const MatmulSizes sizes = resolved(given);
    expects(workspace.size() >= kWorkspaceBytes,
            fmt::format("Matmul: the workspace has {} bytes, {} are needed", workspace.size(),
                        kWorkspaceBytes));
    if (sizes.m == 0 || sizes.n == 0) return;
    const DeviceGuard guard(device);
    const Choice& choice = choose(sizes, out_type);
    Layouts layouts = make_layouts(sizes, out_type);
    constexpr float kOne = 1.0F;
    constexpr float kZero = 0.0F;
    check_lt(cublas_lt().matmul(handle, description, &kOne, w, &layouts.w, x, &layouts.x, &kZero,
                                out, &layouts.out, out, &layouts.out, &choice.algorithm,
                                workspace.data(), workspace.size(), stream.get()),
             "cublasLtMatmul");
  }

  Device device;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  std::vector<std::unique_ptr<Choice>> choices;  // pointers: a choice outlives later ones
};

Matmul::Matmul(Device device) : state_(std::make_unique<State>(device)) {}
Matmul::~Matmul() = default;
Matmul::Matmul(Matmul&&) noexcept = default;
Matmul& Matmul::operator=(Matmul&&) noexcept = default;

void Matmul::prepare(const MatmulSizes& sizes) {
  const MatmulSizes complete = resolved(sizes);
  if (complete.m == 0 || complete.n == 0) return;
  const DeviceGuard guard(state_->device);
  state_->choose(complete, CUDA_R_16BF);
}

void Matmul::run(const MatmulSizes& sizes, const BF16* x, const BF16* w, BF16* out,
                 std::span<std::byte> workspace, StreamRef stream) {
  state_->run(sizes, x, w, out, CUDA_R_16BF, workspace, stream);
}

void Matmul::run(const MatmulSizes& sizes, const BF16* x, const BF16* w, float* out,
                 std::span<std::byte> workspace, StreamRef stream) {
  state_->run(sizes, x, w, out, CUDA_R_32F, workspace, stream);
}

bool has_matmul() {
  try {
    static_cast<void>(cublas_lt());
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace penstock::cuda
