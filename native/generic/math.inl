// exp, tanh and the activations, sixteen lanes at a time, the same bits on every instruction set.

#include "vectors.inl"
#include "gelu.inl"

// e^x: x = n ln2 + r, |r| <= ln2 / 2, a polynomial for e^r of degree six, and n added to the exponent in two halves.
// About 1 ulp; below -87.3 the result is 0 (flushed), above 88.7 infinity; NaN stays NaN.
inline V vexp(V x) {
  const V lowest = vset(-104.0f), highest = vset(89.0f);
  V y = vmin(highest, vmax(lowest, x));  // a NaN in x, the second operand, survives both
  V n = vfrom_i32(vround_i32(vselect_lt(y, highest, vmul(y, vset(1.44269504f)), vset(128.0f))));
  V r = vfma(n, vset(-0.693359375f), y);
  r = vfma(n, vset(2.12194440e-4f), r);
  V p = vset(1.9875691500e-4f);
  p = vfma(p, r, vset(1.3981999507e-3f));
  p = vfma(p, r, vset(8.3334519073e-3f));
  p = vfma(p, r, vset(4.1665795894e-2f));
  p = vfma(p, r, vset(1.6666665459e-1f));
  p = vfma(p, r, vset(5.0000001201e-1f));
  p = vfma(p, vmul(r, r), r);
  p = vadd(p, vset(1.0f));
  I whole = vround_i32(n), half = isar<1>(whole);
  V first = vbits(ishl<23>(iadd(half, iset(127))));
  V second = vbits(ishl<23>(iadd(isub(whole, half), iset(127))));
  return vmul(vmul(p, first), second);
}

inline V vsigmoid(V x) { return vdiv(vset(1.0f), vadd(vset(1.0f), vexp(vsub(vzero(), x)))); }

// tanh: an odd polynomial near zero, where 1 - e^(-2x) would cancel, and the exponential elsewhere.
inline V vtanh(V x) {
  V a = vabs(x), square = vmul(x, x);
  V p = vset(-5.70498872745e-3f);
  p = vfma(p, square, vset(2.06390887954e-2f));
  p = vfma(p, square, vset(-5.37397155531e-2f));
  p = vfma(p, square, vset(1.33314422036e-1f));
  p = vfma(p, square, vset(-3.33332819422e-1f));
  V small = vfma(vmul(p, square), x, x);
  V t = vexp(vmul(a, vset(-2.0f)));
  V large = vdiv(vsub(vset(1.0f), t), vadd(vset(1.0f), t));
  large = vselect_lt(x, vzero(), vsub(vzero(), large), large);
  return vselect_lt(a, vset(0.625f), small, large);
}

// body(the activation as a function of a vector).
template <typename Body>
inline void with_activation(fp::Act act, const Body& body) {
  switch (act) {
    case fp::Act::Silu: return body([](V x) { return vmul(x, vsigmoid(x)); });
    case fp::Act::GeluTanh: return body([](V x) { return gelu(x, kTanhTable); });
    case fp::Act::GeluErf: return body([](V x) { return gelu(x, kNormalTable); });
    case fp::Act::Relu: return body([](V x) { return vmax(x, vzero()); });
    case fp::Act::QuickGelu: return body([](V x) { return vmul(x, vsigmoid(vmul(vset(1.702f), x))); });
    case fp::Act::Tanh: return body([](V x) { return vtanh(x); });
    case fp::Act::None: return body([](V x) { return x; });
  }
}
