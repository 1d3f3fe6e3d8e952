#include "machine_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu_features.h"
#include "memory.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fp {

namespace {

using clock = std::chrono::steady_clock;
double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + long(values.size() / 2), values.end());
  return values[values.size() / 2];
}
double since(clock::time_point start) { return std::chrono::duration<double>(clock::now() - start).count(); }

uint64_t read_plain(const uint8_t* p, int64_t bytes) {
  uint64_t a = 0, b = 0, c = 0, d = 0;
  const uint64_t* q = reinterpret_cast<const uint64_t*>(p);
  for (int64_t i = 0; i + 4 <= bytes / 8; i += 4) { a ^= q[i]; b ^= q[i + 1]; c ^= q[i + 2]; d ^= q[i + 3]; }
  return a ^ b ^ c ^ d;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t read_avx2(const uint8_t* p, int64_t bytes) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (int64_t i = 0; i + 128 <= bytes; i += 128) {
    _mm_prefetch(reinterpret_cast<const char*>(p + i + 4096), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + i + 4160), _MM_HINT_T0);
    a = _mm256_xor_si256(a, _mm256_loadu_si256((const __m256i*)(p + i)));
    b = _mm256_xor_si256(b, _mm256_loadu_si256((const __m256i*)(p + i + 32)));
    c = _mm256_xor_si256(c, _mm256_loadu_si256((const __m256i*)(p + i + 64)));
    d = _mm256_xor_si256(d, _mm256_loadu_si256((const __m256i*)(p + i + 96)));
  }
  a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
  return uint64_t(_mm256_extract_epi64(a, 0) ^ _mm256_extract_epi64(a, 2));
}

__attribute__((target("avx512f"))) uint64_t read_avx512(const uint8_t* p, int64_t bytes) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (int64_t i = 0; i + 256 <= bytes; i += 256) {
    for (int line = 0; line < 4; ++line)
      _mm_prefetch(reinterpret_cast<const char*>(p + i + 4096 + 64 * line), _MM_HINT_T0);
    a = _mm512_xor_si512(a, _mm512_loadu_si512(p + i));
    b = _mm512_xor_si512(b, _mm512_loadu_si512(p + i + 64));
    c = _mm512_xor_si512(c, _mm512_loadu_si512(p + i + 128));
    d = _mm512_xor_si512(d, _mm512_loadu_si512(p + i + 192));
  }
  a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
  return uint64_t(_mm512_reduce_add_epi64(a));
}

__attribute__((target("avx2,fma"))) float burn_avx2(int64_t rounds, bool integer) {
  __m256 f[8];
  __m256i n[8];
  for (int i = 0; i < 8; ++i) { f[i] = _mm256_set1_ps(float(i)); n[i] = _mm256_set1_epi8(char(i)); }
  const __m256 x = _mm256_set1_ps(0.5f);
  const __m256i ones = _mm256_set1_epi16(1), bytes = _mm256_set1_epi8(3);
  for (int64_t r = 0; r < rounds; ++r)
    for (int i = 0; i < 8; ++i) {
      if (integer) n[i] = _mm256_add_epi32(n[i], _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, n[i]), ones));
      else f[i] = _mm256_fmadd_ps(f[i], x, x);
    }
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += _mm256_cvtss_f32(f[i]) + float(_mm256_extract_epi32(n[i], 0));
  return sum;
}

__attribute__((target("avx512f,avx512vnni"))) float burn_avx512(int64_t rounds, bool integer) {
  __m512 f[12];
  __m512i n[12];
  for (int i = 0; i < 12; ++i) { f[i] = _mm512_set1_ps(float(i)); n[i] = _mm512_set1_epi32(i); }
  const __m512 x = _mm512_set1_ps(0.5f);
  const __m512i bytes = _mm512_set1_epi32(0x03020103);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) {
      if (integer) n[i] = _mm512_dpbusd_epi32(n[i], bytes, bytes);
      else f[i] = _mm512_fmadd_ps(f[i], x, x);
    }
  }
  float sum = 0;
  for (int i = 0; i < 12; ++i) sum += _mm512_cvtss_f32(f[i]) + float(_mm512_cvtsi512_si32(n[i]));
  return sum;
}

