// Barriers between blocks that all run at the same time.
#pragma once

#include "config.cuh"

namespace coop {

// Waits for all blocks of a cooperative launch; writes before it are seen behind it. `arrived` is zero
// when the kernel starts, and `round` counts the kernel's barriers from 1.
__device__ inline void grid_barrier(unsigned* arrived, unsigned round) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1u);
    unsigned seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
    } while (seen < gridDim.x * round);
    __threadfence();
  }
  __syncthreads();
}

// The GPUs of one launch, as each of them sees them.
struct Peers {
  static constexpr int most = 16;
  unsigned* flags[most];  // of every GPU: a word for each GPU, in its own memory
  unsigned* arrived;      // of this GPU: zero between barriers
  unsigned* failed;       // of this GPU, in host memory: 1 + a rank that was waited for in vain
  u64 timeout;            // in nanoseconds
  int rank, count;
};

// The last block of a GPU to come calls `publish`, with all its threads. Returns whether this is the one.
template <typename F>
__device__ bool publish_last(const Peers& peers, F publish) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(peers.arrived, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last) {
    publish();
    __threadfence_system();
  }
  return last;
}

// Waits for all blocks of all GPUs. The last block to come on a GPU calls `publish`, with all its threads,
// and then tells the other GPUs; what was written before the barrier, or by publish into their memory, is
// seen behind it. `epoch` grows from barrier to barrier, by any amount and through 2^32. Returns whether all
// came in time, the same in every thread of a block; those that did not are not waited for again.
template <typename F>
__device__ bool peer_barrier(const Peers& peers, unsigned epoch, F publish) {
  if (publish_last(peers, publish)) {
    __syncthreads();
    if (threadIdx.x < peers.count) {
      unsigned* flag = peers.flags[threadIdx.x] + peers.rank;
      asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(epoch) : "memory");
    }
  }
  bool late = false;
  if (threadIdx.x < peers.count) {
    const unsigned* flag = peers.flags[peers.rank] + threadIdx.x;
    u64 start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    for (;;) {
      unsigned seen;
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
      if (int(seen - epoch) >= 0) break;
      asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
      if (now - start > peers.timeout) {
        late = true;
        *const_cast<volatile unsigned*>(peers.failed) = threadIdx.x + 1;
        break;
      }
    }
    __threadfence_system();
  }
  return !__syncthreads_or(late);
}

}  // namespace coop
