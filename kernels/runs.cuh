// What a thread of a scan makes of its own neighbouring elements, and what warps and blocks hand to one another.
#pragma once

#include "compensated.cuh"

namespace coop {

// The monoid of what is handed on, M itself as a rule, and a state of it.
template <typename M> struct Held {
  using Monoid = M;
  __device__ static typename M::State hold(typename M::State s) { return s; }
};
template <typename T> struct Held<LogAddExp<T>> {
  using Monoid = LogSums<T>;
  __device__ static LogSum hold(double s) { return LogSum(s); }
};

// vt elements, by set(i, x) for each i in turn; then their total; then f(i, result) for each, behind a state. P is
// the monoid within.
template <typename P, typename T, int vt> struct Run {
  using Narrow = typename P::State;
  // Whether results R of a warp can be had without the totals of its threads, mostly.
  template <typename R> static constexpr bool is_quick = false;
  Narrow states[vt];

  __device__ void set(int i, T x) { states[i] = i ? P::combine(states[i - 1], P::lift(x)) : P::lift(x); }
  __device__ Narrow total() { return states[vt - 1]; }
  template <typename W, typename R, bool exclusive, typename F>
  __device__ void results(typename W::State start, F f) const {
    start = W::ready(start);
#pragma unroll
    for (int i = 0; i < vt; ++i) {
      f(i, exclusive && i == 0 ? convert<R>(start)
                               : W::template result<R>(start, states[i - (exclusive && i > 0)]));
    }
  }
};

// Exponentials are taken from the run's own maximum, once for the total and the results. What comes before is
// less than that by `apart` at most, or the elements are walked one by one.
template <typename T, int vt> struct Run<LogSums<T>, T, vt> {
  static constexpr double apart = 20;
  template <typename R> static constexpr bool is_quick = sizeof(T) < 8 && sizeof(R) < 8;
  T elements[vt];
  double sums[vt], peak;

  __device__ void set(int i, T x) { elements[i] = x; }
  __device__ LogSum total() {
    T most = elements[0];
#pragma unroll
    for (int i = 1; i < vt; ++i) most = NanMax<T>::combine(most, elements[i]);
    peak = convert<double>(most);
    double sum = 0;
#pragma unroll
    for (int i = 0; i < vt; ++i) {
      double x = convert<double>(elements[i]);
      sums[i] = sum += exponential(x == peak ? 0.0 : x - peak);
    }
    return {peak, sum};
  }

  // Gives the results of a warp, of which all elements together are so little beside what comes before that
  // float32 is good enough for what they add; returns whether they are.
  template <typename R, bool exclusive, typename F> __device__ bool quick_results(LogSum start, F f) const {
    double before = start.log();
    float high = float(before), rest = float(before - high), added[vt], sum = 0;
#pragma unroll
    for (int i = 0; i < vt; ++i) {
      float power = (convert<float>(elements[i]) - high - rest) * 1.44269504f, term;
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(term) : "f"(power));
      added[i] = sum += term;
    }
    int lane = threadIdx.x % warp_size;
#pragma unroll
    for (int offset = 1; offset < warp_size; offset *= 2) {
      float other = __shfl_up_sync(full_mask, sum, offset);
      if (lane >= offset) sum += other;
    }
    float all = __shfl_sync(full_mask, sum, warp_size - 1), first = __shfl_up_sync(full_mask, sum, 1);
    if (!(all <= 0.25f && all * 256 <= fabsf(high))) return false;
    if (lane == 0) first = 0;
#pragma unroll
    for (int i = 0; i < vt; ++i) {
      float x = exclusive && i == 0 ? first : first + added[i - (exclusive && i > 0)];
      // The logarithm of 1 + x.
      float p = fmaf(-0.09216756f, x, 0.18159555f);
      p = fmaf(p, x, -0.24775615f);
      p = fmaf(p, x, 0.333206f);
      p = fmaf(p, x, -0.4999973f);
      f(i, convert<R>(high + (rest + fmaf(p * x, x, x))));
    }
    return true;
  }

  template <typename W, typename R, bool exclusive, typename F>
  __device__ void results(LogSum start, F f) const {
    double before = start.log();
    if (__all_sync(full_mask, peak - before <= apart)) {
      double factor = exponential(peak - before);
#pragma unroll
      for (int i = 0; i < vt; ++i) {
        double sum = exclusive ? (i ? sums[i - (i > 0)] : 0.0) : sums[i];
        f(i, convert<R>(before + logarithm(fma(sum, factor, 1.0))));
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < vt; ++i) {
      LogSum after = LogSums<T>::combine(start, LogSums<T>::lift(elements[i]));
      f(i, convert<R>(exclusive ? start : after));
      start = after;
    }
  }
};

}  // namespace coop
