// The AMX table: tile products where there are enough rows to fill a tile; below, the AVX-512 products, compiled once more
// for what every processor with AMX has besides. Everything else is the AVX-512 table's.
#include "kernels.h"
#include "simd_avx512.h"

#include <cmath>

#include "formats.h"

namespace {
#include "generic/math.inl"
#include "generic/epilogue.inl"
#include "generic/matmul_float.inl"
#include "avx512_matmul.inl"
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
