// Operations on images: convolutions and group norms.
//
// A convolution is a product whose rows are made on the way: for each pixel of the output the pixels under the window, side
// by side. A thread makes some rows at a time, as many as stay in its L2, and multiplies them at once; where weights are too
// large to go by for each few rows, all threads make rows together and then share the panels. Rows are never made of a whole
// image, and their bits don't depend on any of it.
#include <algorithm>
#include <cmath>

#include "program.h"

namespace fp {

namespace {

// Activations of the rows that a thread makes at a time, and of those that all threads make together.
constexpr int64_t kOwnBytes = 320 << 10, kSharedBytes = 4 << 20;
// More weights than this would have to come from memory again for every few rows.
constexpr int64_t kOwnWeights = 8 << 20;
constexpr int64_t kLeastRows = 16;
constexpr int64_t kBlockPixels = 128;  // whose sums are float32

int64_t blocks_of(int64_t pixels) { return (pixels + kBlockPixels - 1) / kBlockPixels; }

// Whether products with a format read weights as they lie: with others every call unpacks them again.
bool reads_as_it_lies(Format format) {
  return !is_integer(format) || format == Format::Q8A || format == Format::Q8C;
}

// Where a pixel of the output finds the pixels under its window.
class Windows {
 public:
  Windows(const Window& window, const Step& step, int level, int source_level, const float* source, int64_t width)
      : window_(window), step_(step), level_(level), source_level_(source_level), source_(source), width_(width),
        out_starts_(step.in_space(level).starts), source_starts_(step.in_space(source_level).starts) {}

  // Calls make(row, pixels) for rows [begin, end) of the output. pixels: size * size pointers, null outside of the image.
  template <typename Make>
  void each(int64_t begin, int64_t end, const Make& make) const {
    const float* pixels[kMostWindow];
    int64_t s = std::upper_bound(out_starts_, out_starts_ + step_.sequences + 1, begin) - out_starts_ - 1;
    for (int64_t row = begin; row < end; ++s) {
      // What is outside is that of the image which the window sees: when it grows, as large as the output.
      const int seen = window_.upsample ? level_ : source_level_;
      const int64_t height = step_.size(s, 0, seen), width = step_.size(s, 1, seen), half = window_.upsample ? 1 : 0;
      const int64_t source_width = step_.size(s, 1, source_level_), out_width = step_.size(s, 1, level_);
      const float* image = source_ + int64_t(source_starts_[s]) * width_;
      int64_t y = (row - out_starts_[s]) / out_width, x = (row - out_starts_[s]) % out_width;
      for (const int64_t last = std::min<int64_t>(end, out_starts_[s + 1]); row < last; ++row) {
        const int64_t top = y * window_.stride - window_.before, left = x * window_.stride - window_.before;
        const float** to = pixels;
        for (int64_t iy = top; iy < top + window_.size; ++iy)
          for (int64_t ix = left; ix < left + window_.size; ++ix)
            *to++ = iy < 0 || iy >= height || ix < 0 || ix >= width
                        ? nullptr : image + ((iy >> half) * source_width + (ix >> half)) * width_;
        make(row, pixels);
        if (++x == out_width) x = 0, ++y;
      }
    }
  }

 private:
  const Window& window_;
  const Step& step_;
  const int level_, source_level_;
  const float* source_;
  const int64_t width_;
  const int32_t *out_starts_, *source_starts_;
};

}  // namespace

// Whether threads make and multiply their own rows; else they make them together.
bool Program::own_rows(const Op& op, int64_t rows) const {
  const Matrix& w = op.parts[0].w;
  return rows >= kStretchRows * pool_->size() && w.bytes() <= kOwnWeights && reads_as_it_lies(w.format);
}

int64_t Program::rows_at_a_time(const Op& op, int64_t rows) const {
  const int64_t row = activations(op, kLeastRows).bytes() / kLeastRows;
  const int64_t bytes = own_rows(op, rows) ? kOwnBytes : kSharedBytes;
  return std::min(rows, std::max(kLeastRows, bytes / row / kLeastRows * kLeastRows));
}

void Program::conv(const Op& op, int index, const Step& step, const Team& team) {
  const Windows windows(op.window, step, space(op.out), space(op.in), buffer(op.in), width(op.in));
  const int64_t rows = rows_of(op, step), most = rows_at_a_time(op, rows), count = op.window.size * op.window.size;
  const int64_t out_width = width(op.out);
  std::atomic<int64_t>& counter = counters_[size_t(index)];
  auto make_rows = [&](Activations& x, int64_t first, int64_t begin, int64_t end, uint8_t* scratch) {
    windows.each(begin, end, [&](int64_t row, const float* const* pixels) {
      kernels_.prepare_window(pixels, count, width(op.in), x, row - first, scratch);
    });
  };
  if (own_rows(op, rows)) {
    int64_t first = counter.load(std::memory_order_relaxed);
    while (first < rows) {
      // Fewer rows towards the end, so that threads end together.
      const int64_t share = round_up((rows - first) / (2 * team.size), kLeastRows);
      const int64_t last = std::min(rows, first + std::clamp(share, kLeastRows, std::max(most, kLeastRows)));
      if (!counter.compare_exchange_weak(first, last, std::memory_order_relaxed)) continue;
      Activations x = activations(op, last - first);
      x.place(team.scratch);
      uint8_t* scratch = team.scratch + x.bytes();
      make_rows(x, first, first, last, scratch);
      products(op, x, buffer(op.out) + first * out_width, 0, panels(op), scratch);
      first = counter.load(std::memory_order_relaxed);
    }
    team.barrier();
    return;
  }
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t here = std::min(most, rows - first);
    Activations x = activations(op, here);
    x.place(shared_activations_.data);
    if (team.tid == 0) counter.store(0, std::memory_order_relaxed);  // nobody takes panels now
    make_rows(x, first, first + here * team.tid / team.size, first + here * (team.tid + 1) / team.size, team.scratch);
    team.barrier();
    share_panels(panels(op), here, counter, team, [&](int64_t p0, int64_t p1) {
      products(op, x, buffer(op.out) + first * out_width, p0, p1, team.scratch);
    });
    team.barrier();
  }
}

