// The KV cache as Python holds it, and the check of everything that leads into its memory.
#pragma once
#include <algorithm>
#include <optional>
#include <vector>

#include "arrays.h"
#include "memory.h"
#include "program.h"

namespace fp_python {

// Memory for the blocks of one group of layers: address space for all, real memory for those in use.
struct PyKvMemory {
  PyKvMemory(int kv_type, int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t blocks)
      : layout{fp::KvType(kv_type), kv_heads, head_dim},
        layers(layers),
        blocks(blocks),
        block_bytes(fp::round_up(layers * kv_heads * layout.head_bytes(), 64)),
        region(block_bytes * blocks, true) {}
  fp::KvLayout layout;
  int64_t layers, blocks, block_bytes;
  fp::Region region;

  bool has(int64_t block) const { return block >= 0 && block < blocks; }
  uint8_t* data(int64_t block) const {
    require(has(block), "no such KV block");
    return region.data() + block * block_bytes;
  }
};

// What the layers of one group that a program records ask of its memory. window: the positions that they see, 0 = all.
// source: they are another text's keys and values, which the program only reads.
struct CacheUse {
  fp::KvLayout layout{};
  int64_t layers = 0, window = 0;
  bool source = false;

  void join(const fp::Attention& a) {
    if (layers == 0) *this = {a.layout, a.layer + 1, a.window, a.keys == fp::Keys::Source};
    require(same_layout(a.layout), "the layers of a group have one layout");
    require(source == (a.keys == fp::Keys::Source), "a group is the sequence's own or its source's, not both");
    layers = std::max(layers, a.layer + 1);
    window = window && a.window ? std::max(window, a.window) : 0;
  }
  void check(const PyKvMemory& memory) const {
    require(layers > 0, "a group without layers");
    require(layers <= memory.layers, "the cache has too few layers");
    require(same_layout(memory.layout), "the cache has another layout");
  }
  bool same_layout(const fp::KvLayout& other) const {
    return layout.type == other.type && layout.kv_heads == other.kv_heads && layout.head_dim == other.head_dim;
  }
  // The first page that the row at position `past`, or any later one, sees.
  int64_t first_page(int64_t past) const { return window ? std::max<int64_t>(0, past - window + 1) / fp::kPage : 0; }
};

// Gives a step its memories and block tables, [groups][sequences][pages]. Pages that no row sees any more may be -1;
// all others must be there, up to the last of rows_of(s) new rows or of the source.
template <class RowsOf>
void set_cache(fp::Step& step, const std::vector<CacheUse>& uses, const Ints3& tables,
               const std::vector<PyKvMemory*>& memories, const std::optional<Ints>& sources, RowsOf rows_of) {
  require(memories.size() == uses.size() && tables.shape(0) == uses.size(),
          "there must be one memory and one block table for each group of layers");
  require(int64_t(tables.shape(1)) == step.sequences, "cache arguments disagree on the number of sequences");
  step.table_stride = int64_t(tables.shape(2));
  for (size_t g = 0; g < uses.size(); ++g) {
    require(memories[g] != nullptr, "a cache memory is missing");
    uses[g].check(*memories[g]);
    step.groups.push_back({memories[g]->region.data(), memories[g]->block_bytes,
                           tables.data() + int64_t(g) * step.sequences * step.table_stride});
  }
  const bool crosses = std::any_of(uses.begin(), uses.end(), [](const CacheUse& use) { return use.source; });
  require(!crosses || (sources && int64_t(sources->size()) == step.sequences), "the length of each source is missing");
  if (crosses) step.sources = sources->data();
  for (int64_t s = 0; s < step.sequences; ++s) {
    const int64_t past = step.past[s], rows = rows_of(s), source = crosses ? step.sources[s] : 0;
    require(past >= 0 && rows > 0, "an empty sequence");
    require(source >= 0, "a source has less than no tokens");
    for (size_t g = 0; g < uses.size(); ++g) {
      const int32_t* table = step.groups[g].tables + s * step.table_stride;
      const int64_t pages = ((uses[g].source ? source : past + rows) + fp::kPage - 1) / fp::kPage;
      const int64_t first = uses[g].source ? 0 : uses[g].first_page(past);
      require(pages <= step.table_stride, "a block table is too short");
      for (int64_t page = 0; page < pages; ++page)
        require(memories[g]->has(table[page]) || (page < first && table[page] == -1), "no such KV block");
    }
    step.longest_context = std::max(step.longest_context, past + rows);
    step.longest_source = std::max(step.longest_source, source);
  }
}

}  // namespace fp_python
