// Tile set-up, and the conversion of finished blocks. Included inside an anonymous namespace.

// Tiles 0-3 hold sums [rows][16], 4 and 5 activations [rows][columns of one byte], 6 and 7 weights [columns / 4][64].
inline void configure_tiles(int rows, int columns) {
  struct alignas(64) Config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  };
  Config config{};
  config.palette = 1;
  for (int i = 0; i < 8; ++i) {
    config.bytes[i] = uint16_t(i == 4 || i == 5 ? columns : 64);
    config.rows[i] = uint8_t(i < 6 ? rows : columns / 4);
  }
  asm volatile("" ::"r"(&config) : "memory");  // GCC 12.2 would drop the stores above
  _tile_loadconfig(&config);
}

// GCC's tile loads do not say that they read memory: without this, earlier stores might be moved behind them.
inline void tiles_see_stores() { asm volatile("" ::: "memory"); }

// Sums of up to four 16 x 16 blocks of outputs on their way to floats. `End::outputs(o)` loads what End needs for the
// outputs from o, and `End::row(c, r, outputs)` gives the sixteen results of row r, whose sums start at c. The vector
// work is handed out in small pieces, so that the tile products of the next blocks run meanwhile.
template <class End>
struct Converter {
  static constexpr int kBytes = 4096;  // of `sums`
  const End& end;
  const fp::Epilogue& e;
  int32_t* sums;  // [block][plane][16][16]
  int64_t n;
  bool plain;     // nothing but Store or Add
  int per_step;
  int64_t row[4], output[4];
  int lines[4];
  int count = 0, block = 0, line = 0;

  // steps: how often some() is called while the next sums are made; the blocks hold `total` lines.
  Converter(const End& end, const fp::Epilogue& e, int32_t* sums, int64_t n, int64_t steps, int64_t total)
      : end(end), e(e), sums(sums), n(n),
        plain(!e.bias && e.act == fp::Act::None && e.mode != fp::Mode::Gate),
        per_step(int((total + steps - 1) / steps)) {}

  // Where the sums of a block are to be stored. Lines of the outputs may have to come from far, and the tiles' own
  // stores would queue up behind them: those of the tile of rows after this one are fetched now.
  int32_t* add(int64_t r, int64_t o, int64_t rows) {
    row[count] = r;
    output[count] = o;
    lines[count] = int(rows - r < 16 ? rows - r : 16);
    for (int64_t i = r + 16; i < r + 32 && i < rows; ++i)
      _mm_prefetch(reinterpret_cast<const char*>(e.out + i * e.ld + o), _MM_HINT_T0);
    return sums + count++ * End::kPlanes * 256;
  }
  void convert(int stop) {
    const int32_t* c = sums + block * End::kPlanes * 256 + line * 16;
    const int64_t o = output[block], ld = e.ld;
    const V outputs = end.outputs(o);
    int64_t r = row[block] + line;
    const int64_t last = row[block] + stop;
    if (plain && o + 16 <= n) {
      float* out = e.out + r * ld + o;
      if (e.mode == fp::Mode::Add) {
        for (; r < last; ++r, c += 16, out += ld) vstore(out, vadd(vload(out), end.row(c, r, outputs)));
      } else {
        for (; r < last; ++r, c += 16, out += ld) vstore(out, end.row(c, r, outputs));
      }
    } else {
      V y[16];
      const int rows = int(last - r);
      for (int j = 0; j < rows; ++j, c += 16) y[j] = end.row(c, r + j, outputs);
      finish_some(e, y, rows, r, o, n);
    }
    line = stop;
    if (line == lines[block]) {
      line = 0;
      ++block;
    }
  }
  void some() {
    if (block < count) convert(line + per_step < lines[block] ? line + per_step : lines[block]);
  }
  void all() {  // makes room for new blocks
    while (block < count) convert(lines[block]);
    count = block = 0;
  }
};
