// Who computes what. Four plans, chosen by shape alone, with the same bits:
//   apart     every sequence has few rows: a thread owns all rows of a (sequence, KV head), appends and computes
//             them; no barrier
//   by page   few sequences with few rows and long contexts: the pages of all heads are spread over the threads for
//             scores and p, then (head, sixteen dimensions) for values; two barriers
//   together  prompts: append everything | barrier | spans are taken one after the other, the longest of a head first
//   own       keys that nobody keeps: a thread takes a (sequence, KV head), appends to pages of its own scratch memory and
//             computes all rows; of long texts several threads do that, each for a part of the rows; no barrier
// Keys that lie in the cache already (Source) are not appended.

constexpr int64_t kByPageBytes = 64ll << 20;      // most memory for the shared buffers
constexpr int64_t kByPageLeast = 4;               // pages: shorter contexts aren't worth two barriers

struct Scratch {
  uint8_t* queries;
  float *most, *sums, *total, *acc;
  uint8_t* keys;   // a page of rotated keys, for caches of unrotated ones
  uint8_t* pages;  // of the plan own
  float* buffer;
};

inline int64_t query_bytes(const fp::Attention& a) {
  return kSpanRows * a.layout.d_pad() * 4 * (a.positioned.any() ? 2 : 1);
}
inline int64_t rotated_bytes(const fp::Attention& a) {
  return a.rotate_on_read ? fp::round_up(a.layout.head_bytes(), 64) : 0;
}
inline int64_t context_pad(int64_t context) { return fp::round_up(context, fp::kPage); }
inline int64_t own_bytes(const fp::Attention& a, int64_t context) {
  return !a.keeps() ? context_pad(context) / fp::kPage * a.layout.head_bytes() : 0;
}

// The end of `context` keys, where the scores stand, is what rows share of it.
inline Scratch split_scratch(const fp::Attention& a, uint8_t* p, int64_t context) {
  Scratch s;
  s.queries = p;
  s.most = reinterpret_cast<float*>(p + query_bytes(a));
  s.sums = s.most + kSpanRows * 16;
  s.total = s.sums + kSpanRows * 16;
  s.acc = s.total + kSpanRows * 16;
  s.keys = reinterpret_cast<uint8_t*>(s.acc + kSpanRows * a.layout.d_pad());
  s.pages = s.keys + rotated_bytes(a);
  s.buffer = reinterpret_cast<float*>(s.pages + own_bytes(a, context));
  return s;
}

int64_t attention_scratch(const fp::Attention& a, int64_t rows, int64_t context) {
  const int64_t most_rows = smaller(kSpanRows, rows * group_of(a));
  return query_bytes(a) + kSpanRows * (3 * 16 + a.layout.d_pad()) * 4 + rotated_bytes(a) + own_bytes(a, context) +
         most_rows * context_pad(context) * 4 + 64;
}

// Bytes of the plan by page: for every page of every KV head the scores [4][rows][16], a line per row of sums, and a
// line or two of largest scores.
inline int64_t by_page_bytes(const fp::Attention& a, int64_t rows, int64_t context) {
  const int64_t pages = context_pad(context) / fp::kPage;
  return rows * pages * (a.heads * 5 * 64 + a.layout.kv_heads * kSpanRows * 4);
}

int64_t attention_common(const fp::Attention& a, int64_t rows, int64_t context) {
  const int64_t bytes = a.keeps() ? by_page_bytes(a, rows, context) : 0;
  return bytes <= kByPageBytes ? bytes : 0;
}

// acc [dims / 16][rows][16] / total, into the heads' places in `out`. Adding zero makes -0 one with 0: whether a
// block of invisible positions was added must not show.
inline void finish(const fp::Attention& a, const Span& x, int block0, int block1, const float* acc,
                   const float* total) {
  const int64_t d = a.layout.head_dim;
  for (int r = 0; r < x.rows; ++r) {
    const float sum = reduce_add(vload(total + r * 16));
    float* out = a.out + (x.row[r] * a.heads + x.head[r]) * d;
    for (int b = block0; b < block1; ++b) {
      const int64_t left = d - b * 16;
      V y = vdiv(vload(acc + ((b - block0) * x.rows + r) * 16), vset(sum));
      y = sum == 0.0f ? vzero() : vadd(y, vzero());
      if (left >= 16) vstore(out + b * 16, y);
      else if (left > 0) vstore_n(out + b * 16, y, int(left));
    }
  }
}

inline void fill(float* to, int vectors, float value) {
  for (int i = 0; i < vectors; ++i) vstore(to + i * 16, vset(value));
}

