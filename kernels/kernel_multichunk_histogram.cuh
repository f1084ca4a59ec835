// Histogram of several chunks of an array, on one GPU or on several, in one cooperative launch.
//
//   count     a block counts its stretches in its shared memory, and adds that to its GPU's table     N read
//   barrier   of all GPUs
//   gather    a GPU adds up the tables of all GPUs for some of the bins, and writes that into the result
#pragma once

#include "kernel_histogram.cuh"
#include "kernel_multichunk.cuh"

namespace coop {

// Adds the block's stretches to the table of its GPU. The counters of all bins are in dynamic shared memory,
// behind what `bins` stages.
template <typename T, typename B, typename C, int nt, int unroll>
__device__ void count_stretches(const Work<T, T>& work, B bins, u64* table) {
  extern __shared__ u64 shared[];
  // Where the block is, and how much it has counted: in no register, as `bins` and the samples fill them.
  __shared__ int s;
  __shared__ unsigned counted;
  // Counters have 32 bits: fewer samples than this, and a stretch more, are fewer than 2^32.
  constexpr unsigned most = 1u << 31;
  C counters{reinterpret_cast<unsigned*>(shared) + bins.stage(shared) / 4};
  if (threadIdx.x == 0) s = work.first[blockIdx.x];
  do {
    if (threadIdx.x == 0) counted = 0;
    for (int i = threadIdx.x; i < counters.size(bins.n); i += nt) counters.words[i] = 0;
    __syncthreads();
    while (counted < most && s < work.first[blockIdx.x + 1]) {
      for_each_ahead<nt, unroll>(work.stretches[s].x, work.stretches[s].n, threadIdx.x,
                                 EachCounted<B, C>{bins, counters, unsigned(bins.n), table});
      __syncthreads();
      if (threadIdx.x == 0) counted += unsigned(work.stretches[s++].n);
      __syncthreads();
    }
    for (int i = threadIdx.x; i < bins.n; i += nt) {
      unsigned count = counters.get(i);
      if (count) atomicAdd(table + i, u64(count));
    }
    __syncthreads();
  } while (s < work.first[blockIdx.x + 1]);
}

// Every GPU has one of `tables`, in its own memory, zero when the kernel starts; `out` is the same on all of
// them, and complete when the launch has ended on all.
template <typename T, typename B, typename C, int nt, int unroll>
__device__ void multichunk_histogram(const Work<T, T>& work, const B& bins, u64* const* tables, u64* out,
                                     const Peers& peers, unsigned epoch) {
  count_stretches<T, B, C, nt, unroll>(work, bins, tables[peers.rank]);
  if (!peer_barrier(peers, epoch, [] {})) return;
  int each = (bins.n + peers.count - 1) / peers.count, begin = each * peers.rank;
  for (int i = blockIdx.x * nt + threadIdx.x; i < each && i < bins.n - begin; i += gridDim.x * nt) {
    u64 sum = 0;
#pragma unroll
    for (int gpu = 0; gpu < Peers::most; ++gpu) {
      if (gpu < peers.count) sum += tables[gpu][begin + i];
    }
    out[begin + i] = sum;
  }
}

}  // namespace coop
