// Attention over the paged cache. The arithmetic is the same for one row or many, on every instruction set, for any
// number of threads and any cut of a prompt into chunks. For each query head of each row:
//   q      rotated, multiplied by `scale`, rounded to bfloat16 (BF16 and INT8 caches)
//   score  of a position: for every 32 dimensions even = odd = 0, 16 steps of fma on even and on odd dimensions,
//          score += even + odd, which is what an AMX tile product does; INT8: then score *= k_scale[position];
//          then the terms of attention_positions.inl and the changes of attention_scores.inl
//   p      e^(score - the largest visible score); invisible positions have p = 0
//   sum    of p, before it is rounded: per page sixteen lanes, over its four blocks of 16 positions in order; pages in
//          order; then the tree
//   out    for every 32 positions even = odd = 0, 16 steps of fma on even and on odd positions, out += even + odd,
//          with p rounded to bfloat16 (INT8: p * v_scale[position], rounded); then out / sum
// F32: one fma chain over dimensions, one over positions, nothing rounded.
// Blocks of positions where p is 0 everywhere add zero, so it is free which of them are computed. A page is 64 positions of
// the sequence whose keys they are, whether they lie in the cache or not.
#include "attention_cache.inl"
#include "attention_scores.inl"
#include "attention_positions.inl"
#include "attention_core.inl"
#include "attention_schedule.inl"
#include "attention_own.inl"

void attention(const fp::Attention& a, const fp::Team& team) {
  switch (a.layout.type) {
    case fp::KvType::F32: return attend<VectorCore<fp::KvType::F32>>(a, team);
    case fp::KvType::BF16: return attend<VectorCore<fp::KvType::BF16>>(a, team);
    case fp::KvType::INT8: return attend<VectorCore<fp::KvType::INT8>>(a, team);
  }
}

void store(const fp::Attention& a, const fp::Team& team) { append_all(a, team); }
