// Order statistics of long lines, by launches that find a digit of the keys wanted each, the highest first.
//
//   parts of a line    count the next digit of keys that begin with the digits found so far
//   the last of them   finds in which digit's keys the rank is, and where among them
//
// Ranks that are found to begin with the same digits share the counts of the first of them.
#pragma once

#include "cta.cuh"
#include "kernel_order_statistics.cuh"

namespace coop {

// What is known of a rank of a line: the digits of its key, and its rank among the keys that have these.
struct Digits {
  u64 key;
  i64 rank;
};

struct Sum64 {
  using State = u64;
  __device__ static u64 identity() { return 0; }
  __device__ static u64 combine(u64 a, u64 b) { return a + b; }
};

// Adds 1 to a count in shared memory for every lane that is `active`. The lanes that agree with the first
// one add up together, for a count that all of them want takes one after the other.
__device__ inline void tally(unsigned* counts, unsigned digit, bool active) {
  unsigned lanes = __ballot_sync(full_mask, active);
  if (!lanes) return;
  int leader = __ffs(lanes) - 1;
  unsigned first = __shfl_sync(full_mask, digit, leader);
  unsigned same = __ballot_sync(full_mask, active && digit == first);
  if (threadIdx.x % warp_size == leader) {
    atomicAdd(&counts[first], __popc(same));
  } else if (active && digit != first) {
    atomicAdd(&counts[digit], 1u);
  }
}

// Finds the digit of `width` bits above the lowest `shift`, of x with contiguous lines of n elements that
// `parts` blocks share each: the launch has as many for every line, and from the second digit on for every
// rank of every line. Each of these has `bins` numbers in `counts`, and a ticket, which are zero and are again;
// `missing` is zero before the first digit. The last digit makes the values.
template <typename T, int bins, int nt>
__device__ void find_digit(const T* x, i64 n, int shift, int width, bool first, int parts, Wanted<T> wanted,
                           const Digits* known, Digits* found, u64* counts, u64* missing, unsigned* tickets) {
  using Key = OrderKey<T>;
  using K = typename Key::K;
  constexpr int vt = bins / nt, unroll = 8;
  __shared__ unsigned own[bins];
  __shared__ u64 up_to[bins];
  __shared__ typename Cta<Sum64, nt>::Storage storage;
  i64 group = blockIdx.x / parts;
  i64 line = first ? group : group / wanted.m;
  known += line * wanted.m;
  int begin = first ? 0 : int(group % wanted.m);
  // The ranks that begin with the same digits are [begin, end).
  int end = first ? wanted.m : begin + 1;
  K prefix = 0;
  if (!first) {
    prefix = K(known[begin].key);
    if (begin && K(known[begin - 1].key) == prefix) return;
    while (end < wanted.m && K(known[end].key) == prefix) ++end;
  }
  for (int i = threadIdx.x; i < bins; i += nt) own[i] = 0;
  __syncthreads();
  i64 part = blockIdx.x % parts;
  i64 each = (n + parts - 1) / parts;
  i64 from = part * each, to = from + each < n ? from + each : n;
  const T* elements = x + line * n;
  u64 absent = 0;
  for (i64 start = from; start < to; start += nt * unroll) {
    T batch[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      i64 at = start + u * nt + threadIdx.x;
      batch[u] = elements[at < to ? at : from];
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      K key = Key::get(batch[u]);
      bool inside = start + u * nt + threadIdx.x < to;
      bool gone = is_float<T>::value && key == Key::last;
      absent += inside && gone;
      // Two shifts, for none may be by all bits.
      bool active = inside && !gone && (first || key >> shift >> width == prefix);
      tally(own, unsigned(key >> shift) & ((1u << width) - 1), active);
    }
  }
  if (first && is_float<T>::value) {
    absent = Cta<Sum64, nt>::reduce(absent, storage);
    if (threadIdx.x == 0 && absent) atomicAdd(&missing[line], absent);
  }
  __syncthreads();
  counts += group * bins;
  for (int i = threadIdx.x; i < bins; i += nt) {
    if (own[i]) atomicAdd(&counts[i], u64(own[i]));
  }
  if (!arrive_last(&tickets[group], parts)) return;
  u64 taken[vt], total = 0, all;
#pragma unroll
  for (int i = 0; i < vt; ++i) {
    taken[i] = __ldcg(&counts[threadIdx.x * vt + i]);
    counts[threadIdx.x * vt + i] = 0;
    total += taken[i];
  }
  u64 before = Cta<Sum64, nt>::scan(total, storage, all);
#pragma unroll
  for (int i = 0; i < vt; ++i) up_to[threadIdx.x * vt + i] = before += taken[i];
  __syncthreads();
  i64 c = n;
  if (first && is_float<T>::value) c -= i64(__ldcg(&missing[line]));
  if (first && threadIdx.x == 0) wanted.counts[line] = c;
  for (int j = begin + threadIdx.x; j < end; j += nt) {
    Digits state{Key::last, -1};
    if (first ? c > 0 : known[j].rank >= 0) {
      i64 rank = first ? wanted.ranks[c * wanted.step + j] : known[j].rank;
      if (first && !(u64(rank) < u64(c))) rank = c - 1;
      int lo = 0, hi = bins - 1;
      while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (up_to[mid] > u64(rank)) hi = mid;
        else lo = mid + 1;
      }
      state = {u64(prefix) << width | unsigned(lo), lo ? rank - i64(up_to[lo - 1]) : rank};
    }
    found[line * wanted.m + j] = state;
    if (shift == 0) wanted.values[j * wanted.distance + line] = Key::element(K(state.key));
  }
}

}  // namespace coop
