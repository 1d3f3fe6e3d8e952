// The AMX tile instructions in plain C++, under the names of their intrinsics, so that tile code can be tested where
// there are no tiles. Include after <immintrin.h>. The results are the unit's, bit for bit, as long as subnormals are
// flushed (DenormalGuard), which the unit always does. Using tiles whose shapes do not fit together, or that are not
// configured, is a fault on the real unit; here it ends the process with a message.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbuud
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated_tiles.configure
#define _tile_release emulated_tiles.release
#define _tile_zero emulated_tiles.zero
#define _tile_loadd emulated_tiles.load
#define _tile_stored emulated_tiles.store
#define _tile_dpbssd (emulated_tiles.multiply<int8_t, int8_t>)
#define _tile_dpbsud (emulated_tiles.multiply<int8_t, uint8_t>)
#define _tile_dpbusd (emulated_tiles.multiply<uint8_t, int8_t>)
#define _tile_dpbuud (emulated_tiles.multiply<uint8_t, uint8_t>)
#define _tile_dpbf16ps emulated_tiles.multiply_bf16

namespace {

struct EmulatedTiles {
  static constexpr int kTiles = 8, kRows = 16, kBytes = 64;
  struct alignas(64) Tile {
    uint8_t line[kRows][kBytes];
    int rows = 0, bytes = 0;  // 0: not configured
  };
  Tile tile[kTiles];

  static void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "emulated tiles: %s\n", what);
    std::abort();
  }
  Tile& at(int t) {
    require(tile[t].rows > 0, "a tile is used that is not configured");
    return tile[t];
  }

  void configure(const void* memory) {
    const uint8_t* config = static_cast<const uint8_t*>(memory);
    require(config[0] == 1 && config[1] == 0, "palette 1 from row 0 on is what there is");
    for (int t = 0; t < kTiles; ++t) {
      uint16_t bytes;
      std::memcpy(&bytes, config + 16 + 2 * t, 2);
      const int rows = config[48 + t];
      require(rows <= kRows && bytes <= kBytes && (rows == 0) == (bytes == 0), "a tile has up to 16 rows of 64 bytes");
      tile[t] = Tile{};
      tile[t].rows = rows;
      tile[t].bytes = bytes;
    }
  }
  void release() {
    for (Tile& t : tile) t = Tile{};
  }
  void zero(int t) { std::memset(at(t).line, 0, sizeof(tile[t].line)); }

  // Rows and columns outside the configured shape become zero.
  void load(int t, const void* from, int64_t stride) {
    zero(t);
    for (int r = 0; r < tile[t].rows; ++r)
      std::memcpy(tile[t].line[r], static_cast<const uint8_t*>(from) + r * stride, size_t(tile[t].bytes));
  }
  void store(int t, void* to, int64_t stride) {
    at(t);
    for (int r = 0; r < tile[t].rows; ++r)
      std::memcpy(static_cast<uint8_t*>(to) + r * stride, tile[t].line[r], size_t(tile[t].bytes));
  }

  // c [M][N] += a [M][K] b [K][N], where an element of a and b is four bytes: 4 int8 or 2 bfloat16.
  void check(int c, int a, int b) {
    const Tile &sum = at(c), &left = at(a), &right = at(b);
    require(c != a && c != b && a != b, "a product needs three tiles");
    require(sum.rows == left.rows && left.bytes == 4 * right.rows && sum.bytes == right.bytes,
            "the tiles of a product do not fit together");
  }

  template <class A, class B>
  void multiply(int c, int a, int b) {
    check(c, a, b);
    for (int m = 0; m < tile[c].rows; ++m) {
      alignas(64) uint32_t sum[16];  // wraps, as the unit does
      std::memcpy(sum, tile[c].line[m], kBytes);
      for (int k = 0; k < tile[b].rows; ++k) {
        A x[4];
        B y[kBytes];
        std::memcpy(x, tile[a].line[m] + 4 * k, 4);
        std::memcpy(y, tile[b].line[k], kBytes);
        for (int n = 0; n < 16; ++n)
          for (int i = 0; i < 4; ++i) sum[n] += uint32_t(int32_t(x[i]) * int32_t(y[4 * n + i]));
      }
      std::memcpy(tile[c].line[m], sum, kBytes);
    }
    clear_outside(c);
  }

  // The even elements of all pairs in one chain of fused multiply-adds from zero, the odd ones in another; then
  // c + (even + odd).
  void multiply_bf16(int c, int a, int b) {
    check(c, a, b);
    auto number = [](uint32_t bits) {
      float x;
      std::memcpy(&x, &bits, 4);
      return x;
    };
    for (int m = 0; m < tile[c].rows; ++m) {
      alignas(64) float even[16] = {}, odd[16] = {}, sum[16];
      for (int k = 0; k < tile[b].rows; ++k) {
        uint32_t x, y[16];
        std::memcpy(&x, tile[a].line[m] + 4 * k, 4);
        std::memcpy(y, tile[b].line[k], kBytes);
        for (int n = 0; n < 16; ++n) {
          even[n] = __builtin_fmaf(number(x << 16), number(y[n] << 16), even[n]);
          odd[n] = __builtin_fmaf(number(x & 0xffff0000u), number(y[n] & 0xffff0000u), odd[n]);
        }
      }
      std::memcpy(sum, tile[c].line[m], kBytes);
      for (int n = 0; n < 16; ++n) sum[n] += even[n] + odd[n];
      std::memcpy(tile[c].line[m], sum, kBytes);
    }
    clear_outside(c);
  }

  void clear_outside(int t) {
    for (int r = 0; r < kRows; ++r)
      for (int i = r < tile[t].rows ? tile[t].bytes : 0; i < kBytes; ++i) tile[t].line[r][i] = 0;
  }
};

thread_local EmulatedTiles emulated_tiles;

}  // namespace
