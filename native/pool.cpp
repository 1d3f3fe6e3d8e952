#include "pool.h"

#include <unistd.h>

#include <stdexcept>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fp {

namespace {
constexpr int kSpins = 1000;  // 30-70 us: longer than the usual wait for a neighbour, short beside a scheduler's slice
}

void cpu_relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void Barrier::wait() {
  uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    // Sequentially consistent: notify_all looks for sleepers, and must not do so before a sleeper-to-be can see this.
    phase_.store(phase + 1, std::memory_order_seq_cst);
    phase_.notify_all();
    return;
  }
  for (int i = 0; i < kSpins; ++i) {
    if (phase_.load(std::memory_order_acquire) != phase) return;
    cpu_relax();
  }
  while (phase_.load(std::memory_order_acquire) == phase) phase_.wait(phase, std::memory_order_acquire);
}

bool Pool::forked() const { return size_ > 1 && getpid() != process_; }

Pool::Pool(int size) : size_(size), process_(getpid()), barrier_(size) {
  for (int tid = 1; tid < size; ++tid) threads_.emplace_back([this, tid] { work(tid); });
}

Pool::~Pool() {
  if (forked()) {  // nobody to wake and nobody to wait for: those who wait at `wake_` exist in the parent only
    new std::vector<std::thread>(std::move(threads_));
    (void)wake_.release();
    return;
  }
  {
    std::lock_guard<std::mutex> lock(sleep_);
    stop_ = true;
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_->notify_all();
  for (auto& thread : threads_) thread.join();
}

void Pool::work(int tid) {
  uint32_t seen = 0;
  for (;;) {
    for (int i = 0; i < kSpins && generation_.load(std::memory_order_acquire) == seen; ++i) cpu_relax();
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(sleep_);
      wake_->wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
    }
    ++seen;
    if (stop_) return;
    {
      DenormalGuard guard;
      (*job_)(tid);
    }
    unfinished_.fetch_sub(1, std::memory_order_release);
    unfinished_.notify_all();
  }
}

void Pool::run(const std::function<void(int)>& job) {
  if (forked())
    throw std::runtime_error("this model was loaded before the process forked, and its threads stayed behind; load it "
                             "again in the new process");
  std::lock_guard<std::mutex> one_job(running_);
  if (size_ > 1) {
    job_ = &job;
    unfinished_.store(size_ - 1, std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> lock(sleep_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_->notify_all();
  }
  {
    DenormalGuard guard;
    job(0);
  }
  for (int i = 0; i < kSpins && unfinished_.load(std::memory_order_acquire); ++i) cpu_relax();
  for (int left; (left = unfinished_.load(std::memory_order_acquire)) != 0;)
    unfinished_.wait(left, std::memory_order_acquire);
}

#if defined(__x86_64__)
DenormalGuard::DenormalGuard() : saved_(_mm_getcsr()) { _mm_setcsr(uint32_t(saved_) | 0x8040u); }
DenormalGuard::~DenormalGuard() { _mm_setcsr(uint32_t(saved_)); }
#elif defined(__aarch64__)
DenormalGuard::DenormalGuard() {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" ::"r"(saved_ | (1ull << 24)));
}
DenormalGuard::~DenormalGuard() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }
#else
DenormalGuard::DenormalGuard() : saved_(0) {}
DenormalGuard::~DenormalGuard() {}
#endif

}  // namespace fp
