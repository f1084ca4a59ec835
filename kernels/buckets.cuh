// Tiles of elements dealt to lists a bucket, and blocks to buckets.
#pragma once

#include "cta.cuh"
#include "load.cuh"

namespace coop {

// The adding of integers, for Cta.
struct Totals {
  using State = unsigned;
  __device__ static State identity() { return 0; }
  __device__ static State combine(State a, State b) { return a + b; }
};

// Loads the elements x[first + i] with i below n and nt * vt, by vectors that threads take in turn.
template <int nt, typename T, int v, int vectors>
__device__ void load_tile(const T* x, i64 n, Vector<T, v> (&loaded)[vectors]) {
  using Vec = Vector<T, v>;
  bool whole = n >= nt * v * vectors && reinterpret_cast<u64>(x) % sizeof(Vec) == 0;
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    i64 at = i64(i) * nt + threadIdx.x;
    if (whole) {
      loaded[i] = reinterpret_cast<const Vec*>(x)[at];
    } else {
#pragma unroll
      for (int k = 0; k < v; ++k) {
        if (at * v + k < n) loaded[i].values[k] = x[at * v + k];
      }
    }
  }
}

// Counts a thread's elements by their buckets, which are bins without their last bits, and finds the rank of each
// in its own; bins of ~0 are left out. A bucket has `copies` counters, of which this thread takes the mine-th.
template <int bits, int vt>
__device__ void take_ranks(const unsigned (&bin)[vt], unsigned (&rank)[vt], unsigned* counts, int copies = 1,
                           int mine = 0) {
  auto bucket = [&](int i) { return bin[i] >> bits; };
  // Neighbours in one bucket take their ranks at once: additions to one counter wait for one another.
#pragma unroll
  for (int i = vt - 1; i >= 0; --i) {
    bool joined = i < vt - 1 && bucket(i + (i < vt - 1)) == bucket(i);
    rank[i] = joined ? rank[i + (i < vt - 1)] + 1 : 1;
  }
#pragma unroll
  for (int i = 0; i < vt; ++i) {
    if (i > 0 && bucket(i - (i > 0)) == bucket(i)) rank[i] = rank[i - (i > 0)] + 1;
    else if (bin[i] != ~0u) rank[i] = atomicAdd(counts + bucket(i) * copies + mine, rank[i]);
  }
}

// What a block does of a bucket's work: it is the index-th of some blocks, or of none where it has nothing to do.
struct BucketShare {
  unsigned bucket, index, blocks;
};

// Deals the grid's blocks to buckets, no more than threads, by the work that these make, at least one to each.
// Ends synchronised; every thread has the block's share.
template <int nt>
__device__ BucketShare take_share(const unsigned* sizes, int buckets, typename Cta<Totals, nt>::Storage& storage,
                                  BucketShare& chosen) {
  int tid = threadIdx.x;
  unsigned size = tid < buckets ? sizes[tid] : 0, all;
  Cta<Totals, nt>::scan(size, storage, all);
  unsigned blocks = tid < buckets ? 1 + unsigned(u64(size) * (gridDim.x - buckets) / (u64(all) + 1)) : 0;
  unsigned before = Cta<Totals, nt>::scan(blocks, storage, all);
  if (tid == 0) chosen.blocks = 0;
  __syncthreads();
  if (before <= blockIdx.x && blockIdx.x < before + blocks) chosen = {unsigned(tid), blockIdx.x - before, blocks};
  __syncthreads();
  return chosen;
}

// Returns which lane has the i-th item of a warp's lists, of which each lane has one that ends with its `end`.
__device__ inline int owner_of(unsigned end, unsigned i) {
  int owner = 0;
#pragma unroll
  for (int step = warp_size / 2; step > 0; step /= 2) {
    if (__shfl_sync(full_mask, end, owner + step - 1) <= i) owner += step;
  }
  return owner;
}

// Walks over the lists that a bucket has in `tiles` tiles. These are dealt to the warps of the bucket's blocks in turn,
// and a warp reads the lists of as many tiles as it has lanes as one, `unroll` items a lane at a time: `load(u, held,
// tile, at)` reads the u-th of them, the at-th item of a tile, if it is held; then `take()` takes all.
template <int nt, int unroll, typename Load, typename Take>
__device__ void walk_lists(const unsigned* extents, i64 tiles, const BucketShare& share, Load load, Take take) {
  const unsigned* mine = extents + share.bucket * tiles;
  int tid = threadIdx.x, lane = tid % warp_size;
  i64 warps = i64(share.blocks) * (nt / warp_size);
  for (i64 first = share.index * (nt / warp_size) + tid / warp_size; first < tiles; first += warps * warp_size) {
    i64 tile = first + lane * warps;
    unsigned extent = tile < tiles ? mine[tile] : 0;
    unsigned end = warp_scan<Totals>(extent & 0xffff);
    unsigned count = __shfl_sync(full_mask, end, warp_size - 1);
    for (unsigned begin = 0; begin < count; begin += warp_size * unroll) {
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        unsigned i = begin + u * warp_size + lane;
        int owner = owner_of(end, i);
        unsigned from = __shfl_sync(full_mask, extent, owner), to = __shfl_sync(full_mask, end, owner);
        load(u, i < count, first + owner * warps, (from >> 16) + (i + (from & 0xffff) - to));
      }
      take();
    }
  }
}

}  // namespace coop
