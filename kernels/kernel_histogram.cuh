// Histogram of n samples into the bins between ascending edges, counting as numpy.histogram does.
//
//   count_windows      counters in the shared memory of each block, for a window of the bins
//   count_bytes        samples of one byte, counted by their values
//   count_distributed  counters spread over the shared memory of a cluster
//   count_global       counters in global memory
//
// kernel_histogram_partition.cuh is for more bins than a few windows hold, kernel_histogram_weighted.cuh
// for weights.
#pragma once

#include "bins.cuh"
#include "load.cuh"

namespace coop {

// The samples of a block, one of equal tiles, in whole 16-byte vectors of any element type.
struct SampleTile {
  i64 begin, size;
  __device__ SampleTile(i64 n, i64 tiles, i64 index) {
    i64 length = (n + tiles - 1) / tiles;
    length = (length + 127) / 128 * 128;
    begin = length * index;
    size = begin >= n ? 0 : (n - begin < length ? n - begin : length);
  }
};

// For for_each_ahead: calls f(bin, i) for the samples that are in a bin.
template <typename B, typename F> struct EachSample {
  const B& bins;
  F f;

  template <typename T, int m> __device__ void operator()(const T (&samples)[m], i64 at) {
    unsigned bin[m];
    bins.find(samples, bin);
#pragma unroll
    for (int i = 0; i < m; ++i) {
      if (bin[i] < bins.n) f(bin[i], at + i);
    }
  }
};
template <int nt, int unroll, typename T, typename B, typename F>
__device__ void for_each_sample(const T* x, i64 size, const B& bins, F f) {
  for_each_ahead<nt, unroll>(x, size, threadIdx.x, EachSample<B, F>{bins, f});
}

// Counters of 32 bits, and one for all other samples: a branch would take longer.
struct Counters {
  unsigned* words;

  static __device__ int size(int bins) { return bins + 1; }
  template <int m> __device__ void add(const unsigned (&bin)[m], unsigned count, u64*) {
#pragma unroll
    for (int i = 0; i < m; ++i) atomicAdd(words + (bin[i] < count ? bin[i] : count), 1u);
  }
  __device__ unsigned get(int bin) const { return words[bin]; }
};

// Counters of 16 bits, two a word, and for all other samples one a lane. One that wraps adds 65,536 to the
// table. Samples of a vector that are all in one bin are added at once: additions to one word are made one
// after the other.
struct PackedCounters {
  unsigned* words;

  static __device__ int size(int bins) { return (bins + 1) / 2 + warp_size; }
  template <int m> __device__ void add(const unsigned (&bin)[m], unsigned count, u64* table) {
    unsigned old[m], any = 0, other = ((count + 1) / 2 + threadIdx.x % warp_size) * 2;
    bool same = true;
#pragma unroll
    for (int i = 1; i < m; ++i) same &= bin[i] == bin[0];
    if (m > 1 && same) {
      if (bin[0] >= count) return;
      old[0] = add(bin[0], m);
      if ((old[0] >> (bin[0] & 1) * 16 & 0xffff) + m > 0xffff) wrap(bin[0], old[0], table);
      return;
    }
#pragma unroll
    for (int i = 0; i < m; ++i) any |= old[i] = add(bin[i] < count ? bin[i] : other, 1);
    if (!(any & 0x80008000)) return;
#pragma unroll
    for (int i = 0; i < m; ++i) {
      bool full = (old[i] >> (bin[i] & 1) * 16 & 0xffff) == 0xffff;
      if (full && bin[i] < count) wrap(bin[i], old[i], table);
    }
  }
  __device__ unsigned get(int bin) const { return words[bin / 2] >> (bin % 2 * 16) & 0xffff; }

  // Adds to the counter of a bin and returns the word before.
  __device__ unsigned add(unsigned bin, unsigned more) {
    return atomicAdd(words + bin / 2, bin & 1 ? more << 16 : more);
  }

