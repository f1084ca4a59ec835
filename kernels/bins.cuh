// Which bin a sample belongs to: the last whose left edge is not above it; the last bin is closed on the
// right. Samples outside, and NaN, get a bin that is at least n.
#pragma once

#include "config.cuh"

namespace coop {

// What turns a number into an integer by addition: the integer is in the low bits of the sum.
template <typename G> struct Magic;
template <> struct Magic<float> {
  static constexpr float floor = 8388608.0f, nearest = 12582912.0f;
  static __device__ int bits(float x) { return __float_as_int(x); }
  static __device__ float add_down(float a, float b) { return __fadd_rd(a, b); }
  static __device__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
};
template <> struct Magic<double> {
  static constexpr double floor = 4503599627370496.0, nearest = 6755399441055744.0;
  static __device__ int bits(double x) { return int(__double_as_longlong(x)); }
  static __device__ double add_down(double a, double b) { return __dadd_rd(a, b); }
  static __device__ double fused(double a, double b, double c) { return __fma_rn(a, b, c); }
};

// Edges as numpy.linspace makes them, i * step + start in float64, rounded to E; the last is `high`.
template <typename E> struct LinearEdges {
  int n;
  E low, high;
  double step, start;

  __device__ E edge(int i) const {
    double index = __longlong_as_double(0x4330000000000000ll | unsigned(i)) - 4503599627370496.0;
    return i == n ? high : E(__dadd_rn(__dmul_rn(index, step), start));
  }
  // The bin of v, where the edge nearest to it is the i-th.
  __device__ unsigned beside(E v, int i) const {
    i -= v < edge(i);
    i -= i == n;
    return v >= low && v <= high ? unsigned(i) : ~0u;
  }
};

// Samples are compared with the nearest edge, always. |(v - low) * scale - place| < 1/2 must hold for the
// place of every v among the edges, and n < 2^22 where G is float.
template <typename E, typename G> struct NearestBins : LinearEdges<E> {
  G origin, scale;

  template <typename T> __device__ unsigned find(T sample) const {
    E v = convert<E>(sample);
    G t = (G(v) - origin) * scale;
    G sum = t + Magic<G>::nearest;
    return this->beside(v, Magic<G>::bits(sum) - Magic<G>::bits(Magic<G>::nearest));
  }
};

// The bin comes from arithmetic, and only samples within 1/2 - sure bins of an edge are compared with it.
// scale + scale_low is the number of bins a unit, so that the place in a bin has no rounding to speak of.
template <typename E> struct GuessedBins : LinearEdges<E> {
  E scale, scale_low, sure;

  template <typename T> __device__ unsigned find(T sample) const {
    using M = Magic<E>;
    E v = convert<E>(sample), distance = v - this->low;
    // The low bits that make up the bin are not all the bits of a double.
    if (sizeof(E) == 8 && !(v >= this->low && v <= this->high)) return ~0u;
    E sum = M::add_down(distance * scale, M::floor);
    int bin = M::bits(sum) - M::bits(M::floor);
    E place = M::fused(distance, scale, M::floor - sum) + distance * scale_low;
    E off = place - E(0.5);
    if ((off < 0 ? -off : off) < sure) return unsigned(bin);
    return this->beside(v, bin + (off > 0));
  }
};

// Any ascending edges, in global memory.
template <typename E> struct SearchedBins {
  int n;
  E low, high;
  const E* edges;

  template <typename T> __device__ unsigned find(T sample) const {
    E v = convert<E>(sample);
    if (!(v >= low && v <= high)) return ~0u;
    int first = 0, last = n - 1;
    while (first < last) {
      int middle = (first + last + 1) / 2;
      if (v >= edges[middle]) first = middle;
      else last = middle - 1;
    }
    return unsigned(first);
  }
};

}  // namespace coop
