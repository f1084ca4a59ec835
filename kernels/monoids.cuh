// The monoids: what a partial state is, how two combine, and how a thread lifts elements to one.
//
// Every monoid M has
//   M::State            plain data, laid out as the structured dtype that Python makes of the fields
//   M::identity()       the neutral state
//   M::combine(a, b)    the state of a's elements followed by b's
//   M::Lift             what a thread folds elements into: add(x), then state()
#pragma once

#include "config.cuh"

namespace coop {

template <typename T> struct limits;
#define COOP_LIMITS(T, LOW, HIGH)                     \
  template <> struct limits<T> {                      \
    __device__ static T low() { return LOW; }         \
    __device__ static T high() { return HIGH; }       \
  }
COOP_LIMITS(bool, false, true);
COOP_LIMITS(signed char, -128, 127);
COOP_LIMITS(unsigned char, 0, 255);
COOP_LIMITS(short, -32768, 32767);
COOP_LIMITS(unsigned short, 0, 65535);
COOP_LIMITS(int, -2147483647 - 1, 2147483647);
COOP_LIMITS(unsigned int, 0, 4294967295u);
COOP_LIMITS(i64, -9223372036854775807ll - 1, 9223372036854775807ll);
COOP_LIMITS(u64, 0, 18446744073709551615ull);
COOP_LIMITS(half_t, half_t{0xfc00}, half_t{0x7c00});
COOP_LIMITS(float, -__int_as_float(0x7f800000), __int_as_float(0x7f800000));
COOP_LIMITS(double, -__longlong_as_double(0x7ff0000000000000), __longlong_as_double(0x7ff0000000000000));
#undef COOP_LIMITS

// Integers add in 64 bits, unsigned because those wrap by definition; floats add in float64.
template <typename T> struct accumulator { using type = u64; };
template <> struct accumulator<half_t> { using type = double; };
template <> struct accumulator<float> { using type = double; };
template <> struct accumulator<double> { using type = double; };
template <> struct accumulator<complex_t<float>> { using type = complex_t<double>; };
template <> struct accumulator<complex_t<double>> { using type = complex_t<double>; };

// The float64 (complex128) in which means are taken.
template <typename T> struct floating { using type = double; };
template <typename F> struct floating<complex_t<F>> { using type = complex_t<double>; };

// Folds elements one by one through M::lift, for monoids that need nothing better.
template <typename M, typename T> struct Fold {
  typename M::State folded = M::identity();
  __device__ void add(T x) { folded = M::combine(folded, M::lift(x)); }
  __device__ typename M::State state() const { return folded; }
};

// Lifts states to themselves: the monoid of the second and later levels.
template <typename M> struct Merge {
  using State = typename M::State;
  using Lift = Fold<Merge, State>;
  __device__ static State identity() { return M::identity(); }
  __device__ static State lift(State x) { return x; }
  __device__ static State combine(State a, State b) { return M::combine(a, b); }
};

template <typename T> struct Sum {
  using State = typename accumulator<T>::type;
  using Lift = Fold<Sum, T>;
  __device__ static State identity() { return State{}; }
  __device__ static State lift(T x) { return convert<State>(x); }
  __device__ static State combine(State a, State b) { return a + b; }
};

// NaN wins, as in NumPy.
template <typename T> struct Min {
  using State = T;
  using Lift = Fold<Min, T>;
  __device__ static T identity() { return limits<T>::high(); }
  __device__ static T lift(T x) { return x; }
  __device__ static T combine(T a, T b) { return b < a || is_nan(b) ? b : a; }
};

template <typename T> struct Max {
  using State = T;
  using Lift = Fold<Max, T>;
  __device__ static T identity() { return limits<T>::low(); }
  __device__ static T lift(T x) { return x; }
  __device__ static T combine(T a, T b) { return b > a || is_nan(b) ? b : a; }
};

template <typename T> struct MinMax {
  struct State { T min, max; };
  using Lift = Fold<MinMax, T>;
  __device__ static State identity() { return {Min<T>::identity(), Max<T>::identity()}; }
  __device__ static State lift(T x) { return {x, x}; }
  __device__ static State combine(State a, State b) {
    return {Min<T>::combine(a.min, b.min), Max<T>::combine(a.max, b.max)};
  }
};

template <typename T> struct Mean {
  using F = typename floating<T>::type;
  struct State { F total; i64 count; };
  using Lift = Fold<Mean, T>;
  __device__ static State identity() { return {F{}, 0}; }
  __device__ static State lift(T x) { return {convert<F>(x), 1}; }
  __device__ static State combine(State a, State b) {
    return {a.total + b.total, a.count + b.count};
  }
};

// Count, NaN count, extrema, sum, mean and sum of squared deviations in one read.
// Chan, Golub and LeVeque (1983) combine states. A thread sums deviations from the first element that
// it sees: that is a sample of the data, so the squares cannot cancel by more than its own count.
template <typename T> struct Moments {
  using A = typename accumulator<T>::type;
  struct State {
    i64 count, nans;
    T min, max;
    A total;
    double mean, m2;
  };

  __device__ static State identity() {
    return {0, 0, Min<T>::identity(), Max<T>::identity(), A{}, 0.0, 0.0};
  }

  struct Lift {
    State s = identity();
    double shift = 0, first = 0, second = 0;

    __device__ void add(T x) {
      if (is_nan(x)) {
        ++s.nans;
        return;
      }
      double value = convert<double>(x);
      if (s.count == 0) shift = value;
      ++s.count;
      s.min = x < s.min ? x : s.min;
      s.max = x > s.max ? x : s.max;
      s.total = s.total + convert<A>(x);
      value -= shift;
      first += value;
      second += value * value;
    }
    __device__ State state() const {
      State result = s;
      if (s.count == 0) return result;
      double n = double(s.count);
      // The sum is exact in the mean of an infinity, the deviations are in that of wrapped integers.
      result.mean = is_float<T>::value ? convert<double>(s.total) / n : shift + first / n;
      double m2 = second - first * (first / n);
      result.m2 = m2 < 0 ? 0.0 : m2;
      return result;
    }
  };

  __device__ static State combine(State a, State b) {
    i64 count = a.count + b.count;
    State result = {count,
                    a.nans + b.nans,
                    b.min < a.min ? b.min : a.min,
                    b.max > a.max ? b.max : a.max,
                    a.total + b.total,
                    0.0,
                    0.0};
    if (count == 0) return result;
    double weight = double(b.count) / double(count);
    double delta = b.mean - a.mean;
    result.mean = a.mean * (double(a.count) / double(count)) + b.mean * weight;
    result.m2 = a.m2 + b.m2 + delta * (delta * (double(a.count) * weight));
    return result;
  }
};

}  // namespace coop
