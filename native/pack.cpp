#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "formats.h"

namespace fp {

namespace {

struct Layout {
  const char* name;
  int64_t group_bytes;  // of 32 values, or of one value for the float types
  bool grouped;
};
constexpr Layout kLayouts[] = {{"F32", 4, false}, {"F16", 2, false},  {"BF16", 2, false}, {"Q4_0", 18, true},
                               {"Q4_1", 20, true}, {"Q5_0", 22, true}, {"Q5_1", 24, true}, {"Q8_0", 34, true}};

uint16_t read16(const uint8_t* p) { uint16_t v; std::memcpy(&v, p, 2); return v; }
uint32_t read32(const uint8_t* p) { uint32_t v; std::memcpy(&v, p, 4); return v; }
float read_half(const uint8_t* p) { return f16_to_f32(read16(p)); }

// A group of 32 weights as stored: weight = q * d + m.
struct Group {
  int8_t q[32];
  float d, m;
};

void read_group(Source type, const uint8_t* p, Group& g) {
  g.d = read_half(p);
  g.m = 0;
  bool with_min = type == Source::Q4_1 || type == Source::Q5_1;
  if (with_min) g.m = read_half(p + 2);
  const uint8_t* body = p + (with_min ? 4 : 2);
  if (type == Source::Q8_0) {
    std::memcpy(g.q, body, 32);
    return;
  }
  bool five = type == Source::Q5_0 || type == Source::Q5_1;
  uint32_t high = five ? read32(body) : 0;
  if (five) body += 4;
  int centre = with_min ? 0 : five ? 16 : 8;
  for (int j = 0; j < 16; ++j) {
    g.q[j] = int8_t((body[j] & 15) + (((high >> j) & 1) << 4) - centre);
    g.q[j + 16] = int8_t((body[j] >> 4) + (((high >> (j + 16)) & 1) << 4) - centre);
  }
}

void read_floats(Source type, const uint8_t* row, int64_t k, float* out) {
  switch (type) {
    case Source::F32: std::memcpy(out, row, size_t(k) * 4); return;
    case Source::F16: for (int64_t i = 0; i < k; ++i) out[i] = f16_to_f32(read16(row + 2 * i)); return;
    case Source::BF16: for (int64_t i = 0; i < k; ++i) out[i] = bf16_to_f32(read16(row + 2 * i)); return;
    default:
      for (int64_t g = 0; g < k / kGroup; ++g) {
        Group group;
        read_group(type, row + g * kLayouts[int(type)].group_bytes, group);
        for (int j = 0; j < 32; ++j) out[g * 32 + j] = float(group.q[j]) * group.d + group.m;
      }
  }
}

void make_group4(const float* w, Group& g) {  // our own four bits: sixteen levels from the least to the greatest
  float least = *std::min_element(w, w + 32), most = *std::max_element(w, w + 32);
  g.d = (most - least) / 15.0f;
  g.m = least;
  float inverse = g.d > 0 ? 1.0f / g.d : 0.0f;
  for (int j = 0; j < 32; ++j) g.q[j] = int8_t(std::clamp(std::nearbyint((w[j] - least) * inverse), 0.0f, 15.0f));
}

// Q4: 16-bit scales and offsets relative to one float a row. The greatest row_scale^-1 is taken for which every
// weight fits into int16 and 127 * sum |weight| stays below 2^31, so that no order of summation can overflow.
void pack_row_q4(const Group* groups, int64_t count, int shift, uint8_t* panel, int64_t o, float* row_scale) {
  double most = 0, total = 0;
  for (int64_t g = 0; g < count; ++g) {
    const Group& group = groups[g];
    double centre = double(group.m) + double(group.d) * (8 - shift);  // value of the stored nibble 8
    most = std::max({most, std::fabs(double(group.d)), std::fabs(centre)});
    for (int j = 0; j < 32; ++j) {
      double w = std::fabs(double(group.q[j]) * group.d + group.m);
      most = std::max(most, w);
      total += w;
    }
  }
  const double k = double(count) * 32;
  // Rounding D and M moves a weight by at most 8 * 0.5 + 0.5.
  double allowed = 0.999 * (2147483647.0 / 127.0) - 4.5 * k;
  double scale = std::max(most / 32760.0, allowed > 0 ? total / allowed : HUGE_VAL);
  if (!(scale > 0) || !std::isfinite(scale)) scale = scale > 0 ? 0 : 1;  // all zero, or not representable
  *row_scale = float(scale);
  double inverse = *row_scale > 0 ? 1.0 / double(*row_scale) : 0;
  for (int64_t g = 0; g < count; ++g) {
    uint8_t* block = panel + g * 320;
    const Group& group = groups[g];
    for (int c = 0; c < 32; ++c) {
      int nibble = group.q[c] + shift;
      uint8_t& byte = block[c / 8 * 64 + o * 4 + c % 4];
      byte = uint8_t(byte | (c % 8 < 4 ? nibble : nibble << 4));
    }
    int16_t dm[2] = {int16_t(std::nearbyint(group.d * inverse)),
                     int16_t(std::nearbyint((double(group.m) + double(group.d) * (8 - shift)) * inverse))};
    std::memcpy(block + 256 + o * 4, dm, 4);
  }
}

void pack_row_q8(Format format, const Group* groups, int64_t count, uint8_t* panel, int64_t o) {
  for (int64_t g = 0; g < count; ++g) {
    uint8_t* block = panel + g / 2 * block_bytes(format);
    const Group& group = groups[g];
    for (int c = 0; c < 32; ++c) {
      int column = int(g % 2) * 32 + c;
      block[column / 4 * 64 + o * 4 + column % 4] = uint8_t(group.q[c] + 128);
    }
    uint16_t d = f32_to_f16(group.d), m = f32_to_f16(group.m);
    std::memcpy(block + 1024 + (g % 2) * 32 + o * 2, &d, 2);
    if (format == Format::Q8M) std::memcpy(block + 1088 + (g % 2) * 32 + o * 2, &m, 2);
  }
}

void pack_row_q8c(const float* w, int64_t k, uint8_t* panel, int64_t o, float* row_scale) {
  float amax = 0;
  for (int64_t i = 0; i < k; ++i) amax = std::max(amax, std::fabs(w[i]));
  float inverse = amax > 0 ? 127.0f / amax : 0.0f;
  *row_scale = amax / 127.0f;
  for (int64_t i = 0; i < k; ++i)
    panel[i / 64 * 1024 + i % 64 / 4 * 64 + o * 4 + i % 4] =
        uint8_t(int(std::clamp(std::nearbyint(w[i] * inverse), -127.0f, 127.0f)) + 128);
}

void pack_row_float(Format format, const float* w, int64_t k, uint8_t* panel, int64_t o) {
  if (format == Format::F32) {
    float* out = reinterpret_cast<float*>(panel);
    for (int64_t i = 0; i < k; ++i) out[i * 16 + o] = w[i];
    return;
  }
  uint16_t* out = reinterpret_cast<uint16_t*>(panel);
  for (int64_t i = 0; i < k; ++i) {
    if (format == Format::F16) out[i * 16 + o] = f32_to_f16(w[i]);
    else out[i / 2 * 32 + o * 2 + i % 2] = f32_to_bf16(w[i]);
  }
}

}  // namespace

Source source_type(const std::string& name) {
  for (int i = 0; i < int(std::size(kLayouts)); ++i)
    if (name == kLayouts[i].name) return Source(i);
  throw std::invalid_argument("no packing from tensors of type " + name);
}

int64_t source_row_bytes(Source type, int64_t k) {
  const Layout& layout = kLayouts[int(type)];
  return layout.grouped ? k / kGroup * layout.group_bytes : k * layout.group_bytes;
}

int64_t pack_scratch(int64_t k) { return round_up(k, kBlockK) * 4 + round_up(k, kBlockK) / kGroup * int64_t(sizeof(Group)); }

bool pack_panels(const Matrix& shape, uint8_t* dst, Source type, const uint8_t* rows, const int32_t* order,
                 int64_t p0, int64_t p1, uint8_t* scratch) {
  const int64_t k = shape.k, k_pad = shape.k_pad(), groups = k_pad / kGroup;
  const int64_t row_bytes = source_row_bytes(type, k);
  const bool stored_groups = kLayouts[int(type)].grouped;
  float* values = reinterpret_cast<float*>(scratch);
  Group* group = reinterpret_cast<Group*>(scratch + k_pad * 4);
  float* row_scale = reinterpret_cast<float*>(dst + shape.panels() * shape.panel_bytes());

  for (int64_t p = p0; p < p1; ++p) {
    uint8_t* panel = dst + p * shape.panel_bytes();
    // Padding weights are zero: the nibble 8, the byte 128, and scales of zero.
    std::memset(panel, 0, size_t(shape.panel_bytes()));
    if (is_integer(shape.format) && shape.format != Format::Q4)
      for (int64_t b = 0; b < k_pad / 64; ++b) std::memset(panel + b * block_bytes(shape.format), 128, 1024);
    for (int64_t o = 0; o < kPanel; ++o) {
      int64_t row = p * kPanel + o;
      if (row >= shape.n) {
        if (has_row_scale(shape.format)) row_scale[row] = 0;
        continue;
      }
      const uint8_t* source = rows + (order ? order[row] : row) * row_bytes;
      bool as_stored = stored_groups && (shape.format == Format::Q8 || shape.format == Format::Q8M ||
                                         (shape.format == Format::Q4 && (type == Source::Q4_0 || type == Source::Q4_1)));
      if (as_stored) {
        for (int64_t g = 0; g < groups; ++g) {
          if (g * kGroup < k) read_group(type, source + g * kLayouts[int(type)].group_bytes, group[g]);
          else std::memset(&group[g], 0, sizeof(Group));
          if (!std::isfinite(group[g].d) || !std::isfinite(group[g].m)) return false;
        }
      } else {
        std::fill(values, values + k_pad, 0.0f);
        read_floats(type, source, k, values);
        if (!std::all_of(values, values + k, [](float x) { return std::isfinite(x); })) return false;
        if (shape.format == Format::Q4)
          for (int64_t g = 0; g < groups; ++g) make_group4(values + g * kGroup, group[g]);
      }
      switch (shape.format) {
        case Format::Q4: pack_row_q4(group, groups, type == Source::Q4_0 ? 8 : 0, panel, o, row_scale + row); break;
        case Format::Q8:
        case Format::Q8M: pack_row_q8(shape.format, group, groups, panel, o); break;
        case Format::Q8C: pack_row_q8c(values, k, panel, o, row_scale + row); break;
        default: pack_row_float(shape.format, values, k, panel, o);
      }
    }
  }
  return true;
}

}  // namespace fp
