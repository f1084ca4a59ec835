// Sums whose bits depend on the elements alone, not on their order nor on how they are grouped: digits of
// fixed weights, after J. Demmel and H. D. Nguyen, "Parallel Reproducible Summation", IEEE Transactions on
// Computers 64 (2015). algebra/reproducible.py says how; chunks/numpy/reproducible.py finds the same digits.
#pragma once

#include "monoids.cuh"

namespace coop {

// A sum: digits[k] counts units of 2^(24 (exponent - 1 - k)).
struct Digits {
  static constexpr int kept = 4;
  i64 exponent = -41;
  i64 digits[kept] = {};

  // Aligns the digits with a higher exponent; those that fall off the end are dropped.
  __device__ void raise(int to) {
    int steps = to - int(exponent);
    exponent = to;
    if (steps > kept) steps = kept;
#pragma unroll 1
    for (; steps > 0; --steps) {
#pragma unroll
      for (int k = kept - 1; k > 0; --k) digits[k] = digits[k - 1];
      digits[0] = 0;
    }
  }
  __device__ static Digits add(Digits a, Digits b) {
    int exponent = int(a.exponent > b.exponent ? a.exponent : b.exponent);
    a.raise(exponent);
    b.raise(exponent);
#pragma unroll
    for (int k = 0; k < kept; ++k) a.digits[k] += b.digits[k];
    return a;
  }
};

// Takes the digits of elements of the float type F and adds them up.
template <typename F> struct Digitizer {
  using Wide = decltype(F() + 0.0f);  // in which F has a magnitude: float for half_t
  // No bit of a float16 is below the second digit.
  static constexpr int folds = is_same<F, half_t>::value ? 2 : Digits::kept;

  Digits sum;
  double scale;        // 2^(-24 (exponent - 1)), which makes units of 1, 2^-24, 2^-48 and 2^-72
  Wide limit;          // from here on elements have a higher exponent
  double special = 0;  // the sum of what is not finite

  __device__ Digitizer() { settle(); }

  __device__ void add(F x) {
    double value = convert<double>(x);
    if (__builtin_expect(!(magnitude(Wide(x)) < limit), 0)) {
      int field = __double2hiint(value) >> 20 & 0x7ff;
      if (field == 0x7ff) {
        special += value;
        value = 0;
      } else {
        sum.raise((field + 10) / 24 - 42);
        settle();
      }
    }
    // Adding 1.5 * 2^52 units rounds to whole ones, half to even, and leaves their number in the low
    // bits. The product with the scale is exact wherever it is large enough to be seen.
    double rest = 0;
#pragma unroll
    for (int k = 0; k < folds; ++k) {
      const i64 bits = (0x433ll - 24 * k << 52) + (1ll << 51);
      const double shift = __longlong_as_double(bits);
      double shifted = k == 0 ? __fma_rn(value, scale, shift) : __dadd_rn(rest, shift);
      double digit = __dsub_rn(shifted, shift);
      rest = k == 0 ? __fma_rn(value, scale, -digit) : __dsub_rn(rest, digit);
      sum.digits[k] += __double_as_longlong(shifted) - bits;
    }
  }

 private:
  __device__ static float magnitude(float x) { return fabsf(x); }
  __device__ static double magnitude(double x) { return fabs(x); }

  __device__ void settle() {
    int power = 24 * int(sum.exponent), field = 1023 + power - 1;
    scale = __hiloint2double((1023 + 24 - power) << 20, 0);
    double bound = __hiloint2double((field < 0x7ff ? field : 0x7ff) << 20, 0);
    limit = Wide(bound);
    // Not zero, so that zeros pass.
    if constexpr (is_same<Wide, float>::value) limit = fmaxf(limit, __int_as_float(1));
  }
};

template <typename T> struct ReproducibleSum {
  struct State {
    double special;
    Digits sum;
  };
  __device__ static State identity() { return {0.0, {}}; }
  struct Lift {
    Digitizer<T> seen;
    __device__ void add(T x, int) { seen.add(x); }
    __device__ State state(i64) const { return {seen.special, seen.sum}; }
  };
  __device__ static State combine(State a, State b) {
    return {a.special + b.special, Digits::add(a.sum, b.sum)};
  }
};

template <typename F> struct ReproducibleSum<complex_t<F>> {
  struct State {
    complex_t<double> special;
    Digits re, im;
  };
  __device__ static State identity() { return {{}, {}, {}}; }
  struct Lift {
    Digitizer<F> re, im;
    __device__ void add(complex_t<F> x, int) {
      re.add(x.re);
      im.add(x.im);
    }
    __device__ State state(i64) const { return {{re.special, im.special}, re.sum, im.sum}; }
  };
  __device__ static State combine(State a, State b) {
    return {a.special + b.special, Digits::add(a.re, b.re), Digits::add(a.im, b.im)};
  }
};

// That, and the number of elements.
template <typename T> struct ReproducibleMean {
  using Sum = ReproducibleSum<T>;
  struct State {
    typename Sum::State sum;
    i64 count;
  };
  __device__ static State identity() { return {Sum::identity(), 0}; }
  struct Lift {
    typename Sum::Lift sum;
    unsigned count = 0;
    __device__ void add(T x, int i) {
      sum.add(x, i);
      ++count;
    }
    __device__ State state(i64 first) const { return {sum.state(first), count}; }
  };
  __device__ static State combine(State a, State b) {
    return {Sum::combine(a.sum, b.sum), a.count + b.count};
  }
};

}  // namespace coop
