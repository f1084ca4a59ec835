// Collects the elements whose keys begin with one of some prefixes, in any order, where they are few: one read.
// A block keeps those of a tile in shared memory, and writes them together.
#pragma once

#include "load.cuh"
#include "order_keys.cuh"

namespace coop {

// Tells whether keys begin with one of `count` prefixes, ascending, which have `bits` bits behind them. Without
// `several` there is one. `begins` has a bit for each of the first 15 bits of keys: whether a prefix begins so.
template <typename T, bool several> struct PrefixFilter {
  using K = typename OrderKey<T>::K;
  int bits;
  u64 prefix;
  int count;
  const u64* prefixes;
  const unsigned* begins;

  static constexpr int behind = OrderKey<T>::bits - begin_bits, words = (1 << begin_bits) / 32;

  __device__ void stage(unsigned* shared) {
    if constexpr (several) {
      for (int i = threadIdx.x; i < words; i += blockDim.x) shared[i] = begins[i];
      begins = shared;
    }
  }

  __device__ bool holds(K key) const {
    if constexpr (!several) return key >> bits == K(prefix);
    unsigned begin = unsigned(key >> behind);
    if (!(begins[begin / 32] >> begin % 32 & 1)) return false;
    if (bits == behind) return true;
    K before = key >> bits;
    return K(prefixes[find_prefix(prefixes, 0, count - 1, before)]) == before;
  }
};

// For for_each_ahead: keeps elements in `kept`, or writes them where there is no room.
template <typename T, typename F> struct EachCollected {
  const F& filter;
  T* kept;
  unsigned room;
  unsigned& count;
  T* out;
  u64 capacity;
  u64* total;

  template <int m> __device__ void operator()(const T (&samples)[m], i64) {
    unsigned held = 0;
#pragma unroll
    for (int k = 0; k < m; ++k) held |= unsigned(filter.holds(OrderKey<T>::digits(samples[k]))) << k;
    if (!held) return;
    unsigned at = atomicAdd(&count, unsigned(__popc(held)));
#pragma unroll
    for (int k = 0; k < m; ++k) {
      if (!(held >> k & 1)) continue;
      if (at < room) {
        kept[at] = samples[k];
      } else {
        u64 place = atomicAdd(total, 1ull);
        if (place < capacity) out[place] = samples[k];
      }
      ++at;
    }
  }
};

// Writes the elements of x that `filter` holds for to `out`, up to `capacity` of them, and adds their number to
// `total`, also of those that it has no room for. Blocks take tiles of `tile` elements in turn, a multiple of 16
// bytes. Dynamic shared memory holds the bits of `filter` and `room` elements.
template <typename T, typename F, int nt, int unroll>
__device__ void collect(const T* x, i64 n, F filter, i64 tile, unsigned room, T* out, u64 capacity, u64* total) {
  extern __shared__ u64 shared[];
  __shared__ unsigned count;
  __shared__ u64 begin_out;
  filter.stage(reinterpret_cast<unsigned*>(shared));
  T* kept = reinterpret_cast<T*>(reinterpret_cast<unsigned*>(shared) + F::words);
  for (i64 begin = blockIdx.x * tile; begin < n; begin += gridDim.x * tile) {
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    for_each_ahead<nt, unroll>(x + begin, n - begin < tile ? n - begin : tile, threadIdx.x,
                               EachCollected<T, F>{filter, kept, room, count, out, capacity, total});
    __syncthreads();
    unsigned found = count < room ? count : room;
    if (threadIdx.x == 0) begin_out = atomicAdd(total, u64(found));
    __syncthreads();
    for (unsigned i = threadIdx.x; i < found; i += nt) {
      if (begin_out + i < capacity) out[begin_out + i] = kept[i];
    }
    __syncthreads();
  }
}

}  // namespace coop
