// Scans of series with gaps: the last valid element, and exponentially weighted means. None of them commutes.
// dask_coop/algebra/fills.py has the algebra.
#pragma once

#include "monoids.cuh"

namespace coop {

template <typename T> struct Missing {
  __device__ static T value() { return convert<T>(__longlong_as_double(0x7ff8000000000000)); }
};
template <typename F> struct Missing<complex_t<F>> {
  __device__ static complex_t<F> value() { return {Missing<F>::value(), Missing<F>::value()}; }
};

template <typename T> struct Fill {
  using State = T;
  using Lift = OneByOne<Fill, T>;
  __device__ static T identity() { return Missing<T>::value(); }
  __device__ static T lift(T x) { return x; }
  __device__ static T combine(T a, T b) { return is_nan(b) ? a : b; }
};

// A value that is still good, if any, and how many missing ones came behind it, up to one more than the limit.
template <typename T, typename Count> struct Gap {
  T value;
  Count gap;
};
template <typename To, typename T, typename Count>
__device__ To convert(Gap<T, Count> x) {
  if constexpr (is_same<To, Gap<T, Count>>::value) return x;
  else return convert<To>(x.value);
}

template <typename T, typename Count, i64 limit> struct LimitedFill {
  using State = Gap<T, Count>;
  using Lift = OneByOne<LimitedFill, T>;
  __device__ static State identity() { return {Missing<T>::value(), 0}; }
  __device__ static State lift(T x) { return {x, Count(is_nan(x))}; }
  __device__ static State combine(State a, State b) {
    if (!is_nan(b.value)) return b;
    Count gap = a.gap + b.gap;
    return gap > limit ? State{Missing<T>::value(), Count(limit + 1)} : State{a.value, gap};
  }
};

// What is left of a weight is never nothing, or infinities would become NaN.
__device__ inline double decay(double weight, double by) {
  return fmax(weight * by, __longlong_as_double(1));
}

// The mean and the sum of weights as these are at the last valid element, by how much weights decay up to
// there, and by how much behind it.
struct Weighted { double mean, weight, decay, gap; };
template <typename To>
__device__ To convert(Weighted x) {
  if constexpr (is_same<To, Weighted>::value) return x;
  else return x.weight > 0 ? convert<To>(x.mean) : Missing<To>::value();
}

// A step leaves 1 - alpha of a weight; alpha comes by its bits. With `skip` missing elements are no steps.
template <typename T, i64 alpha, bool skip> struct WeightedMean {
  using State = Weighted;
  using Lift = OneByOne<WeightedMean, T>;
  __device__ static State identity() { return {0, 0, 1, 1}; }
  __device__ static State lift(T x) {
    double by = 1 - __longlong_as_double(alpha);
    return is_nan(x) ? State{0, 0, skip ? 1 : by, 1} : State{convert<double>(x), 1, by, 1};
  }
  __device__ static State combine(State a, State b) {
    double between = a.gap * b.decay;
    if (a.weight == 0) return {b.mean, b.weight, a.decay * between, b.gap};
    if (b.weight == 0) return {a.mean, a.weight, a.decay, between};
    double before = decay(a.weight, between), weight = before + b.weight;
    double mean = a.mean == b.mean ? a.mean : (before * a.mean + b.weight * b.mean) / weight;
    return {mean, weight, a.decay * between, b.gap};
  }
};

// What the first valid element, which has a weight of its own, makes of a mean before it: shared * that +
// rest is the mean behind the last. `lead` is how weights decay up to the first, `weight` what a gap has left.
struct Recursive { double first, shared, rest, lead, weight; };
template <typename To>
__device__ To convert(Recursive x) {
  if constexpr (is_same<To, Recursive>::value) return x;
  else return x.shared > 0 ? convert<To>(x.shared * x.first + x.rest) : Missing<To>::value();
}

template <typename T, i64 alpha, bool skip> struct RecursiveMean {
  using State = Recursive;
  using Lift = OneByOne<RecursiveMean, T>;
  __device__ static State identity() { return {0, 0, 0, 1, 0}; }
  __device__ static State lift(T x) {
    double by = 1 - __longlong_as_double(alpha);
    return is_nan(x) ? State{0, 0, 0, skip ? 1 : by, 0} : State{convert<double>(x), 1, 0, by, 1};
  }
  __device__ static State combine(State a, State b) {
    if (a.shared == 0) return {b.first, b.shared, b.rest, a.lead * b.lead, b.weight};
    double before = decay(a.weight, b.lead);
    if (b.shared == 0) return {a.first, a.shared, a.rest, a.lead, before};
    double share = before / (before + __longlong_as_double(alpha));
    double rest = b.shared * (share * a.rest + (1 - share) * b.first) + b.rest;
    return {a.first, decay(a.shared, share * b.shared), rest, a.lead, b.weight};
  }
};

}  // namespace coop