__attribute__((target("amx-tile,amx-int8,amx-bf16"))) float burn_amx(int64_t rounds, bool integer) {
  alignas(64) volatile uint8_t config[64] = {};  // volatile: some GCCs drop stores that only the tile load reads
  config[0] = 1;
  for (int t = 0; t < 8; ++t) { config[16 + 2 * t] = 64; config[48 + t] = 16; }
  _tile_loadconfig(const_cast<uint8_t*>(config));
  alignas(64) static const uint8_t data[1024] = {1};
  _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
  _tile_loadd(4, data, 64); _tile_loadd(5, data, 64); _tile_loadd(6, data, 64); _tile_loadd(7, data, 64);
  for (int64_t r = 0; r < rounds; ++r) {
    if (integer) {
      _tile_dpbssd(0, 4, 6); _tile_dpbssd(1, 4, 7); _tile_dpbssd(2, 5, 6); _tile_dpbssd(3, 5, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7);
    }
  }
  alignas(64) float out[256];
  _tile_stored(0, out, 64);
  _tile_release();
  return out[0];
}
#endif

float burn_plain(int64_t rounds) {
  float f[16];
  for (int i = 0; i < 16; ++i) f[i] = float(i);
  for (int64_t r = 0; r < rounds; ++r)
    for (int i = 0; i < 16; ++i) f[i] = f[i] * 0.5f + 0.5f;
  float sum = 0;
  for (float x : f) sum += x;
  return sum;
}

}  // namespace

double read_bandwidth(Pool& pool, int64_t bytes, double seconds) {
  const int size = pool.size();
  bytes = std::max<int64_t>(bytes, 4096 * size) / (4096 * size) * (4096 * size);
  Region region(bytes + 8192, true);
  std::memset(region.data(), 1, size_t(bytes));
  auto read = read_plain;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) read = read_avx2;
  if (__builtin_cpu_supports("avx512f")) read = read_avx512;
#endif
  std::atomic<uint64_t> sink{0};
  std::atomic<bool> stop{false};
  std::vector<double> rates;
  auto start = clock::now();
  pool.run([&](int tid) {
    const int64_t share = bytes / size;
    while (true) {
      pool.barrier().wait();
      auto begin = clock::now();
      sink += read(region.data() + share * tid, share);
      pool.barrier().wait();
      if (tid == 0) {
        rates.push_back(double(bytes) / since(begin));
        stop = since(start) > seconds;
      }
      pool.barrier().wait();
      if (stop) return;
    }
  });
  return median(rates);
}

double matrix_rate(Pool& pool, const std::string& isa, bool integer, double seconds) {
  kernels_for(isa);  // throws for one that does not work here, and asks for the tile registers
  std::atomic<int> sink{0};
  auto burn = [&](int64_t rounds) {
    float result;
#if defined(__x86_64__)
    if (isa == "amx") result = burn_amx(rounds, integer);
    else if (isa == "avx512") result = burn_avx512(rounds, integer);
    else if (isa == "avx2") result = burn_avx2(rounds, integer);
    else
#endif
      result = burn_plain(rounds);
    sink += result > 0;
  };
  const double operations = isa == "amx" ? 4 * (integer ? 32768.0 : 16384.0)
                            : isa == "avx512" ? 12 * (integer ? 128.0 : 32.0)
                            : isa == "avx2" ? 8 * (integer ? 64.0 : 16.0) : 32.0;
  const int64_t rounds = isa == "amx" ? 2000 : 100000;
  std::vector<double> rates;
  auto start = clock::now();
  do {
    auto begin = clock::now();
    pool.run([&](int) { burn(rounds); });
    rates.push_back(operations * double(rounds) * pool.size() / since(begin));
  } while (since(start) < seconds);
  return median(rates);
}

}  // namespace fp
