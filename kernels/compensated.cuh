// Sums in float64 that keep what additions round off.
#pragma once

#include "fills.cuh"

namespace coop {

// A total, whose additions were rounded, and by how much it is above the exact one.
template <typename A> struct Sums { A total, excess; };

// Adds b to a, and what that has too much to `excess`: D. E. Knuth, "The Art of Computer Programming",
// volume 2, theorem 4.2.2 B. Where the sum is not finite, the excess becomes NaN.
__device__ inline double add(double a, double b, double& excess) {
  double total = a + b, added = total - a;
  excess += (added - b) + ((total - added) - a);
  return total;
}
__device__ inline complex_t<double> add(complex_t<double> a, complex_t<double> b,
                                        complex_t<double>& excess) {
  return {add(a.re, b.re, excess.re), add(a.im, b.im, excess.im)};
}

__device__ inline double settle(double total, double excess) {
  double exact = total - excess;
  return is_finite(exact) ? exact : total;
}
__device__ inline complex_t<double> settle(complex_t<double> total, complex_t<double> excess) {
  return {settle(total.re, excess.re), settle(total.im, excess.im)};
}
template <typename To, typename A>
__device__ To convert(Sums<A> x) {
  if constexpr (is_same<To, Sums<A>>::value) return x;
  else return convert<To>(settle(x.total, x.excess));
}

// The sum as if in twice the precision of float64, rounded once.
template <typename T> struct CompensatedSum {
  using A = typename accumulator<T>::type;
  using State = Sums<A>;
  struct Lift {
    State sum = identity();
    __device__ void add(T x, int) {
      // Of elements with half the bits, float64 holds what one thread adds up.
      if constexpr (sizeof(T) < sizeof(A)) sum.total = sum.total + convert<A>(x);
      else sum.total = coop::add(sum.total, convert<A>(x), sum.excess);
    }
    __device__ State state(i64) const { return sum; }
  };
  __device__ static State identity() { return {A{}, A{}}; }
  __device__ static State lift(T x) { return {convert<A>(x), A{}}; }
  __device__ static State combine(State a, State b) {
    A excess = a.excess + b.excess;
    A total = add(a.total, b.total, excess);
    return {total, excess};
  }
};

template <typename T> struct CompensatedMean {
  using Sum = CompensatedSum<T>;
  struct State {
    typename Sum::A total, excess;
    i64 count;
  };
  struct Lift {
    typename Sum::Lift sum;
    // A thread reads far fewer than 2^32 elements.
    unsigned count = 0;
    __device__ void add(T x, int i) {
      sum.add(x, i);
      ++count;
    }
    __device__ State state(i64) const { return {sum.sum.total, sum.sum.excess, count}; }
  };
  __device__ static State identity() { return {typename Sum::A{}, typename Sum::A{}, 0}; }
  __device__ static State combine(State a, State b) {
    auto sum = Sum::combine({a.total, a.excess}, {b.total, b.excess});
    return {sum.total, sum.excess, a.count + b.count};
  }
};

// Count, mean, sum of squared deviations, and the rounding error of the mean, which far from zero is as large as
// small deviations.
template <typename T> struct CompensatedVar {
  using F = typename floating<T>::type;
  struct State {
    i64 count;
    F mean;
    double m2;
    F rounding;
  };
  __device__ static State identity() { return {0, F{}, 0.0, F{}}; }

  struct Lift {
    Deviations<F> seen;
    __device__ void add(T x, int) { seen.add(convert<F>(x)); }
    __device__ State state(i64) const {
      if (seen.count == 0) return identity();
      F excess{}, mean = coop::add(seen.shift, seen.rest(), excess);
      return {seen.count, mean, seen.m2(), scale(excess, -1)};
    }
  };

  __device__ static State combine(State a, State b) {
    if (a.count == 0) return b;
    if (b.count == 0) return a;
    i64 count = a.count + b.count;
    double fraction = double(b.count) / double(count);
    F apart = (b.mean + scale(a.mean, -1)) + (b.rounding + scale(a.rounding, -1));
    F excess{}, mean = coop::add(a.mean, a.rounding + scale(apart, fraction), excess);
    // This order keeps the square from overflowing while the result does not.
    double between = dot(apart, scale(apart, double(a.count) * fraction));
    return {count, mean, a.m2 + b.m2 + between, scale(excess, -1)};
  }
};

// A monoid P for what is short beside the sum that it goes to, and how its states get there. That is M
// itself, unless M is compensated: then plain sums will do, on top of one that is good to twice as many bits.
template <typename M> struct Within {
  using P = M;
  using State = typename M::State;
  static constexpr bool same = true;
  __device__ static State narrow(State s) { return s; }
  __device__ static State after(State before, State within) { return M::combine(before, within); }
  __device__ static State widen(State within) { return within; }
  // What `result` takes for the state before.
  __device__ static State ready(State before) { return before; }
  template <typename R> __device__ static R result(State before, State within) {
    return convert<R>(M::combine(before, within));
  }

  // Some elements in turn, behind a state and what comes before them within the tile.
  struct Walk {
    State so_far;
    __device__ explicit Walk(State before) : so_far(before) {}
    __device__ Walk(State before, State within) : so_far(M::combine(before, within)) {}
    __device__ void add(State own) { so_far = M::combine(so_far, own); }
    __device__ State state() const { return so_far; }
    template <typename R> __device__ R result() const { return convert<R>(so_far); }
  };
};

__device__ inline double or_zero(double x) { return is_finite(x) ? x : 0; }
__device__ inline complex_t<double> or_zero(complex_t<double> x) { return {or_zero(x.re), or_zero(x.im)}; }
__device__ inline double add_exact(double total, double excess, double within) {
  return (within - excess) + total;
}
__device__ inline complex_t<double> add_exact(complex_t<double> total, complex_t<double> excess,
                                              complex_t<double> within) {
  return {add_exact(total.re, excess.re, within.re), add_exact(total.im, excess.im, within.im)};
}

template <typename M, typename Plain> struct WithinSums {
  using P = Plain;
  using State = typename M::State;
  using Narrow = typename P::State;
  static constexpr bool same = false;
  __device__ static Narrow narrow(State s) { return settle(s.total, s.excess); }
  __device__ static State widen(Narrow within) { return {within, Narrow{}}; }
  __device__ static State after(State before, Narrow within) { return M::combine(before, widen(within)); }
  // Where a sum is not finite, its total is the result.
  __device__ static State ready(State before) { return {before.total, or_zero(before.excess)}; }
  template <typename R> __device__ static R result(State before, Narrow within) {
    return convert<R>(add_exact(before.total, before.excess, within));
  }

  struct Walk {
    State before;
    Narrow within;
    __device__ explicit Walk(State before) : Walk(before, P::identity()) {}
    __device__ Walk(State before, Narrow within) : before(ready(before)), within(within) {}
    __device__ void add(Narrow own) { within = P::combine(within, own); }
    __device__ State state() const { return after(before, within); }
    template <typename R> __device__ R result() const { return WithinSums::result<R>(before, within); }
  };
};
// A call, as log_add_exp is.
__device__ __noinline__ inline LogSum log_sum(LogSum a, LogSum b) { return a + b; }

// Logarithms of sums, within: the sums.
template <typename T> struct LogSums {
  using State = LogSum;
  __device__ static LogSum identity() { return {limits<double>::low(), 0.0}; }
  __device__ static LogSum lift(T x) { return LogSum(convert<double>(x)); }
  __device__ static LogSum combine(LogSum a, LogSum b) { return log_sum(a, b); }
};
template <typename T> struct Within<LogAddExp<T>> {
  using P = LogSums<T>;
  using State = double;
  static constexpr bool same = false;
  __device__ static LogSum narrow(double s) { return LogSum(s); }
  __device__ static double widen(LogSum within) { return within.log(); }
  __device__ static double after(double before, LogSum within) { return (LogSum(before) + within).log(); }
  __device__ static double ready(double before) { return before; }
  template <typename R> __device__ static R result(double before, LogSum within) {
    return convert<R>(after(before, within));
  }

  struct Walk {
    LogSum so_far;
    __device__ explicit Walk(double before) : so_far(LogSum(before)) {}
    __device__ Walk(double before, LogSum within) : so_far(LogSum(before) + within) {}
    __device__ void add(LogSum own) { so_far = so_far + own; }
    __device__ double state() const { return so_far.log(); }
    template <typename R> __device__ R result() const { return convert<R>(so_far); }
  };
};
template <typename T>
struct Within<CompensatedSum<T>> : WithinSums<CompensatedSum<T>, Sum<T>> {};
template <typename T>
struct Within<SkipNan<CompensatedSum<T>, T>>
    : WithinSums<SkipNan<CompensatedSum<T>, T>, SkipNan<Sum<T>, T>> {};

}  // namespace coop
