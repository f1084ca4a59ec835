// Reduction of strided lines in the order of their elements, for states that do not commute. Contiguous
// lines are reduced in order by scan_rows, without its results.
#pragma once

#include "kernel_reduce.cuh"

namespace coop {

// inner > 1. A thread reduces one column of a tile, from its end if `reverse`; neighbouring threads take
// neighbouring columns. out has shape (outer, tiles, inner).
template <typename T, typename M, int nt, bool reverse>
__device__ void reduce_columns_in_order(const T* x, typename M::State* out, i64 outer, i64 n, i64 inner, i64 tiles) {
  i64 i = i64(blockIdx.x) * nt + threadIdx.x;
  if (i >= outer * tiles * inner) return;
  i64 column = i % inner, item = i / inner;
  LineTile tile(n, tiles, item % tiles);
  i64 rows = tile.end - tile.begin, step = reverse ? -inner : inner;
  const T* first = x + ((item / tiles) * n + (reverse ? tile.end - 1 : tile.begin)) * inner + column;
  typename M::Lift lifted;
  constexpr int unroll = 8;
  for (i64 row = 0; row < rows; row += unroll) {
    T loaded[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (row + u < rows) loaded[u] = first[(row + u) * step];
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (row + u < rows) lifted.add(loaded[u], int(row) + u);
    }
  }
  out[i] = lifted.state(tile.begin);
}

}  // namespace coop
