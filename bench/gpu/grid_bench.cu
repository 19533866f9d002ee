// Measures row reads on GPUs under many grids, for the choice in gather_plan.hpp, and prints JSON
// lines. `penstock bench lookup` compares the chosen ones with other techniques.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda/device_guard.hpp"
#include "cuda/launch.cuh"
#include "cuda/matmul_cuda.hpp"
#include "cuda/unique_handle.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/error.hpp"
#include "penstock/reader/gather_rows.hpp"
#include "penstock/reader/prefetcher.hpp"
#include "penstock/table/table.hpp"
#include "reader/direct/gather_rows_cuda.hpp"
#include "reader/direct/row_order.hpp"

namespace penstock::bench {
namespace {

constexpr int kColumns = 24;
constexpr int kRuns = 20;
constexpr int kIdSets = 24;
constexpr std::int64_t kMaxTokens = 8192;
constexpr double kRowBytes = 264;

// Masks of random words: e4m3 codes that are numbers, and bf16 numbers below 1.
constexpr std::uint64_t kNoNan = 0x7E7E7E7E7E7E7E7EULL;
constexpr std::uint64_t kBelowOne = 0xBF7FBF7FBF7FBF7FULL;

__global__ void fill_kernel(std::uint64_t* words, std::int64_t count, std::uint64_t mask) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    words[i] = (static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15ULL) & mask;
  }
}

__global__ void random_ids_kernel(std::int32_t* ids, std::int64_t count, std::int64_t rows,
                                  std::uint64_t seed) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    std::uint64_t z =
        (static_cast<std::uint64_t>(i) + seed * 0x632BE59BD9B4E019ULL) * 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    z ^= z >> 31;
    ids[i] = static_cast<std::int32_t>(z % static_cast<std::uint64_t>(rows));
  }
}

/// Ids that no run has used before it comes round again.
class IdSets {
 public:
  IdSets(Device device, std::int64_t rows)
      : buffer_(Buffer::allocate(device, sizeof(std::int32_t) * kIdSets * kSet)) {
    const cuda::DeviceGuard guard(device);
    cuda::launch("random_ids_kernel", random_ids_kernel, {1024, 256}, {},
                 buffer_.as<std::int32_t>().data(), std::int64_t{kIdSets} * kSet, rows,
                 std::uint64_t{7});
    PENSTOCK_CUDA_CHECK(cudaDeviceSynchronize());
  }
  const std::int32_t* next() {
    return buffer_.as<std::int32_t>().data() + (turn_++ % kIdSets) * kSet;
  }

 private:
  static constexpr std::int64_t kSet = kMaxTokens * kColumns;
  Buffer buffer_;
  std::int64_t turn_ = 0;
};

struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
};

Spread spread_of(std::vector<float> times) {
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back()};
}

using UniqueTimer = cuda::UniqueHandle<cudaEvent_t, cudaEventDestroy>;
UniqueTimer make_timer() {
  cudaEvent_t event = nullptr;
  PENSTOCK_CUDA_CHECK(cudaEventCreate(&event));
  return UniqueTimer(event);
}

/// Milliseconds on `stream` of what `enqueue` puts there.
Spread measure(cudaStream_t stream, const std::function<void()>& enqueue, int runs = kRuns) {
  const UniqueTimer begin = make_timer();
  const UniqueTimer end = make_timer();
  std::vector<float> times;
  for (int i = -3; i < runs; ++i) {
    PENSTOCK_CUDA_CHECK(cudaEventRecord(begin.get(), stream));
    enqueue();
    PENSTOCK_CUDA_CHECK(cudaEventRecord(end.get(), stream));
    PENSTOCK_CUDA_CHECK(cudaEventSynchronize(end.get()));
    float milliseconds = 0;
    PENSTOCK_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    if (i >= 0) times.push_back(milliseconds);
  }
  return spread_of(times);
}

void report(const std::string& what, const std::string& table, std::int64_t tokens,
            const Spread& spread) {
  const double gigabytes = static_cast<double>(tokens) * kColumns * kRowBytes / 1e6;
  std::printf(
      "{\"what\": \"%s\", \"table\": \"%s\", \"tokens\": %lld, \"ms\": %.5f, \"min\": %.5f, "
      "\"max\": %.5f, \"gbps\": %.1f}\n",
      what.c_str(), table.c_str(), static_cast<long long>(tokens), spread.median, spread.least,
      spread.most, gigabytes / spread.median);
  std::fflush(stdout);
}