// The scores of one page into `buffer`. more: the page after it comes next.
template <class Core>
inline void page_scores(const fp::Attention& a, Core& core, const Span& x, int64_t page, bool more, const Scratch& s,
                        const Pages& pages, float* buffer) {
  const uint8_t* data = pages(page);
  const uint8_t* next = more ? pages(page + 1) : nullptr;
  if (a.rotate_on_read) {
    rotate_keys(a, x.sequence, page, data, s.keys);
    data = s.keys;
    next = nullptr;
  }
  core.scores(x, page, data, next, s.queries, buffer, s.most);
}

// One span from queries to output, by one thread.
template <class Core>
void attend_span(const fp::Attention& a, Core& core, const Span& x, const Scratch& s, const Pages& pages) {
  auto buffer = [&](int64_t page) { return s.buffer + (page - x.page0) * 64 * x.rows; };
  core.begin(x);
  core.load_queries(x, s.queries);
  fill(s.most, x.rows, -__builtin_inff());
  for (int64_t page = x.page0; page < x.page1; ++page)
    page_scores(a, core, x, page, page + 1 < x.page1, s, pages, buffer(page));
  float most[kSpanRows];
  for (int r = 0; r < x.rows; ++r) most[r] = reduce_max(vload(s.most + r * 16));
  fill(s.total, x.rows, 0.0f);
  core.weigh(x, pages, most, buffer, s.sums, s.total, s.acc);
  finish(a, x, 0, int((a.layout.head_dim + 15) / 16), s.acc, s.total);
}

// Rows of the sequence that lie in `page` of its cache, [begin, end).
inline void rows_of_page(const fp::Attention& a, int64_t s, int64_t page, int64_t& begin, int64_t& end) {
  begin = larger(0, page * fp::kPage - a.past[s]);
  end = smaller(a.starts[s + 1] - a.starts[s], (page + 1) * fp::kPage - a.past[s]);
}

// Pages that the queries of sequence s see: the weight of each of its KV heads.
inline int64_t pages_of(const fp::Attention& a, int64_t s) {
  if (a.starts[s + 1] == a.starts[s]) return 0;
  const Span x = make_span(a, s, 0, 0, 1);
  return (keys_of(a, s) + fp::kPage - 1) / fp::kPage - x.page0;
}

// The plan "apart": contiguous (sequence, KV head) items; an item belongs to the thread in whose share its middle lies.
template <class Core>
void attend_apart(const fp::Attention& a, const fp::Team& team, int64_t total) {
  Core core{a};
  const Scratch scratch = split_scratch(a, team.scratch, 0);
  int64_t before = 0;
  for (int64_t s = 0; s < a.sequences; ++s) {
    const int64_t pages = pages_of(a, s);
    if (pages == 0) continue;
    for (int64_t h = 0; h < a.layout.kv_heads; ++h, before += pages) {
      if ((2 * before + pages) * team.size / (2 * total) != team.tid) continue;
      const Pages cached = cached_pages(a, s, h);
      if (a.keys == fp::Keys::Cached) append(a, s, h, 0, a.starts[s + 1] - a.starts[s], cached);
      attend_span(a, core, make_span(a, s, h, 0, int(query_rows(a, s))), scratch, cached);
    }
  }
}

// All rows into the cache, by all threads.
inline void append_all(const fp::Attention& a, const fp::Team& team) {
  int64_t turn = 0;
  for (int64_t s = 0; s < a.sequences; ++s) {
    const int64_t rows = a.starts[s + 1] - a.starts[s];
    if (rows == 0) continue;
    for (int64_t page = a.past[s] / fp::kPage; page * fp::kPage < a.past[s] + rows; ++page)
      for (int64_t h = 0; h < a.layout.kv_heads; ++h) {
        int64_t begin, end;
        rows_of_page(a, s, page, begin, end);
        if (turn++ % team.size == team.tid) append(a, s, h, begin, end, cached_pages(a, s, h));
      }
  }
}

inline int64_t take(const fp::Attention& a) { return a.taken->fetch_add(1, std::memory_order_relaxed); }

// The plan "together".
template <class Core>
void attend_together(const fp::Attention& a, const fp::Team& team) {
  if (a.keys == fp::Keys::Cached) {
    append_all(a, team);
    team.barrier();
  }
  Core core{a};
  const Scratch scratch = split_scratch(a, team.scratch, 0);
  int64_t mine = take(a), first_item = 0;
  for (int64_t s = 0; s < a.sequences; ++s) {
    const int64_t rows = keys_of(a, s) ? query_rows(a, s) : 0, spans = (rows + Core::kRows - 1) / Core::kRows;
    const int64_t items = spans * a.layout.kv_heads;
    while (mine < first_item + items) {
      const int64_t h = (mine - first_item) / spans, first = (spans - 1 - (mine - first_item) % spans) * Core::kRows;
      const Span x = make_span(a, s, h, first, int(smaller(Core::kRows, rows - first)));
      attend_span(a, core, x, scratch, cached_pages(a, s, h));
      mine = take(a);
    }
    first_item += items;
  }
}

