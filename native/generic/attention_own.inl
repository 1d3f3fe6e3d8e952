// The plan "own", for keys that nobody keeps (Own, Context). An item is a (sequence, KV head), of a long one a part of its
// query rows.

constexpr int64_t kOwnPart = 256;  // query rows below which no second thread appends for itself

struct OwnItem {
  int64_t s = 0, first = 0;  // its sequence, and the number of that one's first item
  int64_t head = 0, part = 0, parts = 1;

  // Becomes item `number`, which is not below the one that it was; false if there are not so many.
  bool seek(const fp::Attention& a, const fp::Team& team, int64_t number) {
    for (;; ++s) {
      if (s >= a.sequences) return false;
      parts = larger(1, smaller(team.size, query_rows(a, s) / kOwnPart));
      if (number < first + parts * a.layout.kv_heads) break;
      first += parts * a.layout.kv_heads;
    }
    head = (number - first) / parts;
    part = (number - first) % parts;
    return true;
  }
};

// Values that no row sees count as zero times what stands there, so it must be numbers up to the end of the last 32
// positions of a text. append_block has written whole blocks of 16.
inline void clear_after(const fp::Attention& a, int64_t keys, uint8_t* page) {
  const int64_t used = keys % fp::kPage, page_bytes = a.layout.page_bytes(), blocks = a.layout.d_pad() / 16;
  if (used == 0) return;
  if (a.layout.type == fp::KvType::INT8) {
    std::memset(page + page_bytes, 0, size_t(a.layout.head_bytes() - page_bytes));
    return;
  }
  const int64_t written = (used + 15) / 16 * 16, line = page_bytes / fp::kPage / blocks;  // bytes of a position
  for (int64_t b = 0; b < blocks && written % 32; ++b)
    std::memset(page + page_bytes + (b * fp::kPage + written) * line, 0, size_t(16 * line));
}

template <class Core>
void attend_own(const fp::Attention& a, const fp::Team& team) {
  int64_t longest = 0;
  for (int64_t s = 0; s < a.sequences; ++s) longest = larger(longest, keys_of(a, s));
  Core core{a};
  const Scratch scratch = split_scratch(a, team.scratch, longest);
  const Pages pages{scratch.pages, a.layout.head_bytes(), nullptr};
  for (OwnItem item; item.seek(a, team, take(a));) {
    const int64_t keys = keys_of(a, item.s), rows = query_rows(a, item.s);
    if (keys == 0) continue;
    const int64_t spans = (rows + Core::kRows - 1) / Core::kRows;
    const int64_t begin = spans * item.part / item.parts, end = spans * (item.part + 1) / item.parts;
    auto span = [&](int64_t i) {
      return make_span(a, item.s, item.head, i * Core::kRows, int(smaller(Core::kRows, rows - i * Core::kRows)));
    };
    const int64_t seen = span(begin).page0, seen_to = span(end - 1).page1;
    clear_after(a, keys, pages((keys - 1) / fp::kPage));
    append(a, item.s, item.head, seen * fp::kPage, smaller(keys, seen_to * fp::kPage), pages);
    asm volatile("" ::: "memory");  // tile loads do not say that they read memory
    for (int64_t i = begin; i < end; ++i) attend_span(a, core, span(i), scratch, pages);
  }
}

// Rows that see nothing are zero.
inline void clear_blind(const fp::Attention& a, const fp::Team& team) {
  const int64_t width = a.heads * a.layout.head_dim;
  for (int64_t s = team.tid; s < a.sequences; s += team.size)
    if (keys_of(a, s) == 0)
      std::memset(a.out + a.starts[s] * width, 0, size_t((a.starts[s + 1] - a.starts[s]) * width * 4));
}

template <class Core>
void attend(const fp::Attention& a, const fp::Team& team) {
  if (a.keys == fp::Keys::Source || a.keys == fp::Keys::Context) clear_blind(a, team);
  if (!a.keeps()) return attend_own<Core>(a, team);
  int64_t total = 0, longest = 0, context = 0;
  bool few_rows = true;
  for (int64_t s = 0; s < a.sequences; ++s) {
    const int64_t pages = pages_of(a, s);
    total += pages * a.layout.kv_heads;
    longest = larger(longest, pages);
    context = larger(context, keys_of(a, s));
    few_rows = few_rows && query_rows(a, s) <= Core::kRows;
  }
  if (total == 0) return;
  if (!few_rows) return attend_together<Core>(a, team);
  // One item must not be more than an eighth of a thread's share.
  const bool uneven = team.size > 1 && longest >= kByPageLeast && longest * team.size * 8 > total;
  if (uneven && by_page_bytes(a, a.starts[a.sequences], context) <= kByPageBytes)
    return attend_by_page<Core>(a, team, total);
  attend_apart<Core>(a, team, total);
}
