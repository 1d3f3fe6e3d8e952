// Going through a row one vector at a time. Included inside an anonymous namespace, after a simd header.

// A whole vector of a row, or the first `left` lanes of its last one.
struct WholeVector {
  V load(const float* p) const { return vload(p); }
  void store(float* p, V x) const { vstore(p, x); }
  V select(V x, V) const { return x; }
};
struct PartVector {
  int left;
  V load(const float* p) const { return vload_n(p, left); }
  void store(float* p, V x) const { vstore_n(p, x, left); }
  V select(V x, V other) const { return vselect_first(left, x, other); }
};
// body(i, lanes) for the vectors from i = 0, 16, ... of k values.
template <typename Body>
inline void each_vector(int64_t k, const Body& body) {
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) body(i, WholeVector{});
  if (i < k) body(i, PartVector{int(k - i)});
}
