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
