// The AMX table over tiles in software, for tests: its code runs, and its bits are compared, where there are no tiles.
#include <immintrin.h>

#include "emulated_tiles.h"
#include "amx_table.inl"

const fp::Kernels& fp::amx_emulated_kernels() {
  static const Kernels table = amx_table("amx-emulated");
  return table;
}
