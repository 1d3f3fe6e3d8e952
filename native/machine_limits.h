// What this machine can do at most, measured: the yardsticks that explain and the benchmarks hold a run against.
#pragma once
#include <cstdint>
#include <string>

#include "pool.h"

namespace fp {

double read_bandwidth(Pool& pool, int64_t bytes, double seconds);
double matrix_rate(Pool& pool, const std::string& isa, bool integer, double seconds);

}  // namespace fp
