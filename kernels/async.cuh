// Copies from global to shared memory that the thread does not wait for, from sm_80 on.
#pragma once

#include "config.cuh"

namespace coop {

// Starts a copy of 4, 8 or 16 bytes, to which both addresses are aligned.
template <int bytes>
__device__ void copy_async(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(
                   unsigned(__cvta_generic_to_shared(shared))),
               "l"(__cvta_generic_to_global(global)), "n"(bytes)
               : "memory");
#else
  memcpy(shared, global, bytes);
#endif
}

// Closes the thread's group of copies.
__device__ inline void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for all but the thread's last `pending` groups.
template <int pending>
__device__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

}  // namespace coop
