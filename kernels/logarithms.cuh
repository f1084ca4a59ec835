// Logarithms of sums of exponentials, in float64.
//
// What is known of some elements is their maximum, the peak, and the sum of the exponentials of their differences
// from it, which is at least 1: an element adds to it, or is the next peak, and the sum shrinks by as much as that is
// above the one before. So an element costs one exponential and a result one logarithm. Infinities are peaks as other
// elements are; a NaN makes the sum one.
//
// Exponentials and logarithms are polynomials, without branches, so that those of several elements are computed at a
// time. They are good to some roundings.
#pragma once

#include "config.cuh"

namespace coop {

// Adding it turns a number into an integer, in the low bits of the sum.
constexpr double to_integer = 6755399441055744.0;

// The exponential of what is at most 700; where it is less than e^-700, that.
__device__ inline double exponential(double x) {
  x = x < -700.0 ? -700.0 : x;
  double shifted = fma(x, 1.4426950408889634, to_integer), whole = shifted - to_integer;
  double r = fma(x, 1.4426950408889634, -whole);
  double p = 4.4549605981865186e-10;
  p = fma(p, r, 7.072585949269223e-09);
  p = fma(p, r, 1.0178062445845774e-07);
  p = fma(p, r, 1.321544258792169e-06);
  p = fma(p, r, 1.525273382983612e-05);
  p = fma(p, r, 0.0001540353044173605);
  p = fma(p, r, 0.0013333558146416936);
  p = fma(p, r, 0.009618129107606888);
  p = fma(p, r, 0.0555041086648216);
  p = fma(p, r, 0.24022650695910097);
  p = fma(p, r, 0.6931471805599453);
  p = fma(p, r, 1.0);
  return p * __hiloint2double((__double2loint(shifted) + 1023) << 20, 0);
}

// The logarithm of a positive number, or of NaN; of 0 some number.
__device__ inline double logarithm(double x) {
  int high = __double2hiint(x), power = (high - 0x3fe6a09e) >> 20;
  double m = __hiloint2double(high - (power << 20), __double2loint(x)), sum = m + 1.0, y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(sum));
  double e = fma(-sum, y, 1.0);
  y = fma(y, fma(e, e, e), y);
  // log(m) = 2 atanh(t).
  double t = (m - 1.0) * y, u = t * t;
  double q = 0.14616449685043406;
  q = fma(q, u, 0.15331721600556042);
  q = fma(q, u, 0.18182889125261723);
  q = fma(q, u, 0.2222221113479508);
  q = fma(q, u, 0.28571428625975487);
  q = fma(q, u, 0.39999999999899505);
  q = fma(q, u, 0.666666666666667);
  // The power as a float64, or NaN.
  int begin = unsigned(high) < 0x7ff00000 ? 0x43300000 : 0x7ff80000;
  double whole = __hiloint2double(begin, power ^ 0x80000000) - 4503601774854144.0;
  return fma(whole, 0.6931471805599453, fma(t * u, q, t + t));
}

struct LogSum {
  double peak, sum;

  LogSum() = default;
  __device__ LogSum(double peak, double sum) : peak(peak), sum(sum) {}
  // Of what is a logarithm already.
  __device__ explicit LogSum(double log) : peak(log == log ? log : -__longlong_as_double(0x7ff0000000000000)), sum(log == log ? 1.0 : log) {}

  __device__ double log() const { return peak + logarithm(sum); }
};
template <typename To>
__device__ To convert(LogSum x) {
  if constexpr (is_same<To, LogSum>::value) return x;
  else return convert<To>(x.log());
}

__device__ inline LogSum operator+(LogSum a, LogSum b) {
  // Equal infinities have no difference.
  double apart = a.peak == b.peak ? 0.0 : a.peak - b.peak, shrunk = exponential(-fabs(apart));
  return apart < 0 ? LogSum{b.peak, fma(a.sum, shrunk, b.sum)} : LogSum{a.peak, fma(b.sum, shrunk, a.sum)};
}

}  // namespace coop