// The plan "by page". Units are (sequence, KV head, page); thread t has units [total * t / size, total * (t+1) / size).
template <class Core>
void attend_by_page(const fp::Attention& a, const fp::Team& team, int64_t total) {
  Core core{a};
  const Scratch scratch = split_scratch(a, team.scratch, 0);
  float* most_of = reinterpret_cast<float*>(team.common);  // [unit][kSpanRows], where a run starts
  float* lines = most_of + total * kSpanRows;              // sums, then scores, of each item
  auto bound = [&](int64_t t) { return total * t / team.size; };
  const int64_t begin = bound(team.tid), end = bound(team.tid + 1);

  // Calls f(span, first unit, pages, sums, scores) for every item.
  auto for_items = [&](auto f) {
    int64_t unit = 0;
    float* at = lines;
    for (int64_t s = 0; s < a.sequences; ++s) {
      const int64_t pages = pages_of(a, s), rows = query_rows(a, s);
      if (pages == 0) continue;
      for (int64_t h = 0; h < a.layout.kv_heads; ++h, unit += pages, at += pages * rows * 5 * 16)
        f(s, h, unit, pages, at, at + pages * rows * 16);
    }
  };

  for_items([&](int64_t s, int64_t h, int64_t unit, int64_t pages, float*, float* scores) {
    const int64_t first = larger(begin, unit), last = smaller(end, unit + pages);
    if (first >= last) return;
    const Span x = make_span(a, s, h, 0, int(query_rows(a, s)));
    const Pages cached = cached_pages(a, s, h);
    core.begin(x);
    core.load_queries(x, scratch.queries);
    fill(scratch.most, x.rows, -__builtin_inff());
    for (int64_t u = first; u < last; ++u) {
      const int64_t page = x.page0 + u - unit;
      if (a.keys == fp::Keys::Cached) {
        int64_t row0, row1;
        rows_of_page(a, s, page, row0, row1);
        if (row0 < row1) append(a, s, h, row0, row1, cached);
      }
      page_scores(a, core, x, page, u + 1 < last, scratch, cached, scores + (u - unit) * 64 * x.rows);
    }
    for (int r = 0; r < x.rows; ++r) most_of[first * kSpanRows + r] = reduce_max(vload(scratch.most + r * 16));
  });
  team.barrier();

  for_items([&](int64_t s, int64_t h, int64_t unit, int64_t pages, float* sums, float* scores) {
    const int64_t first = larger(begin, unit), last = smaller(end, unit + pages);
    if (first >= last) return;
    const Span x = make_span(a, s, h, 0, int(query_rows(a, s)));
    const Pages cached = cached_pages(a, s, h);
    float most[kSpanRows];
    for (int r = 0; r < x.rows; ++r) most[r] = most_of[unit * kSpanRows + r];
    for (int t = 1; t < team.size; ++t)  // the other runs of this item
      if (bound(t) > unit && bound(t) < unit + pages)
        for (int r = 0; r < x.rows; ++r) {
          const float other = most_of[bound(t) * kSpanRows + r];
          most[r] = most[r] > other ? most[r] : other;
        }
    for (int64_t u = first; u < last; ++u) {
      const int64_t page = x.page0 + u - unit;
      core.weights(x, page, cached(page), most, scores + (u - unit) * 64 * x.rows,
                   sums + (u - unit) * 16 * x.rows);
    }
  });
  team.barrier();

  // Values: the weight of a block of sixteen dimensions is its pages; a block belongs where its middle lies.
  const int blocks = int(a.layout.d_pad() / 16);
  for_items([&](int64_t s, int64_t h, int64_t unit, int64_t pages, float* sums, float* scores) {
    int block0 = blocks, block1 = 0;
    for (int b = 0; b < blocks; ++b)
      if ((2 * (unit * blocks + b * pages) + pages) * team.size / (2 * total * blocks) == team.tid) {
        block0 = int(smaller(block0, b));
        block1 = b + 1;
      }
    if (block0 >= block1) return;
    const Span x = make_span(a, s, h, 0, int(query_rows(a, s)));
    core.begin(x);
    core.values(x, block0, block1, cached_pages(a, s, h),
                [&](int64_t page) { return scores + (page - x.page0) * 64 * x.rows; }, scratch.acc);
    fill(scratch.total, x.rows, 0.0f);
    for (int64_t page = 0; page < pages; ++page) accumulate(scratch.total, sums + page * 16 * x.rows, x.rows);
    finish(a, x, block0, block1, scratch.acc, scratch.total);
  });
}
