// The table of an instruction set with tiles: tile products where there are enough rows to fill a tile; below, the
// AVX-512 products, compiled once more for what every processor with AMX has besides. Everything else is the AVX-512
// table's. amx.cpp includes this for the real tiles, amx_emulated.cpp for those of emulated_tiles.h.
#include "kernels.h"
#include "simd_avx512.h"

#include <cmath>
#include <type_traits>

#include "formats.h"

namespace {
constexpr bool kFetchesAhead = true;  // see avx512.cpp

#include "generic/math.inl"
#include "generic/epilogue.inl"
#include "generic/matmul_float.inl"
#include "avx512_matmul.inl"
#include "amx_matmul.inl"
#include "amx_attention.inl"

fp::Kernels amx_table(const char* name) {
  fp::Kernels table = fp::avx512_kernels();
  table.name = name;
  table.matmul = matmul_amx;
  table.attention = attention_amx;
  return table;
}
}  // namespace
