// Reduction of an array of shape (outer, n, inner) over n.
//
// Each of the outer * inner lines is cut into `parts` equal pieces, every piece is reduced to one state,
// and where there are several the same kernels reduce those once more (as Merge<M>). Every state is
// made in a fixed order, so results do not change from run to run. M must be commutative.
#pragma once

#include "cta.cuh"
#include "load.cuh"
#include "monoids.cuh"

namespace coop {

// The elements of piece `part` of a line of n.
struct Piece {
  i64 begin, end;
  __device__ Piece(i64 n, i64 parts, i64 part) {
    i64 length = (n + parts - 1) / parts;
    begin = part * length < n ? part * length : n;
    end = begin + length < n ? begin + length : n;
  }
};

// inner == 1. A team of 2, 8, 32 or all nt threads reduces one piece; out has shape (outer, parts).
template <typename T, typename M, int nt, int team>
__device__ void reduce_rows(const T* x, typename M::State* out, i64 outer, i64 n, i64 parts) {
  i64 item = i64(blockIdx.x) * (nt / team) + threadIdx.x / team;
  int lane = threadIdx.x % team;
  bool active = item < outer * parts;
  typename M::Lift lift;
  if (active) {
    Piece piece(n, parts, item % parts);
    const T* row = x + (item / parts) * n;
    for_each<team, 4>(row + piece.begin, piece.end - piece.begin, lane,
                      [&](T value, i64) { lift.add(value); });
  }
  typename M::State s = lift.state();
  if constexpr (team == nt) {
    __shared__ typename Cta<M, nt>::Storage storage;
    s = Cta<M, nt>::reduce(s, storage);
  } else {
    s = warp_reduce<M, team>(s);
  }
  if (active && lane == 0) out[item] = s;
}

// inner > 1. A block takes 2^log_width neighbouring columns of a piece, its threads side by side along
// inner and in rows along n; out has shape (outer, parts, inner).
template <typename T, typename M, int nt>
__device__ void reduce_columns(const T* x, typename M::State* out, i64 outer, i64 n, i64 inner,
                               i64 parts, int log_width) {
  int width = 1 << log_width, rows = nt >> log_width;
  int tx = threadIdx.x & (width - 1), ty = threadIdx.x >> log_width;
  i64 tiles = (inner + width - 1) >> log_width;
  i64 column = (blockIdx.x % tiles) * width + tx;
  i64 item = blockIdx.x / tiles;
  typename M::Lift lift;
  if (column < inner) {
    Piece piece(n, parts, item % parts);
    const T* top = x + (item / parts) * n * inner + column;
    i64 row = piece.begin + ty;
    constexpr int unroll = 8;
    for (; row + (unroll - 1) * rows < piece.end; row += unroll * rows) {
      T loaded[unroll];
#pragma unroll
      for (int u = 0; u < unroll; ++u) loaded[u] = top[(row + u * rows) * inner];
#pragma unroll
      for (int u = 0; u < unroll; ++u) lift.add(loaded[u]);
    }
    for (; row < piece.end; row += rows) lift.add(top[row * inner]);
  }
  __shared__ alignas(16) unsigned char bytes[nt * sizeof(typename M::State)];
  auto* states = reinterpret_cast<typename M::State*>(bytes);
  states[threadIdx.x] = lift.state();
  for (int half = rows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (ty < half) {
      states[threadIdx.x] = M::combine(states[threadIdx.x], states[threadIdx.x + half * width]);
    }
  }
  if (ty == 0 && column < inner) out[item * inner + column] = states[threadIdx.x];
}

}  // namespace coop
