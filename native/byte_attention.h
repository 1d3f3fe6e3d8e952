// Attention to int8 keys and values that nobody keeps: see byte_attention.cpp.
#pragma once
#include "kernels.h"

namespace fp {

// Whether it is for this attention; others of int8 keys have the arithmetic of the cache.
bool multiplies_bytes(const Attention& a);
int64_t byte_attention_scratch(const Attention& a, const int32_t* key_starts, int64_t sequences);
// Called by every thread of the team.
void byte_attention(const Kernels& kernels, const Attention& a, const Team& team);

}  // namespace fp
