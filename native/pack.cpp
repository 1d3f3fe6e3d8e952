#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "formats.h"

namespace fp {

namespace {

// Sixteen levels from the least to the greatest of 32 floats, for Q4: q 0 to 15.
constexpr StoredType kMadeLevels{"our own four bits", 32, 0, true, 0, 15, true, 32};

void make_levels(const float* w, Group* g) {
  const float least = *std::min_element(w, w + 32), most = *std::max_element(w, w + 32);
  const float d = float((double(most) - double(least)) / 15.0);
  const double inverse = d > 0 ? 1.0 / double(d) : 0.0;
  for (int j = 0; j < 32; ++j) {
    Group& group = g[j / 16];
    group.d = d;
    group.m = least;
    group.q[j % 16] = int8_t(std::clamp(std::nearbyint((double(w[j]) - double(least)) * inverse), 0.0, 15.0));
  }
}

// What a row must fit into to become integers in units of one float.
struct RowRange {
  double most = 0;   // greatest magnitude of a number that becomes an int16
  double total = 0;  // sum of the weights' magnitudes
};

// The unit of a row, its row_scale: the least one with which every number fits into int16 and 127 * sum |weight| stays
// below 2^31, so that no order of summation can overflow, although rounding to whole units moves a weight by as much
// as `moved` of them.
float row_unit(const RowRange& row, double moved, int64_t k) {
  // 32750 + moved (16.5 at most) is below 32767; k is at most kMostColumns, so that `allowed` is positive.
  const double allowed = 0.999 * (2147483647.0 / 127.0) - moved * double(k);
  const double unit = std::max(row.most / 32750.0, row.total / allowed);
  return unit >= double(std::numeric_limits<float>::min()) ? float(unit) : 1.0f;  // smaller: weights of zero
}

int16_t whole_units(double value, double inverse) { return int16_t(std::nearbyint(value * inverse)); }

// What an unpacked level is more than the type's own: stored q - zero = type's q - centre.
int level_centre(const Levels& to, const StoredType& from) { return to.minimum ? from.least + to.zero() : 0; }

// D is d in units of the row, M the value of the level `zero`. |q - zero| <= zero, so that rounding D moves a weight by
// at most zero / 2, and M by 1 / 2.
void pack_row_levels(Format format, const StoredType& type, const Group* groups, int64_t k, uint8_t* panel, int64_t o,
                     float* row_scale) {
  const Levels to = levels(format);
  const int centre = level_centre(to, type);
  RowRange range;
  for (int64_t g = 0; g < k / 16; ++g) {
    const double d = groups[g].d, m = groups[g].m;
    range.most = std::max({range.most, std::fabs(d), std::fabs(m + d * centre)});
    for (int8_t q : groups[g].q) {
      const double w = std::fabs(q * d + m);
      range.most = std::max(range.most, w);
      range.total += w;
    }
  }
  *row_scale = row_unit(range, to.zero() * 0.5 + (to.minimum ? 0.5 : 0), k);
  const double inverse = 1.0 / double(*row_scale);
  for (int64_t g = 0; g < k / 16; ++g) {
    const Group& group = groups[g];
    const int half = int(g / 2 % 2);
    uint8_t* block = panel + g / 4 * block_bytes(format);
    uint8_t* lines = block + to.lines_at(half);
    for (int j = 0; j < 16; ++j) {
      const int c = int(g % 2) * 16 + j, v = c / 4, byte = int(o * 4 + c % 4);
      const int q = group.q[j] - centre + to.zero();
      lines[c / 8 * 64 + byte] |= uint8_t((q & 15) << v % 2 * 4);
      if (to.high_bits() > 0)
        lines[256 + to.high_bits() * v / 8 * 64 + byte] |= uint8_t((q >> 4) << (to.high_bits() * v + 4) % 8);
    }
    const int part = int(g % 2) * 16 / to.span;  // groups that share a scale write the same twice
    const int16_t dm[2] = {whole_units(group.d, inverse), whole_units(group.m + double(group.d) * centre, inverse)};
    uint8_t* scales = block + to.scales_at(half);
    if (to.minimum) std::memcpy(scales + part * 64 + o * 4, dm, 4);
    else std::memcpy(scales + part * 32 + o * 2, dm, 2);
  }
}

// Q16: weights to half a unit.
void pack_row_q16(const float* w, int64_t k, uint8_t* panel, int64_t o, float* row_scale) {
  RowRange range;
  for (int64_t i = 0; i < k; ++i) {
    range.most = std::max(range.most, double(std::fabs(w[i])));
    range.total += std::fabs(w[i]);
  }
  *row_scale = row_unit(range, 0.5, k);
  const double inverse = 1.0 / double(*row_scale);
  for (int64_t i = 0; i < k; ++i) {
    const int16_t value = whole_units(w[i], inverse);
    uint8_t* byte = panel + i / 4 * 128 + o * 4 + i % 4;
    byte[0] = uint8_t(value >> 8);
    byte[64] = uint8_t(value);
  }
}

void pack_row_q8(const Group* groups, int64_t k, uint8_t* panel, int64_t o) {
  for (int64_t g = 0; g < k / 16; ++g) {
    uint8_t* block = panel + g / 4 * block_bytes(Format::Q8);
    const Group& group = groups[g];
    for (int j = 0; j < 16; ++j) {
      const int column = int(g % 4) * 16 + j;
      block[column / 4 * 64 + o * 4 + column % 4] = uint8_t(group.q[j] + 128);
    }
    const uint16_t d = f32_to_f16(group.d);
    std::memcpy(block + 1024 + g % 4 / 2 * 32 + o * 2, &d, 2);
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

// Q8C, Q8A from bytes that share one scale a row: both as they are stored.
void pack_row_bytes(const Group* groups, int64_t k, uint8_t* panel, int64_t o, float* row_scale) {
  *row_scale = groups[0].d;
  for (int64_t i = 0; i < k; ++i)
    panel[i / 64 * 1024 + i % 64 / 4 * 64 + o * 4 + i % 4] = uint8_t(groups[i / 16].q[i % 16] + 128);
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

// Groups of padding columns: weights of zero.
void clear_groups(Group* from, Group* to) {
  for (; from < to; ++from) *from = Group{};
}

}  // namespace

bool keeps_groups(Format format, const StoredType& type) {
  if (!type.grouped) return false;
  if (format == Format::Q8) return type.span >= 32 && !type.with_min;
  if (format == Format::Q8C || format == Format::Q8A) return type.span == kWholeRow && !type.with_min;
  const Levels to = levels(format);
  if (to.bits == 0 || type.span < to.span) return false;
  if (to.minimum) return type.greatest - type.least < 2 * to.zero();
  return !type.with_min && -to.zero() <= type.least && type.greatest < to.zero();
}

void check_packing(const Matrix& shape, const StoredType& type) {
  const Format f = shape.format;
  if (shape.k % type.values != 0)
    throw std::invalid_argument("rows of " + std::string(type.name) + " must be a multiple of " +
                                std::to_string(type.values) + " columns, found " + std::to_string(shape.k));
  const bool levels_only = f == Format::Q8 || (is_levels(f) && f != Format::Q4);
  if (levels_only && !keeps_groups(f, type))
    throw std::invalid_argument("layout " + std::string(kFormatNames[int(f)]) +
                                " can't hold the groups of stored type " + type.name);
}

int64_t pack_scratch(int64_t k) {
  return round_up(k, kBlockK) * 4 + round_up(k, kBlockK) / 16 * int64_t(sizeof(Group));
}

bool pack_panels(const Matrix& shape, uint8_t* dst, int type_index, const uint8_t* rows, const int32_t* order,
                 int64_t p0, int64_t p1, uint8_t* scratch) {
  const StoredType& type = stored_type(type_index);
  const Format format = shape.format;
  const int64_t k = shape.k, k_pad = shape.k_pad(), row_bytes = stored_row_bytes(type, k);
  const bool as_stored = keeps_groups(format, type);
  float* values = reinterpret_cast<float*>(scratch);
  Group* groups = reinterpret_cast<Group*>(scratch + k_pad * 4);
  float* row_scale = reinterpret_cast<float*>(dst + shape.panels() * shape.panel_bytes());
  const bool bytes = format == Format::Q8 || format == Format::Q8C || format == Format::Q8A;

  for (int64_t p = p0; p < p1; ++p) {
    uint8_t* panel = dst + p * shape.panel_bytes();
    // Padding weights are zero: the byte 128, or scales of zero.
    std::memset(panel, 0, size_t(shape.panel_bytes()));
    if (bytes)
      for (int64_t b = 0; b < k_pad / 64; ++b) std::memset(panel + b * block_bytes(format), 128, 1024);
    for (int64_t o = 0; o < kPanel; ++o) {
      const int64_t row = p * kPanel + o;
      if (row >= shape.n) {
        if (has_row_scale(format)) row_scale[row] = 0;
        continue;
      }
      const uint8_t* source = rows + (order ? order[row] : row) * row_bytes;
      const StoredType* levels_of = &type;
      if (as_stored) {
        read_groups(type_index, source, k, groups);
        clear_groups(groups + k / 16, groups + k_pad / 16);
        // A scale beyond half precision's range would be infinite where it is kept as one.
        const bool halves = format == Format::Q8;
        auto kept = [halves](float x) { return std::isfinite(halves ? f16_to_f32(f32_to_f16(x)) : x); };
        for (int64_t g = 0; g < k / 16; ++g)
          if (!kept(groups[g].d) || !kept(groups[g].m)) return false;
      } else {
        std::fill(values, values + k_pad, 0.0f);
        read_floats(type_index, source, k, values);
        if (!std::all_of(values, values + k, [](float x) { return std::isfinite(x); })) return false;
        if (format == Format::Q4) {
          for (int64_t i = 0; i < k_pad; i += 32) make_levels(values + i, groups + i / 16);
          levels_of = &kMadeLevels;
        }
      }
      switch (format) {
        case Format::Q8: pack_row_q8(groups, k_pad, panel, o); break;
        case Format::Q8A:
        case Format::Q8C:
          if (as_stored) pack_row_bytes(groups, k, panel, o, row_scale + row);
          else pack_row_q8c(values, k, panel, o, row_scale + row);
          break;
        case Format::Q16: pack_row_q16(values, k, panel, o, row_scale + row); break;
        case Format::F32:
        case Format::F16:
        case Format::BF16: pack_row_float(format, values, k, panel, o); break;
        default: pack_row_levels(format, *levels_of, groups, k_pad, panel, o, row_scale + row);
      }
    }
  }
  return true;
}

}  // namespace fp
