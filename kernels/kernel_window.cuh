// Statistics of the window that ends at each element, along n of (outer, n, inner): N read, N written.
//
// Lines are cut into blocks as long as the window, so that a window is the end of a block and the beginning
// of the next, of which states are made from the border outwards (van Herk, 1992; Gil and Werman, 1993):
//
//     a b c d | e f g h      the window of 4 that ends at f:   (c d) seen from the right, (e f) from the left
//
// No element is ever taken out of a state, so what has left the window leaves no trace. What comes before a
// line is its *halo*, of which there is less than a window, or none at the start of an array.
//
//   columns   inner > 1: a thread goes down a column; states of the last block are in shared memory
//   rows      inner == 1: a thread has a few results side by side; what they need is staged in shared memory
#pragma once

#include "async.cuh"
#include "config.cuh"

namespace coop {

__device__ inline float nan_of() { return __int_as_float(0x7fc00000); }

// What is kept of some elements beside their number: V. `add` takes one more, the last of `count`; `join`
// takes what two neighbours kept of na and nb elements.
struct WindowSum {
  using V = double;
  __device__ static V identity() { return 0; }
  __device__ static V of(double x, double) { return x; }
  template <typename T> __device__ static V hold(T x) { return x; }
  __device__ static double held(V v) { return v; }
  __device__ static V add(V v, double x, int) { return v + x; }
  __device__ static V join(V a, int, V b, int) { return a + b; }
  template <typename T> __device__ static T result(V v, int, int, double, int) { return T(v); }
};

struct WindowMean : WindowSum {
  template <typename T> __device__ static T result(V v, int count, int window, double inverse, int) {
    if (sizeof(T) == 8) return T(v / count);
    // Of a float32 the last bits of the quotient do not matter.
    if (count != window) {
      inverse = 1.0f / float(count);
      inverse *= 2 - count * inverse;
    }
    return T(v * inverse);
  }
};

template <typename T> struct WindowMax {
  using V = T;
  __device__ static V identity() { return T(-1) / T(0); }
  __device__ static V of(double x, double) { return T(x); }
  __device__ static V hold(T x) { return x; }
  __device__ static V held(V v) { return v; }
  __device__ static V add(V v, T x, int) { return x > v ? x : v; }
  __device__ static V join(V a, int, V b, int) { return b > a ? b : a; }
  template <typename R> __device__ static R result(V v, int, int, double, int) { return R(v); }
};

template <typename T> struct WindowMin {
  using V = T;
  __device__ static V identity() { return T(1) / T(0); }
  __device__ static V of(double x, double) { return T(x); }
  __device__ static V hold(T x) { return x; }
  __device__ static V held(V v) { return v; }
  __device__ static V add(V v, T x, int) { return x < v ? x : v; }
  __device__ static V join(V a, int, V b, int) { return b < a ? b : a; }
  template <typename R> __device__ static R result(V v, int, int, double, int) { return R(v); }
};

struct WindowVar {
  // The mean, and the sum of squares of what elements are away from it.
  struct V { double mean, m2; };
  __device__ static V identity() { return {0, 0}; }
  __device__ static V of(double mean, double m2) { return {mean, m2}; }
  template <typename T> __device__ static V hold(T x) { return {double(x), 0}; }
  __device__ static double held(V v) { return v.mean; }
  __device__ static V add(V v, double x, int count) {
    double away = x - v.mean;
    v.mean += away / count;
    v.m2 += away * (x - v.mean);
    return v;
  }
  __device__ static V join(V a, int na, V b, int nb) {
    if (na == 0) return b;
    if (nb == 0) return a;
    double away = b.mean - a.mean, share = double(nb) / (double(na) + nb);
    return {a.mean + away * share, a.m2 + b.m2 + away * away * na * share};
  }
  template <typename T> __device__ static T result(V v, int count, int, double, int ddof) {
    return T(v.m2 / (count - ddof));
  }
};

struct WindowStd : WindowVar {
  template <typename T> __device__ static T result(V v, int count, int, double, int ddof) {
    return T(sqrt(v.m2 / (count - ddof)));
  }
};

// What all windows of a line hold besides: elements between its halo and its first. None where `count` is
// null.
struct WindowBase {
  const double *first, *second;
  const i64* count;
};

struct WindowSpec {
  int length, min_count, ddof;
  // 1 / length.
  double inverse;
};

// What a line has so far of its present block, seen from the left.
template <typename M> struct WindowFront {
  typename M::V value;
  int count;

  __device__ WindowFront() : value(M::identity()), count(0) {}
  __device__ WindowFront(WindowBase base, i64 line) : WindowFront() {
    if (base.count) {
      count = int(base.count[line]);
      if (count) value = M::of(base.first[line], base.second ? base.second[line] : 0);
    }
  }

  template <bool whole, typename T> __device__ void take(T x) {
    if (whole || x == x) value = M::add(value, x, ++count);
  }

  // Takes x, and returns the result of the window that ends there, of which `back` is kept of the others. The
  // window has all its elements if it is `whole`.
  template <bool whole, typename T>
  __device__ T push(T x, typename M::V back, int others, WindowSpec spec) {
    take<whole>(x);
    int all = whole ? spec.length : others + count;
    if (!whole && all < spec.min_count) return T(nan_of());
    return M::template result<T>(M::join(back, others, value, count), all, spec.length, spec.inverse,
                                 spec.ddof);
  }
};

// Makes states of a block's `length` elements, seen from the right: of those from j on in backs[j * step], where
// j is held. Bits of `valid`, a word for 32 elements, tell which are not NaN.
template <typename M>
__device__ void window_backs(typename M::V* backs, unsigned* valid, int step, int length) {
  typename M::V value = M::identity();
  int count = 0;
  unsigned bits = 0;
#pragma unroll 4
  for (int j = length - 1; j >= 0; --j) {
    auto x = M::held(backs[j * step]);
    bits <<= 1;
    if (x == x) {
      value = M::add(value, x, ++count);
      bits |= 1;
    }
    backs[j * step] = value;
    if (j % 32 == 0) {
      valid[j / 32 * step] = bits;
      bits = 0;
    }
  }
}

// A block of nt threads for every so many columns of every tile of a line; a tile begins at a multiple of the
// window. The shared memory holds `stages` elements on their way, and a V and a bit for every element of a
// window, of each thread; or these are in `work` and `marks` if they are `spilled`. halo has `before` elements
// of each line.
template <typename T, typename M, int nt, int stages, bool spilled>
__device__ void window_columns(const T* x, const T* halo, T* y, WindowBase base, i64 n, i64 inner,
                               int before, i64 tile, typename M::V* work, unsigned* marks, WindowSpec spec) {
  using V = typename M::V;
  alignas(16) extern __shared__ unsigned char bytes[];
  int w = spec.length, tid = threadIdx.x;
  T* ring = reinterpret_cast<T*>(bytes) + tid;
  V* backs = reinterpret_cast<V*>(bytes + sizeof(T) * stages * nt) + tid;
  unsigned* valid = reinterpret_cast<unsigned*>(bytes + (sizeof(T) * stages + sizeof(V) * w) * nt) + tid;
  if constexpr (spilled) {
    backs = work + i64(blockIdx.x) * nt * w + tid;
    valid = marks + i64(blockIdx.x) * nt * ((w + 31) / 32) + tid;
  }
  i64 groups = (inner + nt - 1) / nt, tiles = (n + tile - 1) / tile;
  i64 item = blockIdx.x / groups, column = (blockIdx.x - item * groups) * nt + tid;
  i64 outer = item / tiles, begin = (item - outer * tiles) * tile;
  i64 end = begin + tile < n ? begin + tile : n;
  if (column >= inner) return;

  // The block before the tile.
  const T* source = begin ? x + (outer * n + begin - w) * inner + column
                          : halo + (outer * before + before - w) * inner + column;
  int missing = begin ? 0 : w - before;
#pragma unroll 8
  for (int j = 0; j < w; ++j) {
    backs[j * nt] = j < missing ? M::hold(T(nan_of())) : M::hold(source[j * inner]);
  }

  source = x + (outer * n + begin) * inner + column;
  T* target = y + (outer * n + begin) * inner + column;
  int length = int(end - begin);
  // Every thread copies for itself, so none waits for others.
  for (int k = 0; k < stages - 1; ++k) {
    if (k < length) copy_async<sizeof(T)>(ring + k * nt, source + k * inner);
    commit_copies();
  }
  const T* ahead = source + (stages - 1) * inner;
  for (int block = 0; block < length; block += w) {
    window_backs<M>(backs, valid, nt, w);
    int count = 0;
    for (int j = 0; j < w; j += 32) count += __popc(valid[j / 32 * nt]);
    WindowFront<M> front;
    // A base goes with windows as long as the line.
    if (block == 0) front = WindowFront<M>(base, outer * inner + column);
    int stop = length - block < w ? length - block : w;
    unsigned bits = 0;
#pragma unroll 4
    for (int j = 0; j < stop; ++j) {
      int at = block + j, next = at + stages - 1;
      if (next < length) copy_async<sizeof(T)>(ring + next % stages * nt, ahead);
      ahead += inner;
      commit_copies();
      wait_for_copies<stages - 1>();
      T value = ring[at % stages * nt];
      if (j % 32 == 0) bits = valid[j / 32 * nt];
      count -= bits & 1;
      bits >>= 1;
      V back = j + 1 < w ? backs[(j + 1) * nt] : M::identity();
      // What was there is done with.
      backs[j * nt] = M::hold(value);
      *target = front.template push<false>(value, back, count, spec);
      target += inner;
    }
  }
}

// A group of vt results ends vt windows that have all but their ends in common:
//
//     left   | between, for all of them |   own
//     a b c d e f g h i j k l m n o p q r s t u      windows of 18 that end at r, s, t, u: vt = 4
//
// `left` is added to what is between, from the right to the left, and each result is made of such a state and of
// what the group has from its own left. Whole groups between are joined in shared memory, of which spans of 2, 4,
// 8, ... are made by all threads; what is left of it are `odd` elements. A block has a group for each thread, and
// those before that its windows reach into; a group has a place more than elements, so that threads do not meet
// in the same banks.

// Replaces a thread's elements by its results. `begin` is the group that is as many whole groups before it as fit
// into a window, of which `between` and `count` are known but for elements. All windows are `whole` or may not be.
template <bool whole, typename M, int vt, typename T>
__device__ void window_group(T* own, const T* begin, int odd, typename M::V between, int count,
                             WindowSpec spec) {
  for (int j = vt - 1; j >= vt - odd; --j) {
    T x = begin[j];
    if (whole || x == x) between = M::add(between, x, ++count);
  }
  typename M::V left[vt];
  unsigned bits = 0;
#pragma unroll
  for (int j = vt - 1; j >= 0; --j) {
    T x = (j < odd ? begin - odd - 1 : begin - odd)[j];
    if (whole || x == x) {
      between = M::add(between, x, ++count);
      bits |= 1u << j;
    }
    left[j] = between;
  }
  WindowFront<M> front;
#pragma unroll
  for (int j = 0; j < vt; ++j) {
    own[j] = front.template push<whole>(own[j], left[j], count, spec);
    count -= bits >> j & 1;
  }
}

// Does so for windows no longer than a group, whose elements end at those of `place`.
template <bool whole, typename M, int vt, typename T>
__device__ void window_short(T* own, const T* place, typename M::V between, int count, WindowSpec spec) {
#pragma unroll
  for (int j = 0; j < vt; ++j) {
    WindowFront<M> front;
    for (int k = j - spec.length + 1; k < j; ++k) front.template take<whole>(place[k - (k < 0)]);
    own[j] = front.template push<whole>(own[j], between, count, spec);
  }
}

template <typename T, typename M, int vt>
__device__ void window_rows(const T* x, const T* halo, T* y, WindowBase base, i64 n, int before, i64 parts,
                            WindowSpec spec) {
  using V = typename M::V;
  constexpr int stride = vt + 1;
  alignas(16) extern __shared__ unsigned char bytes[];
  int reach = spec.length - 1, nt = blockDim.x, tid = threadIdx.x, hop = nt + nt / vt;
  int steps = reach / vt, odd = reach % vt, earlier = steps + (odd > 0), groups = earlier + nt;
  T* staged = reinterpret_cast<T*>(bytes);
  i64 line = blockIdx.x / parts, begin = (blockIdx.x - line * parts) * nt * vt;
  int length = n - begin < i64(nt) * vt ? int(n - begin) : nt * vt;

  // Elements in front of the line have negative numbers.
  i64 first = begin - i64(earlier) * vt;
  const T* source = x + line * n + first;
  int end = earlier * vt + length, start = first < 0 ? int(-first) : 0;
  for (int e = tid; e < start; e += nt) {
    i64 at = first + e;
    staged[e + e / vt] = at >= -before ? halo[line * before + before + at] : T(nan_of());
  }
  start += tid;
  T* place = staged + start + start / vt;
#pragma unroll 4
  for (int e = start; e < end; e += nt, place += hop) copy_async<sizeof(T)>(place, source + e);
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();

  int group = earlier + tid, count = 0;
  place = staged + group * stride;
  T own[vt];
  // What is behind the line does not matter.
  bool whole = true, behind = group * vt >= end;
#pragma unroll
  for (int j = 0; j < vt; ++j) {
    own[j] = place[j];
    whole &= behind || own[j] == own[j];
  }
  for (int g = tid; g < earlier; g += nt) {
    for (int j = 0; j < vt; ++j) whole &= staged[g * stride + j] == staged[g * stride + j];
  }
  // Windows that lie in part before all there is are given as shorter ones.
  whole = __syncthreads_and(whole) && !base.count && spec.min_count <= spec.length;

  V between = M::identity();
  if (base.count) {
    count = int(base.count[line]);
    if (count) between = M::of(base.first[line], base.second ? base.second[line] : 0);
  }
  if (steps > 1) {
    V* spans = reinterpret_cast<V*>(bytes + (int(sizeof(T)) * groups * stride + 15) / 16 * 16);
    int* counts = reinterpret_cast<int*>(spans + 2 * groups);
    for (int g = tid; g < groups; g += nt) {
      V value = M::identity();
      int valid = 0;
#pragma unroll
      for (int j = 0; j < vt; ++j) {
        T v = staged[g * stride + j];
        if (v == v) value = M::add(value, v, ++valid);
      }
      spans[g] = value;
      counts[g] = valid;
    }
    int now = 0, next = groups, last = group - 1;
    for (int span = 1;; span *= 2) {
      __syncthreads();
      if (steps - 1 & span) {
        between = M::join(spans[now + last], counts[now + last], between, count);
        count += counts[now + last];
        last -= span;
      }
      if (2 * span >= steps) break;
      for (int g = tid + 2 * span - 1; g < groups; g += nt) {
        int a = now + g - span, b = now + g;
        spans[next + g] = M::join(spans[a], counts[a], spans[b], counts[b]);
        counts[next + g] = counts[a] + counts[b];
      }
      now = groups - now;
      next = groups - next;
    }
  }

  if (steps == 0) {
    if (whole) window_short<true, M, vt>(own, place, between, count, spec);
    else window_short<false, M, vt>(own, place, between, count, spec);
  } else {
    const T* from = place - steps * stride;
    if (whole) window_group<true, M, vt>(own, from, odd, between, count, spec);
    else window_group<false, M, vt>(own, from, odd, between, count, spec);
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < vt; ++j) place[j] = own[j];
  __syncthreads();
  T* target = y + line * n + begin;
  place = staged + earlier * stride + tid + tid / vt;
#pragma unroll 4
  for (int e = tid; e < length; e += nt, place += hop) target[e] = *place;
}

}  // namespace coop
