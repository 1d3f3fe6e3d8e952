// The AMX table.
#include "amx_table.inl"

const fp::Kernels& fp::amx_kernels() {
  static const Kernels table = amx_table("amx");
  return table;
}
