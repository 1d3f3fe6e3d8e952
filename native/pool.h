// One team of threads for the whole process. A job is a function that every member runs (SPMD); members meet at
// barriers. Waiting spins briefly, then sleeps, so that an idle process uses no CPU and a busy neighbour no more than
// a scheduler slice.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace fp {

void cpu_relax();

class Barrier {
 public:
  explicit Barrier(int size) : size_(size) {}
  void wait();

 private:
  const int size_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
};

class Pool {
 public:
  explicit Pool(int size);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return size_; }
  // Runs job(tid) on every member, the caller being member 0, and returns when all are done. One job at a time.
  // Throws std::runtime_error in a process forked after the pool was made: threads do not survive a fork.
  void run(const std::function<void(int)>& job);
  Barrier& barrier() { return barrier_; }

 private:
  void work(int tid);
  bool forked() const;

  const int size_;
  const int64_t process_;
  Barrier barrier_;
  std::mutex running_;
  std::mutex sleep_;
  std::unique_ptr<std::condition_variable> wake_ = std::make_unique<std::condition_variable>();
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> unfinished_{0};
  const std::function<void(int)>* job_ = nullptr;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

// Flushes subnormals in this thread while it lives, as the AMX unit does, so that every path agrees.
class DenormalGuard {
 public:
  DenormalGuard();
  ~DenormalGuard();

 private:
  uint64_t saved_;
};

}  // namespace fp
