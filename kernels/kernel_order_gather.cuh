// Gathers the elements of groups into contiguous lines, N read and N written.
//
//   x      (outer, n, inner)          index  (groups, length): the elements of each group along n
//   lines  (outer, groups, columns, length), the columns being neighbours along inner
//
//   gather_tiles     tiles of neighbouring columns and elements of a group, turned in shared memory
//   gather_elements  an element a thread, where few columns are neighbours
//
// Elements are bytes that are moved, of size 1, 2, 4 or 8.
#pragma once

#include "kernel_transpose.cuh"

namespace coop {

// A block of nt threads for every tile of side x side elements of a group: `wide` tiles of columns, then tiles of
// elements, then groups.
template <int bytes, int side, int nt>
__device__ void gather_tiles(const void* x, void* lines, const i64* index, i64 n, i64 inner, i64 groups, i64 columns,
                             i64 length) {
  using E = typename element_of<bytes>::type;
  constexpr int rows_at_once = nt / side, rounds = side / rows_at_once, pad = bytes < 4 ? 4 / bytes : 1;
  __shared__ E tile[side][side + pad];
  u64 wide = u64((columns + side - 1) / side), high = u64((length + side - 1) / side);
  u64 item = blockIdx.x, left = divide(item, wide);
  i64 c = i64(item - left * wide) * side;
  item = divide(left, high);
  i64 first = i64(left - item * high) * side;
  u64 outer = divide(item, u64(groups));
  i64 group = i64(item - outer * groups);
  int width = columns - c < side ? int(columns - c) : side, rows = length - first < side ? int(length - first) : side;
  const E* in = static_cast<const E*>(x) + i64(outer) * n * inner + c;
  E* out = static_cast<E*>(lines) + (i64(item) * columns + c) * length + first;
  index += group * length + first;

  int column = threadIdx.x % side, row = threadIdx.x / side;
  E loaded[rounds];
#pragma unroll
  for (int u = 0; u < rounds; ++u) {
    int own = row + u * rows_at_once;
    if (own < rows && column < width) loaded[u] = in[index[own] * inner + column];
  }
#pragma unroll
  for (int u = 0; u < rounds; ++u) {
    int own = row + u * rows_at_once;
    if (own < rows && column < width) tile[column][own] = loaded[u];
  }
  __syncthreads();
  // Short lines are neighbours, and so are what the threads write of them.
  for (unsigned e = threadIdx.x; e < unsigned(width * rows); e += nt) {
    unsigned line = e / unsigned(rows), own = e - line * unsigned(rows);
    out[i64(line) * length + own] = tile[line][own];
  }
}

// A thread for every one of `count` elements of the lines.
template <int bytes, int nt>
__device__ void gather_elements(const void* x, void* lines, const i64* index, i64 n, i64 inner, i64 groups,
                                i64 columns, i64 length, i64 count) {
  using E = typename element_of<bytes>::type;
  u64 e = u64(blockIdx.x) * nt + threadIdx.x;
  if (e >= u64(count)) return;
  u64 line = divide(e, u64(length)), item = divide(line, u64(columns)), outer = divide(item, u64(groups));
  i64 column = i64(line - item * columns), group = i64(item - outer * groups);
  i64 at = index[group * length + i64(e - line * length)];
  static_cast<E*>(lines)[e] = static_cast<const E*>(x)[(i64(outer) * n + at) * inner + column];
}

}  // namespace coop
