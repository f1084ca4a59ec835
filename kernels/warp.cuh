// Shuffles, reduction and scan of one state a lane, for states of any size.
#pragma once

#include "config.cuh"

namespace coop {

// Moves a state between lanes, word by word; every lane of the warp must call it.
template <typename S, typename Shuffle>
__device__ S shuffle_words(S s, Shuffle shuffle) {
  constexpr int words = (sizeof(S) + 3) / 4;
  unsigned buffer[words] = {};
  memcpy(buffer, &s, sizeof(S));
#pragma unroll
  for (int i = 0; i < words; ++i) buffer[i] = shuffle(buffer[i]);
  memcpy(&s, buffer, sizeof(S));
  return s;
}

template <typename S>
__device__ S shuffle_down(S s, int offset) {
  return shuffle_words(s, [=](unsigned w) { return __shfl_down_sync(full_mask, w, offset); });
}

template <typename S>
__device__ S shuffle_up(S s, int offset) {
  return shuffle_words(s, [=](unsigned w) { return __shfl_up_sync(full_mask, w, offset); });
}

template <typename S>
__device__ S broadcast(S s, int lane) {
  return shuffle_words(s, [=](unsigned w) { return __shfl_sync(full_mask, w, lane); });
}

// How often loops that combine states are unrolled: large states take much code, and it time to compile.
template <typename S>
__device__ constexpr int unrolled() {
  return sizeof(S) > 8 ? 1 : 32;
}

// Combines the states of `width` neighbouring lanes in order; the first of them holds the result.
template <typename M, int width>
__device__ typename M::State warp_reduce(typename M::State s) {
#pragma unroll unrolled<typename M::State>()
  for (int offset = 1; offset < width; offset *= 2) s = M::combine(s, shuffle_down(s, offset));
  return s;
}

// Returns the inclusive scan of the warp's states, a value in every lane.
template <typename M>
__device__ typename M::State warp_scan(typename M::State s) {
  int lane = threadIdx.x % warp_size;
#pragma unroll unrolled<typename M::State>()
  for (int offset = 1; offset < warp_size; offset *= 2) {
    typename M::State before = shuffle_up(s, offset);
    if (lane >= offset) s = M::combine(before, s);
  }
  return s;
}

}  // namespace coop
