#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "kernels.h"

namespace fp {

namespace {
constexpr int64_t kHuge = 2 << 20;
#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif
}  // namespace

Region::Region(int64_t bytes, bool huge) : bytes_(bytes) {
  mapped_ = round_up(bytes, kHuge) + kHuge;
  void* p = mmap(nullptr, size_t(mapped_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<uint8_t*>(p);
  data_ = reinterpret_cast<uint8_t*>(round_up(int64_t(reinterpret_cast<uintptr_t>(p)), kHuge));
#ifdef MADV_HUGEPAGE
  if (huge) madvise(data_, size_t(round_up(bytes, kHuge)), MADV_HUGEPAGE);
#endif
}

Region::~Region() { munmap(mapping_, size_t(mapped_)); }

void release_pages(const uint8_t* data, int64_t bytes) {
  int64_t page = sysconf(_SC_PAGESIZE);
  int64_t begin = round_up(int64_t(reinterpret_cast<uintptr_t>(data)), page);
  int64_t end = int64_t(reinterpret_cast<uintptr_t>(data) + uintptr_t(bytes)) / page * page;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), size_t(end - begin), MADV_DONTNEED);
}

}  // namespace fp
