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

}  // namespace coop
