// Runs every kernel of a table on fixed pseudo-random data and prints a hash of the resulting bits, one line a case.
// test_arm.py builds it for this machine and for 64-bit Arm: the lines must be the same.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels.h"
#include "pack.h"
#include "pool.h"

namespace {

uint64_t state = 1;
uint32_t next() {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return uint32_t(state >> 33);
}
float uniform() { return float(next() & 0xffffff) / float(1 << 23) - 1.0f; }

uint64_t hash(const void* data, size_t bytes) {
  uint64_t h = 1469598103934665603ull;
  for (size_t i = 0; i < bytes; ++i) h = (h ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211ull;
  return h;
}

struct Aligned {
  explicit Aligned(int64_t bytes) : memory(size_t(bytes) + 64) {
    data = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  }
  std::vector<uint8_t> memory;
  uint8_t* data;
};

// A stored type that a format is packed from.
const char* type_for(fp::Format format) {
  switch (format) {
    case fp::Format::Q4H: return "Q4_1";
    case fp::Format::Q5:
    case fp::Format::Q6: return "Q5_0";
    case fp::Format::Q5M: return "Q5_1";
    case fp::Format::Q8: return "Q8_0";
    default: return "F32";
  }
}

void products(const fp::Kernels& kernels) {
  const int64_t n = 37, k = 96;
  std::vector<float> weights(n * k, 0.0f), input(17 * k, 0.0f), bias(n, 0.0f);
  for (auto* values : {&weights, &input, &bias})
    for (float& x : *values) x = uniform() * 3;
  for (int format = 0; format < fp::kFormats; ++format) {
    fp::Matrix w{fp::Format(format), n, k, nullptr};
    const int stored = fp::find_stored_type(type_for(w.format));
    const int64_t row_bytes = fp::stored_row_bytes(fp::stored_type(stored), k);
    std::vector<uint8_t> levels(size_t(n * row_bytes), 0);
    for (uint8_t& byte : levels) byte = uint8_t(next() & 0x3f);  // half-precision scales of these bytes are below 2
    const bool floats = !fp::stored_type(stored).grouped;
    Aligned packed(w.bytes()), scratch(fp::matmul_scratch(k) + fp::pack_scratch(k));
    if (!fp::pack_panels(w, packed.data, stored, floats ? reinterpret_cast<const uint8_t*>(weights.data()) : levels.data(),
                         nullptr, 0, w.panels(), scratch.data))
      return;
    w.data = packed.data;
    std::printf("pack %d %016llx\n", format, static_cast<unsigned long long>(hash(packed.data, size_t(w.bytes()))));
    for (int64_t rows : {1, 3, 17}) {
      fp::Activations x = fp::activations_for(w, rows);
      Aligned prepared(x.bytes()), normed(fp::prepare_scratch(k));
      x.place(prepared.data);
      std::vector<float> norm_weight(k, 0.75f), out(rows * n, 0.5f);
      fp::Norm norm{fp::NormKind::Layer, 1e-5f, norm_weight.data(), norm_weight.data()};
      kernels.prepare(norm, input.data(), k, x, 0, rows, normed.data);
      for (int act = 0; act < fp::kActs; ++act) {
        fp::Epilogue e{fp::Mode::Gate, fp::Act(act), bias.data(), out.data(), n};
        kernels.matmul(w, x, 0, w.panels(), e, scratch.data);
      }
      std::printf("product %d rows %d %016llx\n", format, int(rows),
                  static_cast<unsigned long long>(hash(out.data(), out.size() * 4)));
    }
  }
}

void attention(const fp::Kernels& kernels, fp::KvType type) {
  const int64_t heads = 6, kv_heads = 2, dim = 40, rows = 70, width = (heads + 2 * kv_heads) * dim;
  fp::Attention a{};
  a.layout = {type, kv_heads, dim};
  a.heads = heads;
  a.scale = 0.3f;
  a.window = 50;
  a.block_bytes = kv_heads * a.layout.head_bytes();
  Aligned pool(2 * a.block_bytes);
  std::memset(pool.data, 0, size_t(2 * a.block_bytes));
  std::vector<float> qkv(rows * width, 0.0f), out(rows * heads * dim, 0.0f);
  for (float& x : qkv) x = uniform();
  const int32_t starts[] = {0, int32_t(rows)}, past[] = {0}, tables[] = {1, 0};
  const float slopes[heads] = {0.5f, 0.25f, 0.125f, 0.0625f, 0.7f, 0.35f};
  a.changes.softcap = 1.5f;
  a.changes.slopes = slopes;
  std::vector<int32_t> positions(rows, 0);
  a.pool = pool.data;
  a.sequences = 1;
  a.starts = starts;
  a.past = past;
  a.tables = tables;
  a.table_stride = 2;
  a.positions = positions.data();
  a.qkv = qkv.data();
  a.ld = width;
  a.out = out.data();
  Aligned scratch(kernels.attention_scratch(a, rows, rows)), common(kernels.attention_common(a, rows, rows));
  fp::Team team{0, 1, nullptr, nullptr, scratch.data, int64_t(scratch.memory.size()), common.data,
                int64_t(common.memory.size())};
  kernels.attention(a, team);
  std::printf("attention %d %016llx\n", int(type), static_cast<unsigned long long>(hash(out.data(), out.size() * 4)));
}

}  // namespace

int main() {
  fp::DenormalGuard guard;
  products(fp::scalar_kernels());
  for (fp::KvType type : {fp::KvType::F32, fp::KvType::BF16, fp::KvType::INT8}) attention(fp::scalar_kernels(), type);
}
