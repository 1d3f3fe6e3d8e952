#include "cpu_features.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fp {

namespace {

struct Isas {
  std::vector<std::string> found{"scalar"};  // what to choose from, best first
  std::vector<std::string> testing;          // what only tests run
};

#if defined(__x86_64__)
struct Cpuid {
  unsigned a = 0, b = 0, c = 0, d = 0;
  Cpuid(unsigned leaf, unsigned sub) { __get_cpuid_count(leaf, sub, &a, &b, &c, &d); }
};

bool bit(unsigned word, int i) { return (word >> i) & 1; }

uint64_t enabled_state() {  // XCR0: which registers the operating system saves for us
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t(high) << 32) | low;
}

bool ask_for_tiles() {  // Linux hands out the AMX tile registers on request only
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Isas detect() {
  Isas isas;
  auto& found = isas.found;
  Cpuid one(1, 0), seven(7, 0);
  if (!bit(one.c, 27)) return isas;  // OSXSAVE
  uint64_t state = enabled_state();
  bool ymm = (state & 0x6) == 0x6, zmm = (state & 0xe6) == 0xe6, tiles = (state & 0x60000) == 0x60000;
  bool avx2 = ymm && bit(one.c, 12) && bit(one.c, 29) && bit(seven.b, 5);  // FMA, F16C, AVX2
  if (!avx2) return isas;
  found.insert(found.begin(), "avx2");
  bool avx512 = zmm && bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) && bit(seven.b, 31) &&
                bit(seven.c, 11);  // F, DQ, BW, VL, VNNI
  if (!avx512) return isas;
  found.insert(found.begin(), "avx512");
  bool beside = bit(seven.c, 8) && bit(Cpuid(7, 1).a, 5);  // what the tile code uses besides tiles: GFNI, AVX512-BF16
  if (beside) isas.testing.push_back("amx-emulated");
  bool amx = beside && tiles && bit(seven.d, 22) && bit(seven.d, 24) && bit(seven.d, 25);  // AMX-BF16, TILE, INT8
  if (amx && ask_for_tiles()) found.insert(found.begin(), "amx");
  return isas;
}
#else
Isas detect() { return {}; }
#endif

const Isas& isas() {
  static const Isas detected = detect();
  return detected;
}

}  // namespace

std::vector<std::string> available_isas() { return isas().found; }
std::vector<std::string> testing_isas() { return isas().testing; }

const Kernels& kernels_for(const std::string& isa) {
  auto among = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), isa) != names.end();
  };
  if (!among(isas().found) && !among(isas().testing)) throw std::invalid_argument(isa);
#if defined(__x86_64__)
  if (isa == "amx") return amx_kernels();
  if (isa == "amx-emulated") return amx_emulated_kernels();
  if (isa == "avx512") return avx512_kernels();
  if (isa == "avx2") return avx2_kernels();
#endif
  return scalar_kernels();
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}

}  // namespace fp
