// Scans of series with gaps: the last valid element, and exponentially weighted means; runs of a mask. None of
// them commutes. dask_coop/algebra/fills.py and dask_coop/algebra/runs.py have the algebra.
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

// The weighted sum, what the steps of its elements leave of one before it, and whether there is an element.
struct Faded { double total, decay, some; };
template <typename To>
__device__ To convert(Faded x) {
  if constexpr (is_same<To, Faded>::value) return x;
  else return x.some > 0 ? convert<To>(x.total) : Missing<To>::value();
}

template <typename T, i64 alpha, bool skip> struct WeightedSum {
  using State = Faded;
  using Lift = OneByOne<WeightedSum, T>;
  __device__ static State identity() { return {0, 1, 0}; }
  __device__ static State lift(T x) {
    double by = 1 - __longlong_as_double(alpha);
    return is_nan(x) ? State{0, skip ? 1 : by, 0} : State{convert<double>(x), by, 1};
  }
  __device__ static State combine(State a, State b) {
    return {a.some > 0 ? a.total * b.decay + b.total : b.total, a.decay * b.decay, a.some > 0 ? 1 : b.some};
  }
};

// The sum of weights, twice that of products of two of them, means, and weighted sums of products of deviations.
enum class SpreadOf { var, std, cov, corr };
template <int k> struct Weighed { double weight, cross, mean[k], product[k * (k + 1) / 2]; };
// Spreads divide by weights, of which less than a number with all digits is noise.
__device__ inline double left(double by) { return by < 2.2250738585072014e-308 ? 0 : by; }
template <int k>
__device__ Weighed<k> scaled(Weighed<k> m, double by) {
  m.weight *= by;
  m.cross *= by * by;
  for (int i = 0; i < k * (k + 1) / 2; ++i) m.product[i] *= by;
  return m;
}
// Infinities stay in the means, as NaN, when they have no weight any more.
template <int k>
__device__ Weighed<k> with_infinities(Weighed<k> m, Weighed<k> of) {
  for (int i = 0; i < k; ++i) m.mean[i] += 0 * of.mean[i];
  return m;
}
template <int k>
__device__ Weighed<k> together(Weighed<k> a, Weighed<k> b) {
  if (a.weight == 0) return with_infinities(b, a);
  if (b.weight == 0) return with_infinities(a, b);
  double weight = a.weight + b.weight, share = b.weight / weight, delta[k];
  for (int i = 0; i < k; ++i) {
    delta[i] = b.mean[i] - a.mean[i];
    b.mean[i] = a.mean[i] + delta[i] * share;
  }
  for (int i = 0, at = 0; i < k; ++i) {
    for (int j = i; j < k; ++j, ++at) {
      b.product[at] = a.product[at] + b.product[at] + delta[i] * delta[j] * (a.weight * share);
    }
  }
  b.cross += a.cross + 2 * a.weight * b.weight;
  b.weight = weight;
  return b;
}
// A number is one mean, a pair in a complex number two.
template <typename T> struct Means {
  static constexpr int k = 1;
  __device__ static void of(T x, double* mean) { mean[0] = is_nan(x) ? 0 : convert<double>(x); }
};
template <typename F> struct Means<complex_t<F>> {
  static constexpr int k = 2;
  __device__ static void of(complex_t<F> x, double* mean) {
    bool none = is_nan(x);
    mean[0] = none ? 0 : convert<double>(x.re);
    mean[1] = none ? 0 : convert<double>(x.im);
  }
};
template <SpreadOf statistic, bool bias, int k>
__device__ double spread(Weighed<k> m) {
  double none = __longlong_as_double(0x7ff8000000000000);
  if (m.weight == 0) return none;
  double nothing = 0;
  for (int i = 0; i < k; ++i) nothing += 0 * m.mean[i];
  if constexpr (statistic == SpreadOf::corr) {
    double square = m.product[0] * m.product[2];
    return left(square) > 0 ? m.product[1] / sqrt(square) + nothing : none;
  }
  if (!bias && !(m.cross > 0)) return none;
  double value = m.product[statistic == SpreadOf::cov] / (bias ? m.weight : m.cross / m.weight) + nothing;
  return statistic == SpreadOf::std ? sqrt(value > 0 ? value : 0 * value) : value;
}