TableView record_view(const std::byte* data, std::int64_t rows, bool in_host_memory) {
  TableView view;
  view.values[0] = data;
  view.scales[0] = data + 256;
  view.rows_per_part = view.row_end = view.num_rows = rows;
  view.value_stride = view.scale_stride = 264;
  view.head_dim = 256;
  view.column_end = view.local_columns = kColumns;
  view.in_host_memory = in_host_memory;
  return view;
}

/// One table, its ids, and everything that is read from it.
class GridBench {
 public:
  GridBench(std::string name, TableView view, Device device)
      : name_(std::move(name)),
        view_(view),
        device_(device),
        ids_(device, view.num_rows),
        out_(Buffer::allocate(device, kMaxTokens * kColumns * 512)),
        multiprocessors_(cuda::multiprocessors(device)) {
    cudaStream_t stream = nullptr;
    PENSTOCK_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    stream_ = cuda::UniqueStream(stream);
  }

  void read_planned(std::int64_t tokens, RowFormat format, const detail::GatherPlan& plan,
                    cudaStream_t stream) {
    detail::gather_rows_planned(view_, ids(tokens), format, out_.data(), nullptr, plan,
                                StreamRef(stream));
  }

  /// A full read that goes through the table in order; 0 bits: as ids come.
  void read_in_order(int window_bits, const detail::GatherPlan& plan, cudaStream_t stream) {
    if (window_bits == 0) return read_planned(kMaxTokens, RowFormat::Bf16, plan, stream);
    if (order_.bytes() == 0) {
      order_ = Buffer::zeros(device_, detail::order_bytes(kMaxTokens * kColumns));
    }
    const RowIds mine = ids(kMaxTokens);
    const detail::OrderedRow* order =
        detail::order_rows(view_, mine, order_.as<std::byte>(), StreamRef(stream), window_bits);
    detail::gather_rows_planned(view_, mine, RowFormat::Bf16, out_.data(), nullptr, plan,
                                StreamRef(stream), order);
  }

  /// Sorting and reading, for sizes of windows and grids.
  void sweep_orders() {
    for (const int bits : {0, 4, 8, 12, 16}) {
      for (const detail::GatherPlan plan : std::vector<detail::GatherPlan>{{1, 1024, 4},
                                                                           {2, 512, 4},
                                                                           {2, 1024, 1},
                                                                           {2, 1024, 2},
                                                                           {2, 1024, 4},
                                                                           {4, 1024, 1},
                                                                           {4, 1024, 4}}) {
        report("order of " + std::to_string(bits) + " bits, " + std::to_string(plan.blocks) + "x" +
                   std::to_string(plan.threads) + " rows " + std::to_string(plan.rows_per_warp),
               name_, kMaxTokens, measure(stream(), [&] { read_in_order(bits, plan, stream()); }));
      }
    }
  }

  /// `begin` is called before each plan.
  void sweep(
      const std::vector<detail::GatherPlan>& plans, RowFormat format,
      const std::function<void()>& begin = [] {}) {
    for (const detail::GatherPlan& plan : plans) {
      begin();
      const std::string what = "sweep " +
                               std::string(format == RowFormat::Bf16 ? "bf16 " : "packed ") +
                               std::to_string(plan.blocks) + "x" + std::to_string(plan.threads) +
                               " rows " + std::to_string(plan.rows_per_warp);
      report(what, name_, kMaxTokens,
             measure(stream(), [&] { read_planned(kMaxTokens, format, plan, stream()); }));
    }
  }

  cudaStream_t stream() const { return stream_.get(); }
  int multiprocessors() const { return multiprocessors_; }

 private:
  RowIds ids(std::int64_t tokens) {
    return {.data = ids_.next(), .tokens = tokens, .columns = kColumns, .token_stride = kColumns};
  }

  std::string name_;
  TableView view_;
  Device device_;
  IdSets ids_;
  Buffer out_;
  Buffer order_;
  int multiprocessors_;
  cuda::UniqueStream stream_;
};

/// The model's own work: 12 products of 8192 x 8192 x 4096 on a stream of the highest priority.
class GemmChain {
 public:
  explicit GemmChain(Device device)
      : matmul_(device),
        x_(Buffer::zeros(device, 2 * kM * kK)),
        w_(Buffer::zeros(device, 2 * kN * kK)),
        out_(Buffer::allocate(device, 2 * kM * kN)),
        workspace_(Buffer::allocate(device, cuda::Matmul::kWorkspaceBytes)) {
    for (const Buffer* buffer : {&x_, &w_}) {
      cuda::launch("fill_kernel", fill_kernel, {1024, 256}, {},
                   reinterpret_cast<std::uint64_t*>(buffer->data()),
                   static_cast<std::int64_t>(buffer->bytes() / 8), kBelowOne);
    }
    PENSTOCK_CUDA_CHECK(cudaDeviceSynchronize());
    int lowest = 0;
    int highest = 0;
    PENSTOCK_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    cudaStream_t stream = nullptr;
    PENSTOCK_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
    stream_ = cuda::UniqueStream(stream);
  }

