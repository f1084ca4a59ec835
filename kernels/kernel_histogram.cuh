// Histogram of n samples into the bins between ascending edges, counting as numpy.histogram does.
//
//   count_windows      counters in the shared memory of each block, for a window of the bins
//   count_distributed  counters spread over the shared memory of a cluster
//   count_global       counters in global memory
//
// kernel_partition.cuh is for more bins than a few windows hold, kernel_weigh.cuh for weights.
#pragma once

#include "bins.cuh"
#include "load.cuh"

namespace coop {

// The samples of one of `shares` blocks: an equal share, in whole 16-byte vectors of any element type.
struct Share {
  i64 begin, size;
  __device__ Share(i64 n, i64 shares, i64 index) {
    i64 share = (n + shares - 1) / shares;
    share = (share + 127) / 128 * 128;
    begin = share * index;
    size = begin >= n ? 0 : (n - begin < share ? n - begin : share);
  }
};

// Counters of 32 bits for a window of bins.
struct Counters {
  unsigned* words;

  static __device__ int size(int bins) { return bins; }
  __device__ void add(unsigned bin) { atomicAdd(words + bin, 1u); }
  __device__ void finish() {}
  __device__ unsigned get(int bin) const { return words[bin]; }
};

// Counters of 16 bits, two a word. One that wraps adds 65,536 to the table. Runs of a thread's samples in
// one bin are added at once: additions to one word are made one after the other.
struct PackedCounters {
  unsigned* words;
  u64* table;
  unsigned bin = 0, run = 0;

  static __device__ int size(int bins) { return (bins + 1) / 2; }
  __device__ void add(unsigned b) {
    if (b != bin) {
      finish();
      bin = b;
      run = 0;
    }
    ++run;
    if (run == 0x8000) {
      finish();
      run = 0;
    }
  }
  __device__ void finish() {
    if (!run) return;
    int shift = (bin & 1) * 16;
    unsigned old = atomicAdd(words + bin / 2, run << shift);
    if ((old >> shift & 0xffff) + run > 0xffff) wrap(words + bin / 2, table + bin, bin & 1, old);
  }
  __device__ unsigned get(int b) const { return words[b / 2] >> (b % 2 * 16) & 0xffff; }

  // The low half carries into the high one, which is taken back. Each wrap of the high half on the way,
  // up or down, is written into the table, so that halves and table stay right together.
  static __device__ void wrap(unsigned* word, u64* counted, bool is_high, unsigned old) {
    constexpr u64 full = 65536;
    atomicAdd(counted, full);
    if (is_high) return;
    if (old >> 16 == 0xffff) atomicAdd(counted + 1, full);
    if (atomicSub(word, 65536u) >> 16 == 0) atomicAdd(counted + 1, 0 - full);
  }
};

// `splits` neighbouring blocks read the same samples and count a window of `window` bins each, from bin
// `first` on; dynamic shared memory holds their counters, which are added to the table at the end. A
// block takes fewer than 2^32 samples.
template <typename T, typename B, bool packed, int nt, int unroll>
__device__ void count_windows(const T* x, i64 size, B bins, u64* table, int first, int window, int splits) {
  extern __shared__ unsigned words[];
  first += int(blockIdx.x % splits) * window;
  unsigned count = bins.n - first < window ? bins.n - first : window;
  table += first;
  auto counters = [&] {
    if constexpr (packed) return PackedCounters{words, table};
    else return Counters{words};
  }();
  for (int i = threadIdx.x; i < counters.size(count); i += nt) words[i] = 0;
  __syncthreads();
  Share share(size, gridDim.x / splits, blockIdx.x / splits);
  for_each_ahead<nt, unroll>(x + share.begin, share.size, threadIdx.x, [&](T value, i64) {
    unsigned bin = bins.find(value) - first;
    if (bin < count) counters.add(bin);
  });
  counters.finish();
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += nt) {
    unsigned counted = counters.get(i);
    if (counted) atomicAdd(table + i, u64(counted));
  }
}

// Every sample is counted in the table itself. Lanes that all have the same bin add once.
template <typename T, typename B, int nt>
__device__ void count_global(const T* x, i64 size, B bins, u64* table) {
  Share share(size, gridDim.x, blockIdx.x);
  for_each<nt, 4>(x + share.begin, share.size, threadIdx.x, [&](T value, i64) {
    unsigned bin = bins.find(value);
    if (bin < bins.n) {
      unsigned lanes = __activemask();
      int leader = __ffs(lanes) - 1;
      unsigned common = __shfl_sync(lanes, bin, leader);
      if (!__all_sync(lanes, bin == common)) atomicAdd(table + bin, 1ull);
      else if (threadIdx.x % warp_size == leader) atomicAdd(table + bin, u64(__popc(lanes)));
    }
  });
}

// Every block of a cluster holds the counters of `window` bins and adds to those of the others.
template <typename T, typename B, int nt>
__device__ void count_distributed(const T* x, i64 size, B bins, u64* table, int window) {
  extern __shared__ unsigned words[];
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  auto synchronise = [] {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
  };
  for (int i = threadIdx.x; i < window; i += nt) words[i] = 0;
  synchronise();
  unsigned local = unsigned(__cvta_generic_to_shared(words));
  Share share(size, gridDim.x, blockIdx.x);
  for_each<nt, 4>(x + share.begin, share.size, threadIdx.x, [&](T value, i64) {
    unsigned bin = bins.find(value);
    if (bin < bins.n) {
      unsigned owner = bin / window, at = local + (bin - owner * window) * 4;
      asm volatile("{\n.reg .u32 remote;\n"
                   "mapa.shared::cluster.u32 remote, %0, %1;\n"
                   "red.relaxed.cluster.shared::cluster.add.u32 [remote], 1;\n}" ::"r"(at), "r"(owner)
                   : "memory");
    }
  });
  synchronise();
  int first = int(rank) * window;
  for (int i = threadIdx.x; i < window && first + i < bins.n; i += nt) {
    if (words[i]) atomicAdd(table + first + i, u64(words[i]));
  }
}

}  // namespace coop