// Sums of blocks of pixels, channel by channel; then, in double precision, of blocks in order and of the channels of a
// group in order. Sums are of differences to the image's first pixel: a mean far from zero costs no digits.
int64_t Program::group_norm_bytes(const Op& op, const Step& step) const {
  const Rows rows = step.in_space(space(op));
  int64_t lines = 2 * step.sequences;
  for (int64_t s = 0; s < step.sequences; ++s) lines += 2 * blocks_of(rows.starts[s + 1] - rows.starts[s]);
  return lines * width(op.out) * 4;
}

void Program::group_norm(const Op& op, const Step& step, const Team& team) {
  const Rows rows = step.in_space(space(op));
  const int64_t channels = width(op.out), each = channels / op.groups;
  const float* in = buffer(op.in);
  float* factors = reinterpret_cast<float*>(team.common);              // [images][scale, shift][channels]
  float* sums = factors + 2 * step.sequences * channels;               // [blocks][sums, squares][channels]
  auto pixels = [&](int64_t s) { return int64_t(rows.starts[s + 1]) - rows.starts[s]; };
  auto first_pixel = [&](int64_t s) { return in + int64_t(rows.starts[s]) * channels; };

  int64_t all = 0;
  for (int64_t s = 0; s < step.sequences; ++s) all += blocks_of(pixels(s));
  const int64_t begin = all * team.tid / team.size, end = all * (team.tid + 1) / team.size;
  for (int64_t s = 0, before = 0; s < step.sequences; before += blocks_of(pixels(s++)))
    for (int64_t b = std::max(begin, before); b < std::min(end, before + blocks_of(pixels(s))); ++b) {
      const int64_t first = (b - before) * kBlockPixels, count = std::min(kBlockPixels, pixels(s) - first);
      float* out = sums + 2 * b * channels;
      kernels_.channel_sums(first_pixel(s) + first * channels, count, channels, first_pixel(s), out, out + channels);
    }
  team.barrier();

  const int64_t groups = step.sequences * op.groups;
  for (int64_t g = groups * team.tid / team.size, s = 0, before = 0; g < groups * (team.tid + 1) / team.size; ++g) {
    for (; s < g / op.groups; ++s) before += blocks_of(pixels(s));
    const int64_t c0 = g % op.groups * each, blocks = blocks_of(pixels(s));
    const double count = double(pixels(s));
    // Of each channel its mean, and the sum of squared differences from it; then those of the group.
    double mean = 0, squares = 0;
    std::vector<double> means(size_t(each), 0.0), second(size_t(each), 0.0);
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t c = 0; c < each; ++c) {
        const float* block = sums + 2 * (before + b) * channels + c0 + c;
        means[size_t(c)] += double(block[0]);
        second[size_t(c)] += double(block[channels]);
      }
    for (int64_t c = 0; c < each; ++c) {
      const double sum = means[size_t(c)];
      squares += second[size_t(c)] - sum * sum / count;
      means[size_t(c)] = double(first_pixel(s)[c0 + c]) + sum / count;
      mean += means[size_t(c)];
    }
    mean /= double(each);
    for (int64_t c = 0; c < each; ++c) squares += count * (means[size_t(c)] - mean) * (means[size_t(c)] - mean);
    const double variance = squares < 0 ? 0 : squares / (count * double(each));
    const double factor = 1.0 / std::sqrt(variance + double(op.norm.eps));
    for (int64_t c = c0; c < c0 + each; ++c) {
      const double scale = factor * (op.norm.weight ? double(op.norm.weight[c]) : 1.0);
      factors[2 * s * channels + c] = float(scale);
      factors[(2 * s + 1) * channels + c] = float((op.norm.bias ? double(op.norm.bias[c]) : 0.0) - mean * scale);
    }
  }
  team.barrier();

  const int64_t first = rows.count * team.tid / team.size, last = rows.count * (team.tid + 1) / team.size;
  for (int64_t s = 0; s < step.sequences; ++s) {
    const int64_t from = std::max<int64_t>(first, rows.starts[s]), to = std::min<int64_t>(last, rows.starts[s + 1]);
    if (from >= to) continue;
    const float* scale = factors + 2 * s * channels;
    kernels_.scale_rows(in + from * channels, buffer(op.out) + from * channels, scale, scale + channels, op.act, channels,
                        to - from);
  }
  team.barrier();
}

}  // namespace fp
