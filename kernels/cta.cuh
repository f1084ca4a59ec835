// Reduction and scan of one state a thread over a block of nt threads.
#pragma once

#include "warp.cuh"

namespace coop {

// Counts the blocks that come by, of `blocks` in all: true in every thread of the last one, which then
// sees what the others wrote before. The ticket must be zero, and is again. Ends synchronised.
__device__ inline bool arrive_last(unsigned* ticket, i64 blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(ticket, unsigned(blocks - 1)) == unsigned(blocks - 1);
    __threadfence();
  }
  __syncthreads();
  return last;
}

template <typename M, int nt> struct Cta {
  static constexpr int warps = nt / warp_size;
  using State = typename M::State;

  struct Storage {
    // Raw bytes: states may have constructors, which shared memory must not run.
    alignas(16) unsigned char bytes[warps * sizeof(State)];
    __device__ State* states() { return reinterpret_cast<State*>(bytes); }
  };

  // Thread 0 holds the result. The storage is free again after the caller's next __syncthreads().
  __device__ static State reduce(State s, Storage& storage) {
    int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
    s = warp_reduce<M, warp_size>(s);
    if (lane == 0) storage.states()[warp] = s;
    __syncthreads();
    if (warp == 0) {
      s = lane < warps ? storage.states()[lane] : M::identity();
      s = warp_reduce<M, warp_size>(s);
    }
    return s;
  }

  // Every thread gets what comes before it and the block's total. Ends synchronised.
  __device__ static State scan(State s, Storage& storage, State& total) {
    int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
    State inclusive = warp_scan<M>(s);
    State before = shuffle_up(inclusive, 1);
    if (lane == 0) before = M::identity();
    if (lane == warp_size - 1) storage.states()[warp] = inclusive;
    __syncthreads();
    State mine = M::identity();
    total = M::identity();
#pragma unroll unrolled<State>()
    for (int w = 0; w < warps; ++w) {
      if (w == warp) mine = total;
      total = M::combine(total, storage.states()[w]);
    }
    __syncthreads();
    return M::combine(mine, before);
  }
};

}  // namespace coop
