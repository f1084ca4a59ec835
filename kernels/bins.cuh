// Which bin a sample belongs to: the last whose left edge is not above it; the last bin is closed on the
// right. Samples outside, and NaN, get a bin that is at least n.
//
// All kinds of bins have find(samples, bin), for arrays of any length, which numbers bins from `first` on
// where begin_at(first) has been called, and from 0 otherwise; and stage(shared), by which a block copies
// what it looks up into its shared memory: it returns the bytes that this takes, a multiple of 8, and threads
// must meet before they call find.
#pragma once

#include "config.cuh"
#include "order_keys.cuh"

namespace coop {

// Adding `nearest` turns a number into an integer, which is in the low bits of the sum.
template <typename G> struct Magic;
template <> struct Magic<float> {
  static constexpr float nearest = 12582912.0f;
  static __device__ int bits(float x) { return __float_as_int(x); }
  static __device__ float add_down(float a, float b) { return __fadd_rd(a, b); }
  static __device__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
  static __device__ float magnitude(float x) { return fabsf(x); }
};
template <> struct Magic<double> {
  static constexpr double nearest = 6755399441055744.0;
  static __device__ int bits(double x) { return int(__double_as_longlong(x)); }
  static __device__ double add_down(double a, double b) { return __dadd_rd(a, b); }
  static __device__ double fused(double a, double b, double c) { return __fma_rn(a, b, c); }
  static __device__ double magnitude(double x) { return fabs(x); }
};

// Edges as numpy.linspace makes them, i * step + start in float64, rounded to E; the last is `high`. Samples
// are compared with the edges around (v - start) * scale.
template <typename E> struct LinearBins {
  int n;
  E low, high;
  double step, start, scale;
  int first;

  __device__ int stage(void*) { return 0; }
  __device__ void begin_at(int bin) { first = bin; }

  __device__ E edge(int i) const {
    double index = __longlong_as_double(0x4330000000000000ll | unsigned(i)) - 4503599627370496.0;
    return i == n ? high : E(__dadd_rn(__dmul_rn(index, step), start));
  }

  __device__ unsigned find(E v) const {
    using M = Magic<double>;
    if (!(v >= low && v <= high)) return ~0u;
    double sum = M::add_down((double(v) - start) * scale, M::nearest);
    int i = M::bits(sum) - M::bits(M::nearest);
    i = i < 0 ? 0 : i < n ? i : n - 1;
    while (v < edge(i)) --i;
    while (i < n - 1 && v >= edge(i + 1)) ++i;
    return unsigned(i - first);
  }

  template <typename T, int m> __device__ void find(const T (&samples)[m], unsigned (&bin)[m]) const {
#pragma unroll
    for (int i = 0; i < m; ++i) bin[i] = find(convert<E>(samples[i]));
  }
};

// The bins come from arithmetic, and only where a sample lies within 1/2 - sure bins of an edge are they
// looked for.
//
// v * (scale + scale_low) + fraction is the position of v among the edges before they are rounded, less an
// integer, exact but for a few roundings of numbers around 1. A float is at least as large as a rounded edge
// where the middle between it and the next float is above the edge: hence half the gap between the two,
// 2^exponent * gap, is added. |v * scale| < 2^22 must hold between the edges where E is float.
template <typename E> struct GuessedBins : LinearBins<E> {
  // `middle` is fraction - 1/2; `base` turns the bits of a sum into a bin.
  E scale, scale_low, fraction, middle, gap, sure;
  int base;

  __device__ void begin_at(int bin) {
    this->first = bin;
    base -= bin;
  }

  // Finds the bin of v, perhaps, and how far behind the bin's middle it is.
  __device__ E guess(E v, unsigned& bin) const {
    using M = Magic<E>;
    E sum = M::add_down(M::fused(v, scale, fraction), M::nearest);
    bin = unsigned(M::bits(sum) + base);
    E rest = M::fused(v, scale_low, middle);
    if constexpr (sizeof(E) == 4) {
      int bits = M::bits(v);
      // Downwards of a power of two the gap is half of that upwards.
      rest = M::fused(__int_as_float((bits + (bits >> 31)) & 0x7f800000), gap, rest);
    } else if (!(v >= this->low && v <= this->high)) {
      // The low bits that make up the bin are not all the bits of a double.
      bin = ~0u;
    }
    return M::fused(v, scale, M::nearest - sum) + rest;
  }

  // The bin of v by the nearest edge, which is no more than half a bin from where it seems to be.
  __device__ unsigned compare(E v) const {
    // Much data consists of these.
    if (v == this->low) return unsigned(-this->first);
    unsigned bin;
    // Added to 0, for the bits of a float's -0 would pass for those of the largest number.
    E off = guess(sizeof(E) == 4 ? v + E(0) : v, bin);
    int i = int(bin) + this->first + (off > 0);
    i -= v < this->edge(i);
    i -= i == this->n;
    return v >= this->low && v <= this->high ? unsigned(i - this->first) : ~0u;
  }

  template <typename T, int m> __device__ void find(const T (&samples)[m], unsigned (&bin)[m]) const {
    constexpr int most = 16 / sizeof(E), batch = m < most ? m : most;
#pragma unroll
    for (int at = 0; at < m; at += batch) {
      bool all_sure = true;
#pragma unroll
      for (int i = at; i < at + batch; ++i) {
        E v = convert<E>(samples[i]);
        all_sure &= (Magic<E>::magnitude(guess(v, bin[i])) < sure) & (v != this->high);
      }
      if (all_sure) continue;
#pragma unroll
      for (int i = at; i < at + batch; ++i) bin[i] = compare(convert<E>(samples[i]));
    }
  }
};

// What distances between numbers of type E are computed in.
template <typename E> struct DistanceOf { using type = double; };
template <> struct DistanceOf<float> { using type = float; };

// Any ascending edges. The range is cut into equal cells, and guide[cell] is the number of edges in cells
// before, so that only the edges in a sample's own cell are searched. `guide` has cells + 1 elements.
template <typename E> struct SearchedBins {
  int n;
  E low, high;
  const E* edges;
  const int* guide;
  int cells;
  typename DistanceOf<E>::type scale;
  bool staged;
  int first;

  __device__ void begin_at(int bin) { first = bin; }

  __device__ int stage(void* shared) {
    if (!staged) return 0;
    E* own_edges = static_cast<E*>(shared);
    int* own_guide = reinterpret_cast<int*>(own_edges + n + 1);
    for (int i = threadIdx.x; i <= n; i += blockDim.x) own_edges[i] = edges[i];
    for (int i = threadIdx.x; i <= cells; i += blockDim.x) own_guide[i] = guide[i];
    edges = own_edges;
    guide = own_guide;
    return ((n + 1) * int(sizeof(E)) + (cells + 1) * 4 + 7) / 8 * 8;
  }

  __device__ unsigned find(E v) const {
    if (!(v >= low && v <= high)) return ~0u;
    // Every step grows with v, so an edge below v is in no later cell.
    typename DistanceOf<E>::type distance;
    if constexpr (is_float<E>::value) distance = v - low;
    else distance = double(u64(v) - u64(low));
    unsigned cell = int(distance * scale);
    cell = cell < cells ? cell : cells - 1;
    // The edges before `begin` are not above v, those from `last` on are.
    int begin = guide[cell], last = guide[cell + 1];
    while (begin < last) {
      int middle = (begin + last) / 2;
      if (v >= edges[middle]) begin = middle + 1;
      else last = middle;
    }
    return unsigned((last <= n ? last : n) - 1 - first);
  }

  template <typename T, int m> __device__ void find(const T (&samples)[m], unsigned (&bin)[m]) const {
#pragma unroll
    for (int i = 0; i < m; ++i) bin[i] = find(convert<E>(samples[i]));
  }
};

// The integers from 0 to n - 1 are bins of their own.
template <typename E> struct UnitBins {
  int n, first;

  __device__ int stage(void*) { return 0; }
  __device__ void begin_at(int bin) { first = bin; }

  template <typename T, int m> __device__ void find(const T (&samples)[m], unsigned (&bin)[m]) const {
#pragma unroll
    for (int i = 0; i < m; ++i) {
      // Negative ones become large.
      u64 v = u64(samples[i]);
      bin[i] = v < u64(n) ? unsigned(v) - first : ~0u;
    }
  }
};

// The digit of `width` bits in a sample's key that has `shift` bits behind it is its bin, if the key begins
// with one of some prefixes, ascending; the bins of the first prefix come first. Without `several` there is one
// prefix only. By the first `begin_bits` of a key `slots` has the first prefix that begins so, or `no_slot`.
constexpr unsigned no_slot = 0xffff;

template <typename T, bool several> struct DigitBins {
  int n, shift, width;
  u64 prefix;
  int count;
  const u64* prefixes;
  const unsigned short* slots;
  bool staged;
  int first;

  __device__ void begin_at(int bin) { first = bin; }

  __device__ int stage(void* shared) {
    if (!several || !staged) return 0;
    constexpr int words = (1 << begin_bits) / 2;
    u64* own = static_cast<u64*>(shared);
    unsigned* own_slots = reinterpret_cast<unsigned*>(own + count);
    for (int i = threadIdx.x; i < count; i += blockDim.x) own[i] = prefixes[i];
    for (int i = threadIdx.x; i < words; i += blockDim.x) {
      own_slots[i] = reinterpret_cast<const unsigned*>(slots)[i];
    }
    prefixes = own;
    slots = reinterpret_cast<unsigned short*>(own_slots);
    return count * 8 + words * 4;
  }

  template <int m> __device__ void find(const T (&samples)[m], unsigned (&bin)[m]) const {
    using K = typename OrderKey<T>::K;
    constexpr int behind = sizeof(T) > 2 ? sizeof(T) * 8 - begin_bits : 0;
    unsigned last = (1u << width) - 1;
#pragma unroll
    for (int i = 0; i < m; ++i) {
      K key = OrderKey<T>::digits(samples[i]), before = key >> shift >> width;
      unsigned digit = unsigned(key >> shift) & last, slot = 0;
      bool found = true;
      if constexpr (several) {
        slot = slots[unsigned(key >> behind)];
        found = slot != no_slot;
        if (found && K(prefixes[slot]) != before) {
          // Several prefixes begin so: they are longer than what `slots` knows.
          slot = find_prefix(prefixes, slot, count - 1, before);
          found = K(prefixes[slot]) == before;
        }
      } else {
        found = before == K(prefix);
      }
      bin[i] = found ? (slot << width | digit) - first : ~0u;
    }
  }
};

// One bin: samples whose keys begin, without their last `bits`, with `prefix` or what is above it, or below.
template <typename T, bool above> struct BeyondBins {
  int n, bits;
  u64 prefix;

  __device__ int stage(void*) { return 0; }

  template <int m> __device__ void find(const T (&samples)[m], unsigned (&bin)[m]) const {
    using K = typename OrderKey<T>::K;
#pragma unroll
    for (int i = 0; i < m; ++i) {
      K begin = OrderKey<T>::digits(samples[i]) >> bits;
      bin[i] = (above ? begin >= K(prefix) : begin <= K(prefix)) ? 0 : ~0u;
    }
  }
};

// Bins whose samples, integers, have to be from `least` to `most` besides: E takes some beside these for them.
template <typename T, typename E, typename B> struct LimitedBins : B {
  T least, most;

  __device__ E value(T x) const {
    E infinity = E(__longlong_as_double(0x7ff0000000000000ll));
    return x < least ? -infinity : x > most ? infinity : E(x);
  }

  template <int m> __device__ void find(const T (&samples)[m], unsigned (&bin)[m]) const {
    E values[m];
#pragma unroll
    for (int i = 0; i < m; ++i) values[i] = value(samples[i]);
    B::find(values, bin);
  }
};

// What a sample is compared as.
template <typename E, typename B, typename T> __device__ E value_of(const B&, T sample) { return convert<E>(sample); }
template <typename E, typename T, typename B>
__device__ E value_of(const LimitedBins<T, E, B>& bins, T sample) { return bins.value(sample); }

}  // namespace coop
