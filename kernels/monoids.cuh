// The monoids: what a partial state is, how two combine, and how a thread lifts elements to one.
//
// Every monoid M has
//   M::State            plain data, laid out as the structured dtype that Python makes of the fields
//   M::identity()       the neutral state
//   M::combine(a, b)    the state of a's elements followed by b's
//   M::Lift             what a thread combines elements in: add(x, i) for every element, where the int i
//                       grows from call to call, then state(first), where first + i is the index of
//                       an element in its line
#pragma once

#include "config.cuh"
#include "logarithms.cuh"

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
template <typename F> struct limits<complex_t<F>> {
  __device__ static complex_t<F> low() { return {limits<F>::low(), limits<F>::low()}; }
  __device__ static complex_t<F> high() { return {limits<F>::high(), limits<F>::high()}; }
};

// The lexicographic order of NumPy, in which NaN has no place.
template <typename F>
__device__ bool operator<=(complex_t<F> a, complex_t<F> b) {
  return !is_nan(a) && !is_nan(b) && (a.re < b.re || (a.re == b.re && a.im <= b.im));
}
template <typename F>
__device__ bool operator>=(complex_t<F> a, complex_t<F> b) { return b <= a; }

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

// Combines elements one by one through M::lift, for monoids that need nothing better.
template <typename M, typename T> struct OneByOne {
  typename M::State combined = M::identity();
  __device__ void add(T x, int) { combined = M::combine(combined, M::lift(x)); }
  __device__ typename M::State state(i64) const { return combined; }
};

// Lifts states to themselves: the monoid of the second and later levels.
template <typename M> struct Merge {
  using State = typename M::State;
  using Lift = OneByOne<Merge, State>;
  __device__ static State identity() { return M::identity(); }
  __device__ static State lift(State x) { return x; }
  __device__ static State combine(State a, State b) { return M::combine(a, b); }
};

// M over the elements that are not NaN.
template <typename M, typename T> struct SkipNan : M {
  struct Lift {
    typename M::Lift kept;
    __device__ void add(T x, int i) {
      if (!is_nan(x)) kept.add(x, i);
    }
    __device__ typename M::State state(i64 first) const { return kept.state(first); }
  };
  __device__ static typename M::State lift(T x) { return is_nan(x) ? M::identity() : M::lift(x); }
};

// An element, and whether it counts.
template <typename T> struct alignas(2 * sizeof(T)) Masked {
  T value;
  bool counts;
};

// M over the elements that count.
template <typename M, typename T> struct Where : M {
  struct Lift {
    typename M::Lift kept;
    __device__ void add(Masked<T> x, int i) {
      if (x.counts) kept.add(x.value, i);
    }
    __device__ typename M::State state(i64 first) const { return kept.state(first); }
  };
};

template <typename T> struct Sum {
  using State = typename accumulator<T>::type;
  using Lift = OneByOne<Sum, T>;
  __device__ static State identity() { return State{}; }
  __device__ static State lift(T x) { return convert<State>(x); }
  __device__ static State combine(State a, State b) { return a + b; }
};

