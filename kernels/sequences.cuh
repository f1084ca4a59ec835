// Literals and matches, the common language of Zstd and LZ4, carried out by the threads of a warp.
//
//   sequence      literals: bytes that are copied from a list
//                 match: bytes that are copied from `offset` bytes before
//
// Nothing is read or written outside of the list of literals and of the output, whatever a frame says.
#pragma once

#include "config.cuh"

namespace coop {

using u8 = unsigned char;

struct Sequence {
  unsigned literals, match, offset;
};

// The output of a frame, and how much of it is there.
struct Decoded {
  u8* begin;
  i64 size, at;
};

// Neighbouring threads of a warp that work together, or one thread.
template <int team> struct Lanes {
  int lane;
  unsigned mask = full_mask;

  __device__ void sync() const {
    if constexpr (team > 1) __syncwarp(mask);
  }
  __device__ bool all(bool x) const {
    if constexpr (team > 1) return __all_sync(mask, x);
    return x;
  }
  // Of a whole warp.
  __device__ unsigned ballot(bool x) const {
    static_assert(team == 1 || team == warp_size, "");
    if constexpr (team > 1) return __ballot_sync(mask, x);
    return x;
  }
  template <typename T> __device__ T of(T x, int lane) const {
    if constexpr (team > 1) return __shfl_sync(mask, x, lane, team);
    return x;
  }
  __device__ unsigned inclusive_sum(unsigned x) const {
    if constexpr (team > 1) {
#pragma unroll
      for (int d = 1; d < team; d *= 2) {
        unsigned below = __shfl_up_sync(mask, x, d, team);
        if (lane >= d) x += below;
      }
    }
    return x;
  }
};

// Bytes that a lane copies by itself; more take the whole warp.
constexpr unsigned lane_bytes = 32;

// Copies n bytes; the source repeats itself after `period` bytes, which are all there.
__device__ inline void copy_periodic(u8* target, const u8* source, unsigned n, unsigned period) {
  constexpr int batch = 8;
  unsigned from = 0;
  for (unsigned i = 0; i < n; i += batch) {
    // All loads of a batch before its stores, so that they wait for the memory together.
    u8 bytes[batch];
#pragma unroll
    for (int k = 0; k < batch; ++k) {
      if (i + k < n) {
        bytes[k] = source[from];
        from = from + 1 == period ? 0 : from + 1;
      }
    }
#pragma unroll
    for (int k = 0; k < batch; ++k) {
      if (i + k < n) target[i + k] = bytes[k];
    }
  }
}

// Carries out a sequence of each lane, in the order of lanes; those of no bytes do nothing.
// `source` has a lane's literals; `is_one` if they are all the same byte. Returns false, and writes nothing,
// if the output has no room, or a match begins before it. No sum of lengths reaches 2^32.
template <int team>
__device__ bool carry_out(Lanes<team> lanes, Sequence s, const u8* source, bool is_one, Decoded& out) {
  unsigned end = lanes.inclusive_sum(s.literals + s.match);
  i64 match_at = out.at + end - s.match, to = match_at - s.literals;
  bool fits = out.at + end <= out.size && (s.match == 0 || (s.offset > 0 && s.offset <= match_at));
  if (!lanes.all(fits)) return false;

  bool is_long = s.literals > lane_bytes;
  if (!is_long && s.literals) copy_periodic(out.begin + to, source, s.literals, is_one ? 1 : s.literals);
  for (unsigned todo = lanes.ballot(is_long); todo; todo &= todo - 1) {
    int lane = __ffs(todo) - 1;
    unsigned n = lanes.of(s.literals, lane);
    const u8* first = reinterpret_cast<const u8*>(lanes.of(reinterpret_cast<u64>(source), lane));
    u8* target = out.begin + lanes.of(to, lane);
    for (unsigned i = lanes.lane; i < n; i += team) target[i] = first[is_one ? 0 : i];
  }
  lanes.sync();

  unsigned todo = lanes.ballot(s.match > 0);
  while (todo) {
    int first = __ffs(todo) - 1;
    // All bytes below are there.
    i64 frontier = lanes.of(match_at, first);
    unsigned n = lanes.of(s.match, first), period = lanes.of(s.offset, first);
    if (n > lane_bytes) {
      u8* target = out.begin + frontier;
      for (unsigned i = lanes.lane; i < n; i += team) target[i] = target[i64(period > i ? i : i % period) - period];
      todo &= todo - 1;
    } else {
      i64 read = match_at - s.offset + (s.match < s.offset ? s.match : s.offset);
      bool is_ready = (todo >> lanes.lane & 1) && s.match <= lane_bytes && (lanes.lane == first || read <= frontier);
      if (is_ready) {
        u8* target = out.begin + match_at;
        copy_periodic(target, target - s.offset, s.match, s.offset);
      }
      todo &= ~lanes.ballot(is_ready);
    }
    lanes.sync();
  }
  out.at += lanes.of(end, team - 1);
  return true;
}

// Appends n literals; returns false, and writes nothing, if they have no room.
template <int team>
__device__ bool append(Lanes<team> lanes, i64 n, const u8* source, bool is_one, Decoded& out) {
  if (n > out.size - out.at) return false;
  for (i64 i = lanes.lane; i < n; i += team) out.begin[out.at + i] = source[is_one ? 0 : i];
  lanes.sync();
  out.at += n;
  return true;
}

}  // namespace coop