  void enqueue() {
    for (int i = 0; i < 12; ++i) {
      matmul_.run({.m = kM, .n = kN, .k = kK}, x_.as<BF16>().data(), w_.as<BF16>().data(),
                  out_.as<BF16>().data(), workspace_.as<std::byte>(), StreamRef(stream()));
    }
  }
  cudaStream_t stream() const { return stream_.get(); }

 private:
  static constexpr std::int64_t kM = 8192;
  static constexpr std::int64_t kN = 8192;
  static constexpr std::int64_t kK = 4096;
  cuda::Matmul matmul_;
  Buffer x_;
  Buffer w_;
  Buffer out_;
  Buffer workspace_;
  cuda::UniqueStream stream_;
};

/// What a read hidden behind the model's work costs the model. Every measurement follows a chain of
/// products, so that all find the GPU with the clock that it has under load.
void measure_interference(GridBench& bench, const std::string& name) {
  if (!cuda::has_matmul()) {
    std::printf("{\"skipped\": \"interference\", \"why\": \"no libcublasLt\"}\n");
    return;
  }
  GemmChain chain(Device::cuda(0));
  const cuda::UniqueStream side = cuda::make_background_stream();
  const cuda::UniqueEvent fork = cuda::make_event();
  const UniqueTimer begin = make_timer();
  const UniqueTimer end = make_timer();
  const UniqueTimer read_end = make_timer();
  const auto between = [](const UniqueTimer& from, const UniqueTimer& to) {
    float milliseconds = 0;
    PENSTOCK_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, from.get(), to.get()));
    return milliseconds;
  };
  const auto time = [&](const std::function<void()>& read) {
    chain.enqueue();
    PENSTOCK_CUDA_CHECK(cudaEventRecord(begin.get(), chain.stream()));
    PENSTOCK_CUDA_CHECK(cudaEventRecord(fork.get(), chain.stream()));
    PENSTOCK_CUDA_CHECK(cudaStreamWaitEvent(side.get(), fork.get(), 0));
    read();
    PENSTOCK_CUDA_CHECK(cudaEventRecord(read_end.get(), side.get()));
    chain.enqueue();
    PENSTOCK_CUDA_CHECK(cudaEventRecord(end.get(), chain.stream()));
    PENSTOCK_CUDA_CHECK(cudaDeviceSynchronize());
    return between(begin, end);
  };
  const auto beside = [&](const std::string& what, const std::function<void()>& read) {
    std::vector<float> slowed;
    std::vector<float> reads;
    for (int i = 0; i < kRuns / 2; ++i) {
      const float alone = time([] {});
      slowed.push_back((time(read) / alone - 1) * 100);
      reads.push_back(between(begin, read_end));
    }
    const Spread spread = spread_of(slowed);
    std::printf(
        "{\"what\": \"beside GEMMs: %s\", \"table\": \"%s\", \"slowed_percent\": %.2f, "
        "\"least\": %.2f, \"most\": %.2f, \"read_ms\": %.4f}\n",
        what.c_str(), name.c_str(), spread.median, spread.least, spread.most,
        spread_of(reads).median);
    std::fflush(stdout);
  };
  for (const int bits : {0, detail::kWindowBits}) {
    for (const detail::GatherPlan plan : std::vector<detail::GatherPlan>{{1, 1024, 4},
                                                                         {2, 512, 4},
                                                                         {2, 1024, 2},
                                                                         {2, 1024, 4},
                                                                         {4, 1024, 1},
                                                                         {8, 256, 4},
                                                                         {8, 1024, 1},
                                                                         {66, 256, 1}}) {
      beside("order of " + std::to_string(bits) + " bits, " + std::to_string(plan.blocks) + "x" +
                 std::to_string(plan.threads) + " rows " + std::to_string(plan.rows_per_warp),
             [&] { bench.read_in_order(bits, plan, side.get()); });
    }
  }
}

void bench_device(std::int64_t bytes) {
  const Device device = Device::cuda(0);
  const Buffer memory = Buffer::allocate(device, static_cast<std::size_t>(bytes));
  cuda::launch("fill_kernel", fill_kernel, {1024, 256}, {},
               reinterpret_cast<std::uint64_t*>(memory.data()), bytes / 8, kNoNan);
  PENSTOCK_CUDA_CHECK(cudaDeviceSynchronize());
  GridBench bench("device", record_view(memory.data(), bytes / 264, false), device);
  const int all = bench.multiprocessors();
  std::vector<detail::GatherPlan> plans;
  for (const int rows : {1, 2, 4, 8}) {
    for (const int per : {2, 4, 6, 8}) plans.push_back({all * per, 256, rows});
    plans.push_back({all * 16, 128, rows});
    plans.push_back({all * 2, 1024, rows});
  }
  bench.sweep(plans, RowFormat::Bf16);
  bench.sweep(plans, RowFormat::Packed);
}

