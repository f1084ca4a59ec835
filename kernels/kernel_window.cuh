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
//   rows      inner == 1: a thread has a block of a line, staged in shared memory
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

  // Takes x, and returns the result of the window that ends there, of which `back` is kept of the others.
  template <typename T>
  __device__ T push(T x, typename M::V back, int others, WindowSpec spec) {
    if (x == x) value = M::add(value, x, ++count);
    int all = others + count;
    if (all < spec.min_count) return T(nan_of());
    return M::template result<T>(M::join(back, others, value, count), all, spec.length, spec.inverse,
                                 spec.ddof);
  }
};

// Makes states of the elements of a block, seen from the right: of those from j on in backs[j * step], where j
// is below `length`. take(j) returns an element. Bits of `valid`, a word for 32 elements, tell which are not
// NaN.
template <typename M, typename F>
__device__ void window_backs(F take, typename M::V* backs, unsigned* valid, int step, int valid_step,
                             int length) {
  typename M::V value = M::identity();
  int count = 0;
  unsigned bits = 0;
#pragma unroll 4
  for (int j = length - 1; j >= 0; --j) {
    auto x = take(j);
    bits <<= 1;
    if (x == x) {
      value = M::add(value, x, ++count);
      bits |= 1;
    }
    backs[j * step] = value;
    if (j % 32 == 0) {
      valid[j / 32 * valid_step] = bits;
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
    window_backs<M>([&](int j) { return M::held(backs[j * nt]); }, backs, valid, nt, nt, w);
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
      *target = front.push(value, back, count, spec);
      target += inner;
    }
  }
}

// A block of nt threads for up to `share` blocks of a window's length, of a line that has `parts` such shares.
// `magic` is 2^32 / length, rounded up. In shared memory a block begins `stride`, an odd number, behind the
// last, so that threads do not meet in the same banks.
template <typename T, typename M, int nt>
__device__ void window_rows(const T* x, const T* halo, T* y, WindowBase base, i64 n, int before, i64 parts,
                            int share, unsigned magic, WindowSpec spec) {
  using V = typename M::V;
  alignas(16) extern __shared__ unsigned char bytes[];
  int w = spec.length, stride = w | 1, gap = stride - w;
  V* backs = reinterpret_cast<V*>(bytes);
  T* staged = reinterpret_cast<T*>(bytes + sizeof(V) * share * stride);
  unsigned* valid = reinterpret_cast<unsigned*>(staged + (share + 1) * stride);
  i64 line = blockIdx.x / parts, begin = (blockIdx.x - line * parts) * share * w;
  const T* source = x + line * n + begin;
  int length = n - begin < i64(share) * w ? int(n - begin) : share * w;
  int blocks = (length + w - 1) / w;

  // The block before, and those of the share.
  const T* earlier = begin ? source - w : halo + (line * before + before - w);
  int missing = begin ? 0 : w - before;
  for (int f = threadIdx.x; f < w; f += nt) {
    staged[f] = f < missing ? T(nan_of()) : earlier[f];
  }
  for (int f = threadIdx.x; f < length; f += nt) {
    copy_async<sizeof(T)>(staged + stride + f + __umulhi(f, magic) * gap, source + f);
  }
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();

  for (int b = threadIdx.x; b < blocks; b += nt) {
    const T* values = staged + b * stride;
    window_backs<M>([&](int j) { return values[j]; }, backs + b * stride, valid + b, 1, share, w);
  }
  __syncthreads();
  for (int b = threadIdx.x; b < blocks; b += nt) {
    T* values = staged + (b + 1) * stride;
    const V* back = backs + b * stride;
    int count = 0;
    for (int j = 0; j < w; j += 32) count += __popc(valid[j / 32 * share + b]);
    WindowFront<M> front;
    if (begin == 0 && b == 0) front = WindowFront<M>(base, line);
    int stop = length - b * w < w ? length - b * w : w;
    unsigned bits = 0;
#pragma unroll 4
    for (int j = 0; j < stop; ++j) {
      if (j % 32 == 0) bits = valid[j / 32 * share + b];
      count -= bits & 1;
      bits >>= 1;
      values[j] = front.push(values[j], j + 1 < w ? back[j + 1] : M::identity(), count, spec);
    }
  }
  __syncthreads();
  T* target = y + line * n + begin;
  for (int f = threadIdx.x; f < length; f += nt) target[f] = staged[stride + f + __umulhi(f, magic) * gap];
}

}  // namespace coop
