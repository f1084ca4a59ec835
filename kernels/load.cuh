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
template <int team, int unroll, typename T, typename F>
__device__ void for_each(const T* x, i64 n, int lane, F f) {
  constexpr int v = vector_length<T>();
  if constexpr (v == 1 || team < warp_size) {
#pragma unroll unroll
    for (i64 i = lane; i < n; i += team) f(x[i], i);
  } else {
    using Vec = Vector<T, v>;
    i64 head = ((16 - (reinterpret_cast<u64>(x) & 15)) & 15) / sizeof(T);
    head = head < n ? head : n;
    if (lane < head) f(x[lane], i64(lane));
    const Vec* body = reinterpret_cast<const Vec*>(x + head);
    i64 vectors = (n - head) / v;
    i64 j = lane;
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
    for (; j < vectors; j += team) {
      Vec loaded = body[j];
#pragma unroll
      for (int k = 0; k < v; ++k) f(loaded.values[k], head + j * v + k);
    }
    i64 tail = head + vectors * v + lane;
    if (tail < n) f(x[tail], tail);
  }
}

}  // namespace coop
