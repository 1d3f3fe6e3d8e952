// exp, tanh, erf and the activations, sixteen lanes at a time, the same bits on every instruction set.

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

// erf: Abramowitz and Stegun 7.1.26 is too coarse for float32 parity; this is a series near zero and
// 1 - e^(-x^2) * (a polynomial in 1 / (1 + x/2)) elsewhere (Numerical Recipes, erfc by Chebyshev fit, 1.2e-7).
inline V verf(V x) {
  V a = vabs(x), square = vmul(x, x);
  V s = vset(-8.5483270e-4f);
  s = vfma(s, square, vset(5.2239776e-3f));
  s = vfma(s, square, vset(-2.6866170e-2f));
  s = vfma(s, square, vset(1.1283792e-1f));
  s = vfma(s, square, vset(-3.7612639e-1f));
  s = vfma(s, square, vset(1.1283792f));
  V small = vmul(s, x);
  V t = vdiv(vset(1.0f), vfma(a, vset(0.5f), vset(1.0f)));
  V p = vset(0.17087277f);
  p = vfma(p, t, vset(-0.82215223f));
  p = vfma(p, t, vset(1.48851587f));
  p = vfma(p, t, vset(-1.13520398f));
  p = vfma(p, t, vset(0.27886807f));
  p = vfma(p, t, vset(-0.18628806f));
  p = vfma(p, t, vset(0.09678418f));
  p = vfma(p, t, vset(0.37409196f));
  p = vfma(p, t, vset(1.00002368f));
  p = vfma(p, t, vset(-1.26551223f));
  V tail = vmul(t, vexp(vsub(p, square)));
  V large = vsub(vset(1.0f), tail);
  large = vselect_lt(x, vzero(), vsub(vzero(), large), large);
  return vselect_lt(a, vset(0.5f), small, large);
}

inline V activate(fp::Act act, V x) {
  switch (act) {
    case fp::Act::Silu: return vmul(x, vsigmoid(x));
    case fp::Act::GeluTanh: {
      V cube = vmul(vmul(x, x), x);
      V inner = vmul(vset(0.7978845608f), vfma(cube, vset(0.044715f), x));
      return vmul(vmul(vset(0.5f), x), vadd(vset(1.0f), vtanh(inner)));
    }
    case fp::Act::GeluErf: return vmul(vmul(vset(0.5f), x), vadd(vset(1.0f), verf(vmul(x, vset(0.7071067812f)))));
    case fp::Act::Relu: return vmax(x, vzero());
    case fp::Act::QuickGelu: return vmul(x, vsigmoid(vmul(vset(1.702f), x)));
    case fp::Act::Tanh: return vtanh(x);
    case fp::Act::None: break;
  }
  return x;
}

// Not inline: one copy of its code serves all products.
[[gnu::noinline]] void activate_some(fp::Act act, V* y, int count) {
  for (int j = 0; j < count; ++j) y[j] = activate(act, y[j]);
}