  // The low half carries into the high one, which is taken back. Each wrap of the high half on the way,
  // up or down, is written into the table, so that the sum of halves and table stays right.
  __device__ void wrap(unsigned bin, unsigned old, u64* table) {
    constexpr u64 full = 65536;
    atomicAdd(table + bin, full);
    if (bin & 1) return;
    if (old >> 16 == 0xffff) atomicAdd(table + bin + 1, full);
    if (atomicSub(words + bin / 2, 65536u) >> 16 == 0) atomicAdd(table + bin + 1, 0 - full);
  }
};

// For for_each_ahead: counts the samples in `count` bins.
template <typename B, typename C> struct EachCounted {
  const B& bins;
  C& counters;
  unsigned count;
  u64* table;

  template <typename T, int m> __device__ void operator()(const T (&samples)[m], i64) {
    unsigned bin[m];
    bins.find(samples, bin);
    counters.add(bin, count, table);
  }
};

// The bins of bytes are their values.
struct ByteBins {
  template <typename T, int m> __device__ void find(const T (&samples)[m], unsigned (&bin)[m]) const {
#pragma unroll
    for (int i = 0; i < m; ++i) bin[i] = static_cast<unsigned char>(samples[i]);
  }
};

// `splits` neighbouring blocks read the same samples and count a window of `window` bins each, an even
// number, from bin `first` on; dynamic shared memory holds what `bins` stages and their counters, which are
// added to the table at the end. A block takes fewer than 2^32 samples.
template <typename T, typename B, typename C, int nt, int unroll>
__device__ void count_windows(const T* x, i64 size, B bins, u64* table, int first, int window, int splits) {
  extern __shared__ u64 shared[];
  unsigned* words = reinterpret_cast<unsigned*>(shared) + bins.stage(shared) / 4;
  first += int(blockIdx.x % splits) * window;
  unsigned count = bins.n - first < window ? bins.n - first : window;
  table += first;
  bins.begin_at(first);
  C counters{words};
  for (int i = threadIdx.x; i < counters.size(count); i += nt) words[i] = 0;
  __syncthreads();
  SampleTile tile(size, gridDim.x / splits, blockIdx.x / splits);
  for_each_ahead<nt, unroll>(x + tile.begin, tile.size, threadIdx.x,
                             EachCounted<B, C>{bins, counters, count, table});
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += nt) {
    unsigned counted = counters.get(i);
    if (counted) atomicAdd(table + i, u64(counted));
  }
}

// Samples of one byte are counted by their value, and the 256 counts then belong to bins.
template <typename T, typename B, int nt>
__device__ void count_bytes(const T* x, i64 size, B bins, u64* table) {
  static_assert(sizeof(T) == 1 && nt >= 256, "");
  __shared__ unsigned words[257];
  if (threadIdx.x < 256) words[threadIdx.x] = 0;
  __syncthreads();
  SampleTile tile(size, gridDim.x, blockIdx.x);
  Counters counters{words};
  for_each_ahead<nt, 1>(x + tile.begin, tile.size, threadIdx.x,
                        EachCounted<ByteBins, Counters>{ByteBins{}, counters, 256, table});
  __syncthreads();
  if (threadIdx.x >= 256 || !words[threadIdx.x]) return;
  T value[1] = {static_cast<T>(threadIdx.x)};
  unsigned bin[1];
  bins.find(value, bin);
  if (bin[0] < bins.n) atomicAdd(table + bin[0], u64(words[threadIdx.x]));
}

// Samples are counted in the table itself, but for up to `slots` bins, a power of two, that each block finds
// among some of its own: these have 32-bit counters in shared memory, so that samples in few bins do not
// wait for one another.
template <typename T, typename B, int nt, int unroll>
__device__ void count_global(const T* x, i64 size, B bins, u64* table, unsigned slots) {
  extern __shared__ unsigned cached[];
  constexpr unsigned nothing = ~0u;
  constexpr int tries = 16;
  unsigned* counts = cached + slots;
  for (int i = threadIdx.x; i < slots; i += nt) {
    cached[i] = nothing;
    counts[i] = 0;
  }
  __syncthreads();
  SampleTile tile(size, gridDim.x, blockIdx.x);
  for (i64 i = threadIdx.x; i < tries * nt; i += nt) {
    if (tile.size == 0) break;
    T sample[1] = {x[tile.begin + i64(double(i) / (tries * nt) * tile.size)]};
    unsigned bin[1];
    bins.find(sample, bin);
    if (bin[0] < bins.n) atomicCAS(cached + (bin[0] & (slots - 1)), nothing, bin[0]);
  }
  __syncthreads();
  for_each_sample<nt, unroll>(x + tile.begin, tile.size, bins, [&](unsigned bin, i64) {
    unsigned slot = bin & (slots - 1);
    if (cached[slot] == bin) atomicAdd(counts + slot, 1u);
    else atomicAdd(table + bin, 1ull);
  });
  __syncthreads();
  for (int i = threadIdx.x; i < slots; i += nt) {
    if (counts[i]) atomicAdd(table + cached[i], u64(counts[i]));
  }
}

// Every block of a cluster holds the counters of `window` bins and adds to those of the others.
template <typename T, typename B, int nt, int unroll>
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
  unsigned local = shared_address(words);
  SampleTile tile(size, gridDim.x, blockIdx.x);
  for_each_sample<nt, unroll>(x + tile.begin, tile.size, bins, [&](unsigned bin, i64) {
    unsigned owner = bin / window, at = local + (bin - owner * window) * 4;
    asm volatile("{\n.reg .u32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "red.relaxed.cluster.shared::cluster.add.u32 [remote], 1;\n}" ::"r"(at), "r"(owner)
                 : "memory");
  });
  synchronise();
  int first = int(rank) * window;
  for (int i = threadIdx.x; i < window && first + i < bins.n; i += nt) {
    if (words[i]) atomicAdd(table + first + i, u64(words[i]));
  }
}

}  // namespace coop