template <int k, SpreadOf statistic, bool bias> struct Adjusted {
  Weighed<k> all;
  double decay, gap;
};
template <typename To, int k, SpreadOf statistic, bool bias>
__device__ To convert(Adjusted<k, statistic, bias> x) {
  if constexpr (is_same<To, Adjusted<k, statistic, bias>>::value) return x;
  else return convert<To>(spread<statistic, bias>(x.all));
}

template <typename T, i64 alpha, SpreadOf statistic, bool skip, bool bias> struct WeightedSpread {
  using State = Adjusted<Means<T>::k, statistic, bias>;
  using Lift = OneByOne<WeightedSpread, T>;
  __device__ static State identity() {
    State none{};
    none.decay = none.gap = 1;
    return none;
  }
  __device__ static State lift(T x) {
    State one = identity();
    one.all.weight = !is_nan(x);
    Means<T>::of(x, one.all.mean);
    if (!skip || !is_nan(x)) one.decay = 1 - __longlong_as_double(alpha);
    return one;
  }
  __device__ static State combine(State a, State b) {
    double between = a.gap * b.decay;
    if (a.all.weight > 0 && b.all.weight == 0) {
      a.gap = between;
      return a;
    }
    if (a.all.weight > 0) b.all = together(scaled(a.all, left(between)), b.all);
    b.decay = a.decay * between;
    return b;
  }
};

// The moments of all but the first element, which has a weight of its own: `shared` of the whole.
template <int k, SpreadOf statistic, bool bias> struct Recurrent {
  Weighed<k> rest;
  double first[k], shared, lead, weight;
  __device__ Weighed<k> as_point(double by) const {
    Weighed<k> point{};
    point.weight = by;
    for (int i = 0; i < k; ++i) point.mean[i] = first[i];
    return point;
  }
};
template <typename To, int k, SpreadOf statistic, bool bias>
__device__ To convert(Recurrent<k, statistic, bias> x) {
  if constexpr (is_same<To, Recurrent<k, statistic, bias>>::value) return x;
  else return convert<To>(spread<statistic, bias>(together(x.as_point(x.shared), x.rest)));
}

template <typename T, i64 alpha, SpreadOf statistic, bool skip, bool bias> struct RecursiveSpread {
  using State = Recurrent<Means<T>::k, statistic, bias>;
  using Lift = OneByOne<RecursiveSpread, T>;
  __device__ static State identity() {
    State none{};
    none.lead = 1;
    return none;
  }
  __device__ static State lift(T x) {
    State one = identity();
    one.shared = one.weight = !is_nan(x);
    Means<T>::of(x, one.first);
    if (!skip || !is_nan(x)) one.lead = 1 - __longlong_as_double(alpha);
    return one;
  }
  __device__ static State combine(State a, State b) {
    double lead = b.lead;
    if (a.weight == 0) {
      b.lead = a.lead * lead;
      return b;
    }
    double before = decay(a.weight, lead);
    if (b.weight == 0) {
      a.weight = before;
      return a;
    }
    double share = before / (before + __longlong_as_double(alpha));
    double by = left(share * b.shared);
    a.rest = together(scaled(a.rest, by), b.as_point((1 - share) * b.shared));
    a.rest = together(a.rest, b.rest);
    a.shared *= by;
    a.weight = b.weight;
    return a;
  }
};

// How many elements there are, how many true ones they begin and end with, and a statistic of their runs.
enum class RunStatistic { longest, runs, elements, first, last };
struct RunState { i64 n, begins, ends, value; };
template <typename To>
__device__ To convert(RunState x) {
  if constexpr (is_same<To, RunState>::value) return x;
  else return convert<To>(x.value);
}