Table open_random(std::int64_t bytes, Placement placement, Device device, Communicator* group) {
  const std::int64_t rows = bytes / 264;
  TableSpec spec{.layer_id = 1, .head_sizes = {}, .num_rows = rows, .head_dim = 256};
  for (std::int64_t column = 0; column < kColumns; ++column) {
    spec.head_sizes.push_back((column + 1) * rows / kColumns - column * rows / kColumns);
  }
  return Table::open(spec, make_random_rows(1, 1, rows, 256),
                     {.placement = placement, .device = device, .group = group});
}

void report_table(const Table& table) {
  std::printf(
      "{\"what\": \"open\", \"table\": \"%s\", \"backing\": \"%s\", \"bytes\": %lld, "
      "\"seconds\": %.2f}\n",
      std::string(to_string(table.status().placement)).c_str(), table.status().backing.c_str(),
      static_cast<long long>(table.status().resident_bytes), table.status().load_seconds);
  std::fflush(stdout);
}

void bench_host(std::int64_t bytes, Placement placement) {
  const Device device = Device::cuda(0);
  const Table table = open_random(bytes, placement, device, nullptr);
  report_table(table);
  const std::string name(to_string(placement));
  GridBench bench(name, table.view(), device);
  bench.sweep({{1, 1024, 1},
               {1, 1024, 4},
               {2, 1024, 1},
               {2, 1024, 2},
               {2, 1024, 4},
               {4, 1024, 1},
               {4, 1024, 2},
               {4, 1024, 4},
               {8, 1024, 1},
               {66, 256, 1},
               {1056, 256, 1}},
              RowFormat::Bf16);
  bench.sweep_orders();
  measure_interference(bench, name);
}

/// All ranks read at once, most of it remote.
void bench_peer(std::int64_t bytes) {
  const int ranks = cuda_device_count();
  if (ranks < 2) {
    std::printf("{\"skipped\": \"peer\", \"why\": \"one GPU\"}\n");
    return;
  }
  const auto group = make_thread_group(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const Device device = Device::cuda(rank);
        PENSTOCK_CUDA_CHECK(cudaSetDevice(rank));
        Communicator& comm = *group[static_cast<std::size_t>(rank)];
        const Table table = open_random(bytes, Placement::Peer, device, &comm);
        if (rank == 0) report_table(table);
        GridBench bench("peer, all ranks, rank " + std::to_string(rank), table.view(), device);
        const int all = bench.multiprocessors();
        std::vector<detail::GatherPlan> plans;
        for (const int rows : {1, 2, 4, 8}) {
          for (const int per : {4, 8}) plans.push_back({all * per, 256, rows});
          plans.push_back({all * 16, 128, rows});
          for (const int per : {1, 2}) plans.push_back({all * per, 1024, rows});
        }
        for (const RowFormat format : {RowFormat::Bf16, RowFormat::Packed}) {
          bench.sweep(plans, format, [&] { comm.barrier(); });
        }
        comm.barrier();
      } catch (const Error& error) {
        std::printf("{\"failed\": \"peer rank %d\", \"why\": \"%s\"}\n", rank, error.what());
        group[static_cast<std::size_t>(rank)]->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

int run(int argc, char** argv) {
  std::int64_t gib = 24;
  std::string parts = "device,host_shared,peer";
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--gib") == 0) gib = std::atoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--parts") == 0) parts = argv[i + 1];
  }
  const auto wants = [&](const char* part) {
    return ("," + parts + ",").find("," + std::string(part) + ",") != std::string::npos;
  };
  cudaDeviceProp properties{};
  PENSTOCK_CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
  std::printf("{\"machine\": \"%s\", \"gpus\": %d, \"threads\": %u, \"gib\": %lld, \"runs\": %d}\n",
              properties.name, cuda_device_count(), std::thread::hardware_concurrency(),
              static_cast<long long>(gib), kRuns);
  if (wants("device")) bench_device(gib << 30);
  if (wants("host_shared")) bench_host(gib << 30, Placement::HostShared);
  if (wants("host")) bench_host(gib << 30, Placement::Host);
  if (wants("peer")) bench_peer(gib << 30);
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  try {
    return penstock::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_grid_bench: %s\n", error.what());
    return 1;
  }
}
