// Scan of (outer, n) along n in one pass by decoupled look-back (Merrill and Garland, 2016): N read, N
// written, on any GPU.
//
// Blocks take tiles in order. A block publishes the total of its tile, looks back over the tiles before
// it until one has published its prefix, and publishes its own. Which totals are combined to a prefix
// depends on which was first, so the results of inexact operations would change from run to run.
#pragma once

#include "kernel_scan.cuh"
#include "tagged.cuh"

namespace coop {

// The grid has a block for every tile. `board` has a tagged state for every tile and a counter of 8 bytes
// at its end, all zero.
template <typename T, typename M, typename R, int nt, int vt, bool exclusive, bool reverse>
__device__ void scan_lookback(const T* x, R* y, const typename M::State* base, i64 n, u64* board) {
  using State = typename M::State;
  using Words = Tagged<State>;
  constexpr int nv = nt * vt;
  constexpr int size = sizeof(T) > sizeof(R) ? sizeof(T) : sizeof(R);
  constexpr unsigned total_tag = 1, prefix_tag = 2;
  __shared__ alignas(16) unsigned char bytes[nv * size];
  __shared__ typename Cta<M, nt>::Storage storage;
  __shared__ alignas(16) unsigned char start_bytes[sizeof(State)];
  __shared__ unsigned ticket;
  State& start = *reinterpret_cast<State*>(start_bytes);
  T* in = reinterpret_cast<T*>(bytes);
  R* out = reinterpret_cast<R*>(bytes);
  int tid = threadIdx.x;

  // Tiles are taken in the order in which blocks start, so that all before this one are being worked on.
  if (tid == 0) ticket = atomicAdd(reinterpret_cast<unsigned*>(board + i64(gridDim.x) * Words::words), 1u);
  __syncthreads();
  unsigned tile = ticket, tiles = unsigned((n + nv - 1) / nv), row = tile / tiles;
  int column = int(tile - row * tiles);
  i64 begin = i64(column) * nv;
  int count = n - begin < nv ? int(n - begin) : nv;
  i64 first = i64(row) * n + (reverse ? n - 1 - begin : begin);
#pragma unroll
  for (int k = 0; k < vt; ++k) {
    int i = k * nt + tid;
    if (i < count) in[i] = x[first + (reverse ? -i : i)];
  }
  __syncthreads();
  State states[vt];
  State sum = M::identity();
#pragma unroll
  for (int k = 0; k < vt; ++k) {
    int i = tid * vt + k;
    states[k] = i < count ? M::lift(in[i]) : M::identity();
    sum = M::combine(sum, states[k]);
  }
  State total;
  State before = Cta<M, nt>::scan(sum, storage, total);

  if (tid < warp_size) {
    u64* own = board + i64(tile) * Words::words;
    State prefix = M::identity();
    if (column == 0) {
      prefix = base ? base[row] : prefix;
    } else {
      if (tid == 0) Words::write(own, total, total_tag);
      // Lane i reads the tile `i` before; the first tile of a row has a prefix always.
      for (int last = column - 1;; last -= warp_size) {
        State seen = M::identity();
        unsigned tag = prefix_tag;
        if (last - tid >= 0) {
          const u64* at = own - i64(column - last + tid) * Words::words;
          while ((tag = Words::read(at, seen)) == 0) pause();
        }
        int found = __ffs(__ballot_sync(full_mask, tag == prefix_tag));
        if (found && tid >= found) seen = M::identity();
        // Lanes stand in reverse order of tiles, and M is commutative.
        seen = broadcast(warp_reduce<M, warp_size>(seen), 0);
        prefix = M::combine(seen, prefix);
        if (found) break;
      }
    }
    if (tid == 0) {
      Words::write(own, M::combine(prefix, total), prefix_tag);
      start = prefix;
    }
  }
  __syncthreads();
  before = M::combine(start, before);
#pragma unroll
  for (int k = 0; k < vt; ++k) {
    State after = M::combine(before, states[k]);
    out[tid * vt + k] = convert<R>(exclusive ? before : after);
    before = after;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < vt; ++k) {
    int i = k * nt + tid;
    if (i < count) y[first + (reverse ? -i : i)] = out[i];
  }
}

}  // namespace coop