template <typename T, RunStatistic statistic, i64 least> struct Runs {
  using State = RunState;
  static constexpr bool is_place = statistic == RunStatistic::first || statistic == RunStatistic::last;

  struct Lift {
    i64 value = is_place ? -1 : 0;
    int n = 0, begins = 0, run = 0;
    __device__ void add(T x, int) {
      run = truth(x) ? run + 1 : 0;
      begins += truth(x) && begins == n;
      ++n;
      if constexpr (statistic == RunStatistic::longest) value = run > value ? run : value;
      if constexpr (statistic == RunStatistic::runs) value += run == least;
      if constexpr (statistic == RunStatistic::elements) value += run > least ? 1 : run == least ? least : 0;
      if constexpr (statistic == RunStatistic::first) value = value < 0 && run == least ? n - least : value;
      if constexpr (statistic == RunStatistic::last) value = run >= least ? n - 1 : value;
    }
    __device__ State state(i64) const { return {n, begins, run, value}; }
  };
  __device__ static State identity() { return {0, 0, 0, is_place ? -1 : 0}; }
  __device__ static State lift(T x) {
    Lift one;
    one.add(x, 0);
    return one.state(0);
  }
  __device__ static i64 counted(i64 length) {
    return length < least ? 0 : statistic == RunStatistic::elements ? length : 1;
  }
  __device__ static State combine(State a, State b) {
    i64 both = a.ends + b.begins, value = a.value;
    if constexpr (statistic == RunStatistic::longest) {
      value = value > b.value ? value : b.value;
      value = value > both ? value : both;
    } else if constexpr (statistic == RunStatistic::first) {
      i64 later = b.value < 0 ? -1 : a.n + b.value;
      if (value < 0) value = both >= least ? a.n - a.ends : later;
    } else if constexpr (statistic == RunStatistic::last) {
      if (both >= least) value = a.n + b.begins - 1;
      if (b.value >= 0) value = a.n + b.value;
    } else {
      value += b.value + counted(both) - counted(a.ends) - counted(b.begins);
    }
    return {a.n + b.n, a.begins == a.n ? a.n + b.begins : a.begins, b.ends == b.n ? a.ends + b.n : b.ends, value};
  }
};

// The last two elements: 0 of no element, 1 and 2 of one that is false or true, 3 of several that end in false,
// 4 in a true one after a false one, 5 in two true ones.
struct RunEnding { unsigned char ending; };
template <typename To>
__device__ To convert(RunEnding x) {
  if constexpr (is_same<To, RunEnding>::value) return x;
  else return To(x.ending >= 4 ? x.ending - 3 : x.ending == 2);
}

template <typename T> struct RunPlaces {
  using State = RunEnding;
  using Lift = OneByOne<RunPlaces, T>;
  __device__ static State identity() { return {0}; }
  __device__ static State lift(T x) { return {(unsigned char)(1 + truth(x))}; }
  __device__ static State combine(State a, State b) {
    if (a.ending == 0 || b.ending >= 3) return b;
    if (b.ending < 2) return {(unsigned char)(b.ending == 0 ? a.ending : 3)};
    return {(unsigned char)(a.ending == 2 || a.ending >= 4 ? 5 : 4)};
  }
};

// The length of the run of the last element, whether it reaches back to the first, and whether it goes on.
struct RunLength {
  i64 length;
  bool joined, open;
};
template <typename To>
__device__ To convert(RunLength x) {
  if constexpr (is_same<To, RunLength>::value) return x;
  else return x.open && x.length > 0 ? Missing<To>::value() : convert<To>(x.length);
}

// Elements are places of elements in their runs: 0 for false, 1 where a run ends, 2 where it goes on.
template <typename T> struct RunLengths {
  using State = RunLength;
  using Lift = OneByOne<RunLengths, T>;
  __device__ static State identity() { return {0, true, true}; }
  __device__ static State lift(T x) { return {x != 0, x != 0, x == 2}; }
  __device__ static State combine(State a, State b) {
    if (b.joined && b.length == 0) return a;
    return {b.joined && a.open ? a.length + b.length : b.length, a.joined && b.joined && a.open, b.open};
  }
};

}  // namespace coop
