// Histogram into many bins, in two steps. Bins are grouped into buckets of 2^15:
//
//   partition    every tile of samples is written back as a list a bucket, each of the low 15 bits of
//                its samples' bins, lists in 16-byte vectors that are filled up with `nothing`
//   count_lists  every block counts the lists of one bucket in shared memory
//
// 4 bytes a sample are read, 2 written and 2 read again, for any number of bins.
#pragma once

#include "bins.cuh"
#include "buckets.cuh"

namespace coop {

constexpr int bucket_bits = 15, bucket_bins = 1 << bucket_bits;
constexpr unsigned short nothing = 0xffff;

// The samples that take as long to count as a list takes to find.
constexpr unsigned list_cost = 16;

struct alignas(16) ListVector {
  unsigned words[4];
};

// The vectors that the lists of a tile of nv samples can fill.
__device__ inline int list_vectors(int nv, int buckets) { return nv / 8 + buckets; }

// A block for each of the `tiles` tiles, and no more buckets than threads. extents[bucket * tiles + tile]
// gets the first vector of a list, shifted by 16, and their number. `sizes` gets about the work that the
// buckets make, in samples, from some of the tiles.
template <typename T, typename B, int nt, int vt>
__device__ void partition(const T* x, i64 size, B bins, ListVector* lists, unsigned* extents,
                          unsigned* sizes, int buckets) {
  constexpr int nv = nt * vt, every = 64;
  constexpr int v = vector_length<T>() < vt ? vector_length<T>() : vt;
  static_assert(vt % v == 0 && nv < 1 << 16, "");
  extern __shared__ unsigned counts[];
  __shared__ ListVector staged[nv / 8 + nt];
  __shared__ typename Cta<Totals, nt>::Storage storage;
  unsigned* starts = counts + buckets;
  auto* slots = reinterpret_cast<unsigned short*>(staged);
  int tid = threadIdx.x;
  i64 tile = blockIdx.x, tiles = gridDim.x, first = tile * nv;

  if (tid < buckets) counts[tid] = 0;
  Vector<T, v> loaded[vt / v];
  load_tile<nt>(x + first, size - first, loaded);
  unsigned bin[vt], rank[vt];
#pragma unroll
  for (int i = 0; i < vt / v; ++i) {
    unsigned found[v];
    bins.find(loaded[i].values, found);
#pragma unroll
    for (int k = 0; k < v; ++k) {
      i64 at = (i64(i) * nt + tid) * v + k;
      bin[i * v + k] = first + at < size && found[k] < bins.n ? found[k] : ~0u;
    }
  }
  __syncthreads();
  take_ranks<bucket_bits>(bin, rank, counts);
  __syncthreads();

  unsigned vectors = tid < buckets ? (counts[tid] + 7) / 8 : 0, all;
  unsigned start = Cta<Totals, nt>::scan(vectors, storage, all);
  if (tid < buckets) {
    starts[tid] = start * 8;
    extents[tid * tiles + tile] = start << 16 | vectors;
    if (tile % every == 0) atomicAdd(sizes + tid, counts[tid] + list_cost);
    if (vectors) staged[start + vectors - 1] = ListVector{{~0u, ~0u, ~0u, ~0u}};
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < vt; ++i) {
    if (bin[i] < bins.n) {
      slots[starts[bin[i] >> bucket_bits] + rank[i]] = bin[i] & (bucket_bins - 1);
    }
  }
  __syncthreads();
  ListVector* target = lists + tile * list_vectors(nv, buckets);
  for (unsigned i = tid; i < all; i += nt) target[i] = staged[i];
}

// Blocks are dealt to buckets by the work that these make. Dynamic shared memory holds bucket_bins counters.
template <int nt>
__device__ void count_lists(const ListVector* lists, const unsigned* extents, const unsigned* sizes,
                            int buckets, i64 tiles, int stride, int n, u64* table) {
  extern __shared__ unsigned counts[];
  // Behind the counters, because static shared memory would take from what a block may have.
  auto& storage = *reinterpret_cast<typename Cta<Totals, nt>::Storage*>(counts + bucket_bins);
  auto& chosen = *reinterpret_cast<BucketShare*>(counts + bucket_bins + nt / warp_size);
  int tid = threadIdx.x;
  for (int i = tid; i < bucket_bins; i += nt) counts[i] = 0;
  BucketShare share = take_share<nt>(sizes, buckets, storage, chosen);
  if (share.blocks == 0) return;

  constexpr int unroll = 4;
  ListVector loaded[unroll];
  auto load = [&](int u, bool held, i64 tile, unsigned at) {
    if (held) loaded[u] = lists[tile * stride + at];
    else loaded[u] = ListVector{{~0u, ~0u, ~0u, ~0u}};
  };
  walk_lists<nt, unroll>(extents, tiles, share, load, [&] {
#pragma unroll
    for (int k = 0; k < unroll * 8; ++k) {
      unsigned bin = loaded[k / 8].words[k % 8 / 2] >> (k % 2 * 16) & 0xffff;
      if (bin != nothing) atomicAdd(counts + bin, 1u);
    }
  });
  __syncthreads();
  i64 first = i64(share.bucket) << bucket_bits;
  for (int i = tid; i < bucket_bins && first + i < n; i += nt) {
    if (counts[i]) atomicAdd(table + first + i, u64(counts[i]));
  }
}

}  // namespace coop