template <typename F>
__device__ complex_t<F> operator*(complex_t<F> a, complex_t<F> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

// The product, in the accumulator of the sum.
template <typename T> struct Prod {
  using State = typename accumulator<T>::type;
  using Lift = OneByOne<Prod, T>;
  __device__ static State identity() { return State{1}; }
  __device__ static State lift(T x) { return convert<State>(x); }
  __device__ static State combine(State a, State b) { return a * b; }
};

// Whether an element counts as true: NaN does.
template <typename T>
__device__ bool truth(T x) {
  if constexpr (is_float<T>::value) return !(convert<double>(x) == 0.0);
  else return x != T(0);
}
template <typename F>
__device__ bool truth(complex_t<F> x) { return !(x.re == 0 && x.im == 0); }

template <typename T> struct Any {
  using State = bool;
  using Lift = OneByOne<Any, T>;
  __device__ static bool identity() { return false; }
  __device__ static bool lift(T x) { return truth(x); }
  __device__ static bool combine(bool a, bool b) { return a || b; }
};

template <typename T> struct All {
  using State = bool;
  using Lift = OneByOne<All, T>;
  __device__ static bool identity() { return true; }
  __device__ static bool lift(T x) { return truth(x); }
  __device__ static bool combine(bool a, bool b) { return a && b; }
};

template <typename T> struct CountNonzero {
  using State = i64;
  using Lift = OneByOne<CountNonzero, T>;
  __device__ static i64 identity() { return 0; }
  __device__ static i64 lift(T x) { return truth(x); }
  __device__ static i64 combine(i64 a, i64 b) { return a + b; }
};

template <typename T> struct Count {
  using State = i64;
  using Lift = OneByOne<Count, T>;
  __device__ static i64 identity() { return 0; }
  __device__ static i64 lift(T) { return 1; }
  __device__ static i64 combine(i64 a, i64 b) { return a + b; }
};

// NaN wins, as in NumPy.
template <typename T> struct Min {
  using State = T;
  using Lift = OneByOne<Min, T>;
  __device__ static T identity() { return limits<T>::high(); }
  __device__ static T lift(T x) { return x; }
  __device__ static T combine(T a, T b) { return b < a || is_nan(b) ? b : a; }
  __device__ static bool no_worse(T a, T b) { return a <= b; }
};

template <typename T> struct Max {
  using State = T;
  using Lift = OneByOne<Max, T>;
  __device__ static T identity() { return limits<T>::low(); }
  __device__ static T lift(T x) { return x; }
  __device__ static T combine(T a, T b) { return b > a || is_nan(b) ? b : a; }
  __device__ static bool no_worse(T a, T b) { return a >= b; }
};

// NaN loses: it is what is left where there is nothing else. T is a float.
template <typename T> struct NanMin {
  using State = T;
  using Lift = OneByOne<NanMin, T>;
  __device__ static T identity() { return convert<T>(__longlong_as_double(0x7ff8000000000000)); }
  __device__ static T lift(T x) { return x; }
  __device__ static T combine(T a, T b) { return b < a || is_nan(a) ? b : a; }
};

template <typename T> struct NanMax {
  using State = T;
  using Lift = OneByOne<NanMax, T>;
  __device__ static T identity() { return NanMin<T>::identity(); }
  __device__ static T lift(T x) { return x; }
  __device__ static T combine(T a, T b) { return b > a || is_nan(a) ? b : a; }
};

template <typename T> struct MinMax {
  struct State { T min, max; };
  using Lift = OneByOne<MinMax, T>;
  __device__ static State identity() { return {Min<T>::identity(), Max<T>::identity()}; }
  __device__ static State lift(T x) { return {x, x}; }
  __device__ static State combine(State a, State b) {
    return {Min<T>::combine(a.min, b.min), Max<T>::combine(a.max, b.max)};
  }
};

// A call, for an exponential and a logarithm inlined wherever states combine are more code than a processor's
// cache holds.
__device__ __noinline__ inline double log_add_exp(double a, double b) { return (LogSum(a) + LogSum(b)).log(); }

// The logarithm of the sum of exponentials: nothing overflows.
template <typename T> struct LogAddExp {
  using State = double;
  struct Lift {
    LogSum sum = LogSum(identity());
    __device__ void add(T x, int) { sum = sum + LogSum(convert<double>(x)); }
    __device__ double state(i64) const { return sum.log(); }
  };
  __device__ static double identity() { return limits<double>::low(); }
  __device__ static double lift(T x) { return convert<double>(x); }
  __device__ static double combine(double a, double b) { return log_add_exp(a, b); }
};

// The extremum and the argument index of its first occurrence, or of the first NaN. M is Min or Max.
template <typename T, typename M> struct Arg {
  struct State {
    T value;
    i64 index;
  };
  static constexpr i64 none = 9223372036854775807ll;

  __device__ static State identity() { return {M::identity(), none}; }
  // Elements come in the order of their indices, so only a better one replaces what was found.
  struct Lift {
    T value = M::identity();
    int at = -1;
    __device__ void add(T x, int i) {
      bool take = at < 0 || better(x, value);
      value = take ? x : value;
      at = take ? i : at;
    }
    __device__ State state(i64 first) const { return {value, at < 0 ? none : first + at}; }
  };
  __device__ static State combine(State a, State b) {
    if (better(b.value, a.value)) return b;
    if (better(a.value, b.value)) return a;
    return b.index < a.index ? b : a;
  }
  // Whether a is the one to keep, wherever both are.
  __device__ static bool better(T a, T b) { return !M::no_worse(b, a) && !is_nan(b); }
};
template <typename T> struct ArgMin : Arg<T, Min<T>> {};
template <typename T> struct ArgMax : Arg<T, Max<T>> {};

// The element that comes first, or last, and its index.
template <typename T, bool last> struct End {
  struct State {
    T value;
    i64 index;
  };
  static constexpr i64 none = 9223372036854775807ll;

  __device__ static State identity() { return {T{}, none}; }
  struct Lift {
    T value{};
    int at = -1;
    __device__ void add(T x, int i) {
      if (!last && at >= 0) return;
      value = x;
      at = i;
    }
    __device__ State state(i64 first) const { return {value, at < 0 ? none : first + at}; }
  };
  __device__ static State combine(State a, State b) {
    if (last) return b.index != none && (a.index == none || b.index > a.index) ? b : a;
    return b.index < a.index ? b : a;
  }
};
template <typename T> struct First : End<T, false> {};
template <typename T> struct Last : End<T, true> {};

template <typename T> struct Mean {
  using F = typename floating<T>::type;
  struct State { F total; i64 count; };
  using Lift = OneByOne<Mean, T>;
  __device__ static State identity() { return {F{}, 0}; }
  __device__ static State lift(T x) { return {convert<F>(x), 1}; }
  __device__ static State combine(State a, State b) {
    return {a.total + b.total, a.count + b.count};
  }
};

__device__ inline double dot(double a, double b) { return a * b; }
__device__ inline double dot(complex_t<double> a, complex_t<double> b) {
  return a.re * b.re + a.im * b.im;
}
__device__ inline bool is_finite(double x) { return x - x == 0.0; }
__device__ inline bool is_finite(complex_t<double> x) { return is_finite(x.re) && is_finite(x.im); }
__device__ inline double scale(double x, double by) { return x * by; }
__device__ inline complex_t<double> scale(complex_t<double> x, double by) {
  return {x.re * by, x.im * by};
}

// The sum of squares of sizes, in float64.
template <typename T> struct Squares {
  using State = double;
  using Lift = OneByOne<Squares, T>;
  __device__ static double identity() { return 0; }
  __device__ static double lift(T x) {
    auto value = convert<typename floating<T>::type>(x);
    return dot(value, value);
  }
  __device__ static double combine(double a, double b) { return a + b; }
};

// Sums of deviations from the first value that a thread sees and of their squares. That value is a
// sample of the data, so the squares cannot cancel by more than the thread's own count.
template <typename F> struct Deviations {
  F shift{}, first{};
  double second = 0;
  // A thread reads far fewer than 2^32 elements.
  unsigned count = 0;

  __device__ void add(F value) {
    if (count == 0) shift = value;
    ++count;
    value = value + scale(shift, -1);
    first = first + value;
    second += dot(value, value);
  }
  // How far the mean is from the shift; not a number where a value is infinite.
  __device__ F rest() const {
    return scale(is_finite(first) ? first : first + scale(first, -1), 1.0 / count);
  }
  __device__ F mean() const { return shift + rest(); }
  __device__ double m2() const {
    // Squares may overflow where no value is infinite.
    if (is_finite(first) && !is_finite(second)) return second;
    double rest = second - dot(first, scale(first, 1.0 / count));
    return rest < 0 ? 0.0 : rest;
  }
};

// Count, mean and sum of squared deviations, NaN like any other number.
// Chan, Golub and LeVeque (1983) combine states.
template <typename T> struct Var {
  using F = typename floating<T>::type;
  struct State {
    i64 count;
    F mean;
    double m2;
  };
  __device__ static State identity() { return {0, F{}, 0.0}; }

  struct Lift {
    Deviations<F> seen;
    __device__ void add(T x, int) { seen.add(convert<F>(x)); }
    __device__ State state(i64) const {
      if (seen.count == 0) return identity();
      return {seen.count, seen.mean(), seen.m2()};
    }
  };

  __device__ static State combine(State a, State b) {
    if (a.count == 0) return b;
    if (b.count == 0) return a;
    i64 count = a.count + b.count;
    double part = 1.0 / double(count), before = double(a.count) * part, after = double(b.count) * part;
    F delta = b.mean + scale(a.mean, -1);
    // This order keeps the square from overflowing while the result does not.
    double apart = dot(delta, scale(delta, double(a.count) * after));
    return {count, scale(a.mean, before) + scale(b.mean, after), a.m2 + b.m2 + apart};
  }
};

// Pairs lie in complex numbers: an element and its weight, or elements of two variables.
template <typename T> struct MeanOfPairs {
  struct State { double total, weight; };
  __device__ static State identity() { return {0, 0}; }
  using Lift = OneByOne<MeanOfPairs, T>;
  __device__ static State lift(T x) { return {double(x.re) * double(x.im), double(x.im)}; }
  __device__ static State combine(State a, State b) { return {a.total + b.total, a.weight + b.weight}; }
};

// A mean, its rounding error, and the sum of squared deviations.
struct Variable {
  double mean, rounding, squares;

  // Of weighted deviations from a shift, and of their squares.
  __device__ static Variable of(double shift, double first, double second, double weight) {
    double rest = weight == 0 ? first : first / weight, mean = shift + rest, by = mean - shift;
    // Squares may overflow where no value is infinite.
    double squares = is_finite(first) && !is_finite(second) ? second : second - first * rest;
    double rounding = is_finite(mean) ? (shift - (mean - by)) + (rest - by) : 0;
    return {mean, rounding, squares < 0 ? 0 : squares};
  }
  // Of two sides with the weights `before` and `after`; and the distance of their means.
  __device__ static Variable merged(Variable a, Variable b, double before, double after, double* apart) {
    *apart = (b.mean - a.mean) + (b.rounding - a.rounding);
    // The mean moves from that of the heavier side: a far mean of little weight has none of its digits.
    bool back = after > before;
    Variable from = back ? b : a;
    double weight = before + after, fraction = after / weight;
    double step = from.rounding + (back ? -(*apart * (before / weight)) : *apart * fraction);
    double mean = from.mean + step, by = mean - from.mean;
    double rounding = is_finite(mean) ? (from.mean - (mean - by)) + (step - by) : 0;
    return {mean, rounding, a.squares + b.squares + *apart * (*apart * (before * fraction))};
  }
};

template <typename T> struct VarOfPairs {
  struct State {
    double weight;
    Variable x;
  };
  __device__ static State identity() { return {}; }

  struct Lift {
    // The shift is an element of about the largest weight, so squares cannot cancel by more than twice
    // the thread's own count.
    double shift = 0, heaviest = 0, weight = 0, first = 0, second = 0;
    __device__ void add(T x, int) {
      if (x.im > 2 * heaviest) {
        if (weight > 0) {
          double by = double(x.re) - shift;
          double moved = by * (by * weight - 2 * first);
          // What overflows downwards is less than the squares, which have overflowed.
          if (is_finite(moved) || moved > 0) second += moved;
          first -= by * weight;
        }
        shift = x.re;
        heaviest = x.im;
      }
      double value = double(x.re) - shift, part = value * x.im;
      weight += x.im;
      first += part;
      second += part * value;
    }
    __device__ State state(i64) const {
      // What has no weight may still be infinite.
      if (weight == 0) return {0, {0 * shift + first, 0, 0 * shift + second}};
      return {weight, Variable::of(shift, first, second, weight)};
    }
  };

  __device__ static State combine(State a, State b) {
    if (a.weight == 0 || b.weight == 0) {
      State some = b.weight == 0 ? a : b, none = b.weight == 0 ? b : a;
      some.x.squares += none.x.squares;
      some.x.mean += none.x.squares;
      return some;
    }
    double weight = a.weight + b.weight, apart;
    return {weight, Variable::merged(a.x, b.x, a.weight, b.weight, &apart)};
  }
};

// Counts, means, and products of deviations of two variables.
template <typename T> struct CoMoments {
  struct State {
    double count;
    Variable x, y;
    double products;
  };
  __device__ static State identity() { return {}; }

  struct Lift {
    double shift_x = 0, shift_y = 0, x = 0, y = 0, xx = 0, yy = 0, xy = 0;
    // A thread reads far fewer than 2^32 elements.
    unsigned count = 0;
    __device__ void add(T pair, int) {
      if (count == 0) shift_x = pair.re, shift_y = pair.im;
      ++count;
      double a = double(pair.re) - shift_x, b = double(pair.im) - shift_y;
      x += a;
      y += b;
      xx += a * a;
      yy += b * b;
      xy += a * b;
    }
    __device__ State state(i64) const {
      if (count == 0) return identity();
      double n = count;
      return {n, Variable::of(shift_x, x, xx, n), Variable::of(shift_y, y, yy, n), xy - x * (y / n)};
    }
  };

  __device__ static State combine(State a, State b) {
    if (a.count == 0) return b;
    if (b.count == 0) return a;
    double count = a.count + b.count, fraction = b.count / count, by_x, by_y;
    Variable x = Variable::merged(a.x, b.x, a.count, b.count, &by_x);
    Variable y = Variable::merged(a.y, b.y, a.count, b.count, &by_y);
    return {count, x, y, a.products + b.products + by_x * (by_y * (a.count * fraction))};
  }
};

// Count, NaN count, extrema, sum, mean and sum of squared deviations in one read, NaN left out.
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
    Deviations<double> seen;
    unsigned nans = 0;
    T min = Min<T>::identity(), max = Max<T>::identity();
    A total{};

    __device__ void add(T x, int) {
      if (is_nan(x)) {
        ++nans;
        return;
      }
      seen.add(convert<double>(x));
      min = x < min ? x : min;
      max = x > max ? x : max;
      total = total + convert<A>(x);
    }
    __device__ State state(i64) const {
      if (seen.count == 0) return {0, nans, min, max, total, 0.0, 0.0};
      // The sum is exact in the mean of an infinity, the deviations are in that of wrapped integers.
      double mean = is_float<T>::value ? convert<double>(total) / seen.count : seen.mean();
      return {seen.count, nans, min, max, total, mean, seen.m2()};
    }
  };

  __device__ static State combine(State a, State b) {
    typename Var<T>::State of_a{a.count, a.mean, a.m2}, of_b{b.count, b.mean, b.m2};
    auto both = Var<T>::combine(of_a, of_b);
    return {both.count,
            a.nans + b.nans,
            b.min < a.min ? b.min : a.min,
            b.max > a.max ? b.max : a.max,
            a.total + b.total,
            both.mean,
            both.m2};
  }
};

}  // namespace coop
