// The AMX table: tile products where there are enough rows to fill a tile, the AVX-512 table for everything else.
#include "kernels.h"
#include "simd_avx512.h"

#include <cmath>

#include "formats.h"

namespace {
#include "generic/math.inl"
#include "generic/epilogue.inl"
#include "amx_matmul.inl"
#include "amx_attention.inl"
}  // namespace

const fp::Kernels& fp::amx_kernels() {
  static const Kernels table = [] {
    Kernels t = avx512_kernels();
    t.name = "amx";
    t.matmul = matmul_amx;
    t.attention = attention_amx;
    return t;
  }();
  return table;
}
