// The bulk copy engine of sm_90 and later, and the barriers in shared memory on which it reports.
#pragma once

#include "config.cuh"

namespace coop {

// A barrier of `count` arrivals a phase; phases are waited for by their parity, 0 first.
struct Barrier {
  u64 word;

  __device__ void init(unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&word)), "r"(count));
  }
  // Makes its memory free for other use, a new barrier too.
  __device__ void end() {
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(&word)) : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&word)) : "memory");
  }
  // Arrives, and lets the phase wait for so many bytes of bulk copies as well.
  __device__ void arrive_and_expect(unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&word)),
                 "r"(bytes)
                 : "memory");
  }
  __device__ void wait(unsigned parity) {
    unsigned done = 0;
    while (!done) {
      asm volatile(
          "{\n.reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(shared_address(&word)), "r"(parity)
          : "memory");
    }
  }
};

// Makes initialised barriers visible to the copy engine; before the block's first __syncthreads().
__device__ inline void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Makes the thread's writes to shared memory visible to the copy engine.
__device__ inline void fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Starts a copy of `bytes` (a multiple of 16; both addresses too) that reports to `barrier`.
__device__ inline void bulk_load(void* shared, const void* global, unsigned bytes, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(shared)),
      "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(&barrier.word))
      : "memory");
}

// Starts a copy of `bytes` (a multiple of 16; both addresses too) in the thread's open group.
__device__ inline void bulk_store(void* global, const void* shared, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(global)),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}

// Closes the thread's group of stores.
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until shared memory of all but the thread's last `pending` groups may be written again.
template <int pending>
__device__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

}  // namespace coop
