// States that blocks hand to one another through global memory.
#pragma once

#include "config.cuh"

namespace coop {

// Waits a little before another look at what another block has to write.
__device__ inline void pause() { __nanosleep(256); }

// A state as 8-byte words that each carry a tag: words may arrive in any order, and the reader sees from
// the tags when it has them all. No fence is needed.
template <typename S> struct Tagged {
  static constexpr int words = (sizeof(S) + 3) / 4;

  __device__ static void write(u64* at, S s, unsigned tag) {
    unsigned payload[words] = {};
    memcpy(payload, &s, sizeof(S));
#pragma unroll
    for (int i = 0; i < words; ++i) {
      u64 word = u64(tag) << 32 | payload[i];
      asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at + i), "l"(word) : "memory");
    }
  }

  // Returns the tag that all words carry, 0 where they differ.
  __device__ static unsigned read(const u64* at, S& s) {
    unsigned payload[words], tag = 0;
    bool same = true;
#pragma unroll
    for (int i = 0; i < words; ++i) {
      u64 word;
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at + i) : "memory");
      payload[i] = unsigned(word);
      if (i == 0) tag = unsigned(word >> 32);
      else same = same && unsigned(word >> 32) == tag;
    }
    memcpy(&s, payload, sizeof(S));
    return same ? tag : 0;
  }
};

}  // namespace coop
