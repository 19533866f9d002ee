#include "penstock/core/parallel.hpp"

#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "penstock/core/error.hpp"
#include "penstock/core/log.hpp"

namespace penstock {
namespace {

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

thread_local int threads_of_this_thread = 0;  // 0: not chosen, use all processors
thread_local bool is_inside_body = false;

/// Worker threads that outlive single calls. Started on first use, joined at process exit.
class WorkerPool {
 public:
  static WorkerPool& instance() {
    static WorkerPool pool;
    return pool;
  }

  void submit(std::function<void()> job) {
    if (threads_.empty()) return;  // the caller does all of it
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    wake_.notify_one();
  }

  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

 private:
  WorkerPool() {
    const int workers = std::max(1, usable_processors() - 1);
    threads_.reserve(static_cast<std::size_t>(workers));
    try {
      for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { run(); });
    } catch (const std::system_error& error) {
      log(LogLevel::Info, fmt::format("parallel_for: {} of {} threads: {}", threads_.size(),
                                      workers, error.what()));
    }
  }

  ~WorkerPool() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void run() {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return is_stopping_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
  bool is_stopping_ = false;
};

/// One parallel_for. Shared by the caller and the workers; whoever comes late finds nothing left.
struct Loop {
  std::int64_t count = 0;
  std::int64_t step = 0;
  const std::function<void(std::int64_t, std::int64_t)>* body = nullptr;
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::condition_variable done;
  std::int64_t finished = 0;
  std::exception_ptr error;

  void work() {
    const bool was_inside = is_inside_body;
    is_inside_body = true;
    for (;;) {
      const std::int64_t begin = next.fetch_add(step);
      if (begin >= count) break;
      const std::int64_t end = std::min(count, begin + step);
      std::exception_ptr failure;
      try {
        (*body)(begin, end);
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      if (failure && !error) error = failure;
      finished += end - begin;
      if (finished == count) done.notify_all();
    }
    is_inside_body = was_inside;
  }
};

}  // namespace

int parallel_threads() {
  return threads_of_this_thread > 0 ? threads_of_this_thread : usable_processors();
}

void set_parallel_threads(int threads) {
  expects(threads >= 1, "set_parallel_threads: threads is below 1");
  threads_of_this_thread = threads;
}

void parallel_for(std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= 0) return;
  grain = std::max<std::int64_t>(1, grain);
  const int threads = parallel_threads();
  if (threads == 1 || is_inside_body || count <= grain) {
    body(0, count);
    return;
  }
  // Four ranges a thread even out ranges of unequal cost.
  const std::int64_t ranges = std::min<std::int64_t>(4LL * threads, (count + grain - 1) / grain);
  auto loop = std::make_shared<Loop>();
  loop->count = count;
  loop->step = (count + ranges - 1) / ranges;
  loop->body = &body;
  for (int i = 1; i < threads; ++i) WorkerPool::instance().submit([loop] { loop->work(); });
  loop->work();
  std::unique_lock lock(loop->mutex);
  loop->done.wait(lock, [&] { return loop->finished == loop->count; });
  if (loop->error) std::rethrow_exception(loop->error);
}

}  // namespace penstock
