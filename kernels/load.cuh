// Reads contiguous elements by 16-byte loads, whatever their alignment.
#pragma once

#include "config.cuh"

namespace coop {

template <typename T, int vt> struct alignas(sizeof(T) * vt) Vector {
  T values[vt];
};

// Elements of T that make 16 bytes; 1 where none do.
template <typename T>
__device__ constexpr int vector_length() {
  return sizeof(T) < 16 && 16 % sizeof(T) == 0 ? 16 / int(sizeof(T)) : 1;
}

// Calls f(x[i], i) for every i in [0, n), each once, spread over `team` threads of which this is `lane`.
// `unroll` vectors a thread are in flight. The order within a thread depends on n and the alignment only.
// I is the integer that n fits in, with some thousands to spare.
template <int team, int unroll, typename T, typename I, typename F>
__device__ void for_each(const T* x, I n, int lane, F f) {
  constexpr int v = vector_length<T>();
  if constexpr (v == 1 || team < warp_size) {
#pragma unroll unroll
    for (I i = lane; i < n; i += team) f(x[i], i);
  } else {
    using Vec = Vector<T, v>;
    I head = I(((16 - (reinterpret_cast<u64>(x) & 15)) & 15) / sizeof(T));
    head = head < n ? head : n;
    if (lane < head) f(x[lane], I(lane));
    const Vec* body = reinterpret_cast<const Vec*>(x + head);
    I vectors = (n - head) / v;
    I j = lane;
    for (; j + (unroll - 1) * team < vectors; j += unroll * team) {
      Vec loaded[unroll];
#pragma unroll
      for (int u = 0; u < unroll; ++u) loaded[u] = body[j + u * team];
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
#pragma unroll
        for (int k = 0; k < v; ++k) f(loaded[u].values[k], head + (j + u * team) * v + k);
      }
    }
    // What is left is one batch too: its loads wait for the memory together.
    if (j < vectors) {
      Vec loaded[unroll];
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        if (j + u * team < vectors) loaded[u] = body[j + u * team];
      }
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        if (j + u * team < vectors) {
#pragma unroll
          for (int k = 0; k < v; ++k) f(loaded[u].values[k], head + (j + u * team) * v + k);
        }
      }
    }
    I tail = head + vectors * v + lane;
    if (tail < n) f(x[tail], tail);
  }
}

// Calls f(x[i], y[i], i) for every i in [0, n), as for_each does. Where 16-byte vectors of x begin, so do those
// of y.
template <int team, int unroll, typename T, typename F>
__device__ void for_each_pair(const T* x, const T* y, int n, int lane, F f) {
  constexpr int v = vector_length<T>();
  using Vec = Vector<T, v>;
  int head = ((16 - (reinterpret_cast<u64>(x) & 15)) & 15) / sizeof(T);
  head = head < n ? head : n;
  if (lane < head) f(x[lane], y[lane], lane);
  const Vec* of_x = reinterpret_cast<const Vec*>(x + head);
  const Vec* of_y = reinterpret_cast<const Vec*>(y + head);
  int vectors = (n - head) / v;
  for (int j = lane; j < vectors; j += unroll * team) {
    Vec xs[unroll], ys[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (j + u * team < vectors) xs[u] = of_x[j + u * team], ys[u] = of_y[j + u * team];
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (j + u * team < vectors) {
#pragma unroll
        for (int k = 0; k < v; ++k) f(xs[u].values[k], ys[u].values[k], head + (j + u * team) * v + k);
      }
    }
  }
  int tail = head + vectors * v + lane;
  if (tail < n) f(x[tail], y[tail], tail);
}

// Calls f(values, i) with arrays of contiguous elements, x[i] the first: of one element at the ends of x, and
// of those that make 16 bytes in between. The loads of the next `unroll` vectors are under way while f works
// on these. n is less than 2^32, and the largest power of two that divides sizeof(T) aligns x.
template <int team, int unroll, typename T, typename F>
__device__ void for_each_ahead(const T* x, i64 n, int lane, F f) {
  constexpr int v = vector_length<T>();
  using Vec = Vector<T, v>;
  i64 head = ((sizeof(Vec) - (reinterpret_cast<u64>(x) & (sizeof(Vec) - 1))) & (sizeof(Vec) - 1)) / sizeof(T);
  head = head < n ? head : n;
  const Vec* body = reinterpret_cast<const Vec*>(x + head);
  unsigned vectors = unsigned((n - head) / v);
  Vec next[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    if (lane + u * team < vectors) next[u] = body[lane + u * team];
  }
  unsigned j = lane;
  for (; j + (unroll - 1) * team < vectors; j += unroll * team) {
    Vec now[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      now[u] = next[u];
      unsigned at = j + (unroll + u) * team;
      if (at < vectors) next[u] = body[at];
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) f(now[u].values, head + i64(j + u * team) * v);
  }
  // As few copies of f as can be take the rest: code costs time to compile.
  if constexpr (unroll > 1) {
#pragma unroll 1
    for (; j < vectors; j += team) {
      f(next[0].values, head + i64(j) * v);
#pragma unroll
      for (int u = 1; u < unroll; ++u) next[u - 1] = next[u];
    }
  }
  i64 tail = head + i64(vectors) * v + lane;
#pragma unroll 1
  for (i64 i = lane < head ? lane : tail; i < n; i = i < head ? tail : n) {
    T one[1] = {x[i]};
    f(one, i);
  }
}

}  // namespace coop
