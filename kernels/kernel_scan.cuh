// Scan of an array of shape (outer, n, inner) along n, two-level reduce-then-scan:
//
//   upsweep    kernel_reduce.cuh reduces every piece of a line to one state: N read
//   spine      the states of a line are scanned, exclusively, from the line's base: these kernels, as
//              Merge<M>
//   downsweep  every piece is scanned from its base: N read, N written
//
// Lines that are not cut into pieces need the last step only. A base comes from device memory, one for
// every (outer, part, inner); without one the scan starts at the identity. Every result is made in a
// fixed order. x and y may be the same memory.
#pragma once

#include "kernel_reduce.cuh"

namespace coop {

// inner == 1. A team of a warp or all nt threads scans one piece, in tiles of vt elements a thread.
// vt is odd, so that threads read their own elements from shared memory without bank conflicts.
template <typename T, typename M, typename R, int nt, int vt, int team, bool exclusive>
__device__ void scan_rows(const T* x, R* y, const typename M::State* base, i64 outer, i64 n,
                          i64 parts) {
  using State = typename M::State;
  constexpr int nv = team * vt;
  constexpr int size = sizeof(T) > sizeof(R) ? sizeof(T) : sizeof(R);
  __shared__ alignas(16) unsigned char bytes[nt * vt * size];
  __shared__ typename Cta<M, nt>::Storage storage;
  int lane = threadIdx.x % team;
  unsigned char* tile = bytes + (threadIdx.x / team) * nv * size;
  T* in = reinterpret_cast<T*>(tile);
  R* out = reinterpret_cast<R*>(tile);
  auto synchronise = [] {
    if constexpr (team == nt) __syncthreads();
    else __syncwarp();
  };

  i64 item = i64(blockIdx.x) * (nt / team) + threadIdx.x / team;
  // Teams are whole warps, so a team leaves as one; a team of nt threads always has an item.
  if (item >= outer * parts) return;
  Piece piece(n, parts, item % parts);
  i64 row = (item / parts) * n;
  State carry = base ? base[item] : M::identity();
  for (i64 begin = piece.begin; begin < piece.end; begin += nv) {
    i64 left = piece.end - begin;
    int count = left < nv ? int(left) : nv;
    const T* source = x + row + begin;
#pragma unroll
    for (int k = 0; k < vt; ++k) {
      int i = k * team + lane;
      if (i < count) in[i] = source[i];
    }
    synchronise();
    State states[vt];
    State sum = M::identity();
#pragma unroll
    for (int k = 0; k < vt; ++k) {
      int i = lane * vt + k;
      states[k] = i < count ? M::lift(in[i]) : M::identity();
      sum = M::combine(sum, states[k]);
    }
    State before, total;
    if constexpr (team == nt) {
      before = Cta<M, nt>::scan(sum, storage, total);
    } else {
      State inclusive = warp_scan<M>(sum);
      before = shuffle_up(inclusive, 1);
      if (lane == 0) before = M::identity();
      total = broadcast(inclusive, warp_size - 1);
    }
    before = M::combine(carry, before);
    carry = M::combine(carry, total);
    synchronise();
#pragma unroll
    for (int k = 0; k < vt; ++k) {
      State after = M::combine(before, states[k]);
      out[lane * vt + k] = convert<R>(exclusive ? before : after);
      before = after;
    }
    synchronise();
    R* target = y + row + begin;
#pragma unroll
    for (int k = 0; k < vt; ++k) {
      int i = k * team + lane;
      if (i < count) target[i] = out[i];
    }
    synchronise();
  }
}

// inner > 1. A thread scans one column of a piece; neighbouring threads take neighbouring columns.
template <typename T, typename M, typename R, int nt, bool exclusive>
__device__ void scan_columns(const T* x, R* y, const typename M::State* base, i64 outer, i64 n,
                             i64 inner, i64 parts) {
  i64 i = i64(blockIdx.x) * nt + threadIdx.x;
  if (i >= outer * parts * inner) return;
  i64 column = i % inner, item = i / inner;
  Piece piece(n, parts, item % parts);
  i64 offset = (item / parts) * n * inner + column;
  typename M::State carry = base ? base[i] : M::identity();
  constexpr int unroll = 8;
  for (i64 row = piece.begin; row < piece.end; row += unroll) {
    T loaded[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (row + u < piece.end) loaded[u] = x[offset + (row + u) * inner];
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (row + u < piece.end) {
        typename M::State after = M::combine(carry, M::lift(loaded[u]));
        y[offset + (row + u) * inner] = convert<R>(exclusive ? carry : after);
        carry = after;
      }
    }
  }
}

}  // namespace coop
