// Stream compaction: the elements that are kept, or where they are, in their order. Two passes: one counts what
// is kept of every tile; the tiles' counts are scanned, which tells how long the results are and where a tile's
// begin; and one writes.
//
// What is kept is what `Keep` says of sources: the elements themselves, or a mask beside them. A `Keep` has
// bits(sources), for arrays of up to 32 of them, with bit k set where the k-th is kept; and stage(shared), as
// bins have it (bins.cuh).
#pragma once

#include "bins.cuh"
#include "cta.cuh"
#include "load.cuh"

namespace coop {

// A 16-byte element whose value does not matter.
struct alignas(16) Word16 {
  u64 low, high;
};

template <typename T>
__device__ bool is_nonzero(T x) { return x != T(0); }
__device__ inline bool is_nonzero(half_t x) { return (x.bits & 0x7fff) != 0; }
template <typename F>
__device__ bool is_nonzero(complex_t<F> x) { return x.re != F(0) || x.im != F(0); }

// Keeps what is not zero; NaN is not.
struct NonzeroKeep {
  __device__ int stage(void*) { return 0; }

  template <typename S, int m> __device__ unsigned bits(const S (&sources)[m]) const {
    unsigned kept = 0;
#pragma unroll
    for (int k = 0; k < m; ++k) kept |= unsigned(is_nonzero(sources[k])) << k;
    return kept;
  }
};

// Keeps what is in one of the bins.
template <typename B> struct BinsKeep {
  B bins;

  __device__ int stage(void* shared) { return bins.stage(shared); }

  template <typename S, int m> __device__ unsigned bits(const S (&sources)[m]) const {
    unsigned bin[m], kept = 0;
    bins.find(sources, bin);
#pragma unroll
    for (int k = 0; k < m; ++k) kept |= unsigned(bin[k] < unsigned(bins.n)) << k;
    return kept;
  }
};

template <typename S> struct Sum {
  using State = S;
  __device__ static S identity() { return 0; }
  __device__ static S combine(S a, S b) { return a + b; }
};

template <typename Keep> struct CountKept {
  const Keep& keep;
  unsigned& kept;

  template <typename S, int m> __device__ void operator()(const S (&sources)[m], i64) const {
    kept += __popc(keep.bits(sources));
  }
};

// counts[t] is how many are kept of tile t, of nv sources. A warp counts a tile. Dynamic shared memory holds
// what `keep` stages.
template <typename S, typename Keep, int nt, int nv>
__device__ void count_kept(const S* sources, i64 n, Keep keep, i64* counts) {
  extern __shared__ u64 shared[];
  if (keep.stage(shared)) __syncthreads();
  constexpr int unroll = 4;
  i64 tile = i64(blockIdx.x) * (nt / warp_size) + threadIdx.x / warp_size, begin = tile * nv;
  if (begin >= n) return;
  unsigned kept = 0;
  int lane = threadIdx.x % warp_size;
  for_each_ahead<warp_size, unroll>(sources + begin, n - begin < nv ? n - begin : i64(nv), lane,
                                    CountKept<Keep>{keep, kept});
  kept = warp_reduce<Sum<unsigned>, warp_size>(kept);
  if (lane == 0) counts[tile] = kept;
}

// Returns v neighbours from x[i] on: `wide` tells whether all are there, and where a vector may stand. Others
// than the n elements are zero.
template <int v, typename T>
__device__ Vector<T, v> load_some(const T* x, i64 i, i64 n, bool wide) {
  if (wide) return *reinterpret_cast<const Vector<T, v>*>(x + i);
  Vector<T, v> some{};
#pragma unroll
  for (int k = 0; k < v; ++k) {
    if (i + k < n) some.values[k] = x[i + k];
  }
  return some;
}

template <typename V> __device__ bool is_aligned(const void* x) {
  return (reinterpret_cast<u64>(x) & (sizeof(V) - 1)) == 0;
}

// Writes the elements of x that are kept to y, and their indices to `index`, as far as these are not null: of
// tile t, of nt * vt elements, from ends[t - 1] on, where the inclusive scan of the counts has `ends`. The grid
// has a block for every tile. With `beside`, sources are a mask beside x; else they are x, and T is S.
template <typename S, typename T, typename Keep, bool beside, bool values, bool indices, int nt, int vt>
__device__ void write_kept(const S* sources, const T* x, i64 n, Keep keep, const i64* ends, T* y, i64* index) {
  constexpr int nv = nt * vt, v = vector_length<T>(), batches = vt / v;
  static_assert(vt % v == 0 && batches <= 4 && nt * v < 1 << 16 && nv <= 1 << 16, "counts take 16 bits");
  using Scan = Cta<Sum<u64>, nt>;
  extern __shared__ u64 shared[];
  __shared__ typename Scan::Storage storage;
  __shared__ alignas(16) unsigned char kept_bytes[values ? nv * sizeof(T) : 16];
  __shared__ unsigned short kept_at[indices ? nv : 1];
  T* kept = reinterpret_cast<T*>(kept_bytes);

  i64 out = blockIdx.x ? ends[blockIdx.x - 1] : 0;
  int count = int(ends[blockIdx.x] - out), tid = threadIdx.x;
  if (count == 0) return;
  if (keep.stage(shared)) __syncthreads();
  i64 begin = i64(blockIdx.x) * nv;
  bool full = begin + nv <= n;
  bool wide = full && is_aligned<Vector<S, v>>(sources), wide_x = full && is_aligned<Vector<T, v>>(x);
  Vector<S, v> asked[batches];
  Vector<T, v> moved[batches];
#pragma unroll
  for (int u = 0; u < batches; ++u) asked[u] = load_some<v>(sources, begin + (u * nt + tid) * v, n, wide);
  if constexpr (beside && values) {
#pragma unroll
    for (int u = 0; u < batches; ++u) moved[u] = load_some<v>(x, begin + (u * nt + tid) * v, n, wide_x);
  }

  // Elements stand in the order of batches first; 16 bits of a number count those of each.
  unsigned bits[batches];
  u64 mine = 0, total;
#pragma unroll
  for (int u = 0; u < batches; ++u) {
    bits[u] = keep.bits(asked[u].values);
    i64 left = n - (begin + (u * nt + tid) * v);
    if (!full) bits[u] &= left <= 0 ? 0u : left < v ? (1u << left) - 1 : ~0u;
    mine += u64(__popc(bits[u])) << 16 * u;
  }
  u64 before = Scan::scan(mine, storage, total);
  unsigned base = 0;
#pragma unroll
  for (int u = 0; u < batches; ++u) {
    unsigned at = base + unsigned(before >> 16 * u & 0xffff);
    base += unsigned(total >> 16 * u & 0xffff);
#pragma unroll
    for (int k = 0; k < v; ++k) {
      if (bits[u] >> k & 1) {
        if constexpr (values && beside) kept[at] = moved[u].values[k];
        if constexpr (values && !beside) kept[at] = asked[u].values[k];
        if constexpr (indices) kept_at[at] = (u * nt + tid) * v + k;
        ++at;
      }
    }
  }
  __syncthreads();
  for (int i = tid; i < count; i += nt) {
    if constexpr (values) y[out + i] = kept[i];
    if constexpr (indices) index[out + i] = begin + kept_at[i];
  }
}

}  // namespace coop
