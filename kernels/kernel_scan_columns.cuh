// Scan of (outer, n, inner) along n, a block for some neighbouring columns: N read, N written.
//
// Every thread scans a column. Rows ahead of the present one are on their way to a ring in shared memory,
// so that a few warps keep a multiprocessor's memory busy.
#pragma once

#include "async.cuh"
#include "kernel_reduce.cuh"
#include "segments.cuh"

namespace coop {

// The grid has a block of `width` threads for every so many columns of every tile of the lines. The ring
// holds `stages` batches of `rows` rows; it is filled by copies of `chunk` bytes, to multiples of which x
// and its rows must be aligned. A base comes from device memory, one for every (outer, tile, inner).
template <typename T, typename M, typename R, int width, int rows, int stages, int chunk, bool exclusive,
          bool reverse>
__device__ void stream_columns(const T* x, R* y, const typename M::State* base, i64 n, i64 inner,
                               i64 tiles) {
  using State = typename M::State;
  using W = Within<M>;
  alignas(16) extern __shared__ unsigned char bytes[];
  auto* ring = reinterpret_cast<T(*)[rows][width]>(bytes);
  int tid = threadIdx.x;
  i64 groups = (inner + width - 1) / width;
  i64 item = blockIdx.x / groups, column = (blockIdx.x - item * groups) * width;
  LineTile tile(n, tiles, item % tiles);
  int columns = inner - column < width ? int(inner - column) : width;
  State carry = base && tid < columns ? base[item * inner + column + tid] : M::identity();

  i64 length = tile.end - tile.begin, step = reverse ? -inner : inner;
  i64 first = (item / tiles) * n + (reverse ? tile.end - 1 : tile.begin);
  x += first * inner + column;
  y += first * inner + column + tid;

  constexpr int side = chunk / sizeof(T), copies = width / side;
  constexpr int fetches = rows * copies / width, apart = rows / fetches;
  static_assert(chunk % sizeof(T) == 0 && rows * copies % width == 0, "");
  int fetch_row = tid / copies, at = tid % copies * side;
  const T* source = x + fetch_row * step + at;
  auto fetch = [&](i64 batch) {
    T* target = &ring[batch % stages][fetch_row][at];
    if (at < columns) {
#pragma unroll
      for (int i = 0; i < fetches; ++i) {
        if (batch * rows + i * apart + fetch_row < length) {
          copy_async<chunk>(target + i * apart * width, source + i * apart * step);
        }
      }
    }
    source += rows * step;
    commit_copies();
  };

  for (int k = 0; k < stages - 1; ++k) fetch(k);
  for (i64 k = 0; k * rows < length; ++k) {
    // The batch before is read by all, and may be overwritten.
    __syncthreads();
    fetch(k + stages - 1);
    wait_for_copies<stages - 1>();
    __syncthreads();
    T loaded[rows];
    const T* batch = &ring[k % stages][0][tid];
#pragma unroll
    for (int r = 0; r < rows; ++r) loaded[r] = batch[r * width];
    i64 left = length - k * rows;
    if (tid < columns) {
      typename W::Walk walk(carry);
      if (left >= rows) {
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          y[r * step] = Result<M, R, exclusive>::of(walk, W::P::lift(loaded[r]));
        }
        y += rows * step;
        carry = walk.state();
      } else {
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          R result = Result<M, R, exclusive>::of(walk, W::P::lift(loaded[r]));
          if (r < left) y[r * step] = result;
        }
      }
    }
  }
}

}  // namespace coop
