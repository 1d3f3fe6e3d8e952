// What this processor and operating system let us use.
#pragma once
#include <string>
#include <vector>

#include "kernels.h"

namespace fp {

// Instruction sets that work here, best first; "scalar" is always last.
std::vector<std::string> available_isas();
// Tables that only tests run: "amx-emulated", the tile code over tiles in software.
std::vector<std::string> testing_isas();
// The table for a name of either; throws std::invalid_argument for any other.
const Kernels& kernels_for(const std::string& isa);
std::string cpu_name();

}  // namespace fp
