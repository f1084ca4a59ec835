// Stream compaction: the elements that are kept, or where they are, in their order. One pass marks what is kept,
// by a bit an element, and counts it by tiles; the counts are scanned, which tells how long the results are and
// where a tile's begin; and one pass writes. Bits take little of the memory's time, so what is asked is read once,
// and elements are read of tiles alone of which some are kept.
//
// What is kept is what `Keep` says of sources: the elements themselves, or a mask beside them. A `Keep` has
// bits(sources), for arrays of up to 16 of them, with bit k set where the k-th is kept; stage(shared), as bins have
// it (bins.cuh); and `most`, how many sources a thread takes at a time, for code that costs time to compile.
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
  static constexpr int most = 64;

  __device__ int stage(void*) { return 0; }

  template <typename S, int m> __device__ unsigned bits(const S (&sources)[m]) const {
    unsigned kept = 0;
    if constexpr (sizeof(S) == 1 && m % 4 == 0) {
#pragma unroll
      for (int k = 0; k < m; k += 4) {
        unsigned four;
        memcpy(&four, sources + k, 4);
        // The high bit of each byte that is not zero; a product moves the four of them together.
        four = (((four & 0x7f7f7f7f) + 0x7f7f7f7f) | four) >> 7 & 0x01010101;
        kept |= (four * 0x01020408u) >> 24 << k;
      }
    } else {
#pragma unroll
      for (int k = 0; k < m; ++k) kept |= unsigned(is_nonzero(sources[k])) << k;
    }
    return kept;
  }
};

// Keeps what is in one of the bins.
template <typename B> struct BinsKeep {
  static constexpr int most = 16;

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

template <typename V> __device__ bool is_aligned(const void* x) {
  return (reinterpret_cast<u64>(x) & (sizeof(V) - 1)) == 0;
}

// Marks what is kept of tile t, of nv sources, in nv bits of `marks`, and counts it in counts[t]. A warp takes a
// tile. Dynamic shared memory holds what `keep` stages.
template <typename S, typename Keep, int nt, int nv>
__device__ void mark_kept(const S* sources, i64 n, Keep keep, unsigned char* marks, i64* counts) {
  constexpr int v = vector_length<S>(), step = warp_size * v;
  constexpr int in_flight = Keep::most / v < 4 ? Keep::most / v : 4;
  constexpr int batch = nv / step < in_flight ? nv / step : in_flight;
  static_assert(nv % (batch * step) == 0, "tiles have whole batches");
  extern __shared__ u64 shared[];
  if (keep.stage(shared)) __syncthreads();
  i64 tile = i64(blockIdx.x) * (nt / warp_size) + threadIdx.x / warp_size, begin = tile * nv;
  if (begin >= n) return;
  int lane = threadIdx.x % warp_size;
  unsigned count = 0;
  if (begin + nv <= n && is_aligned<Vector<S, v>>(sources)) {
#pragma unroll 1
    for (i64 from = begin + lane * v; from < begin + nv; from += batch * step) {
      Vector<S, v> some[batch];
#pragma unroll
      for (int u = 0; u < batch; ++u) some[u] = *reinterpret_cast<const Vector<S, v>*>(sources + from + u * step);
#pragma unroll
      for (int u = 0; u < batch; ++u) {
        i64 i = from + u * step;
        unsigned bits = keep.bits(some[u].values);
        count += __popc(bits);
        // Lanes put their bits together until they make a byte.
#pragma unroll
        for (int width = v; width < 8; width *= 2) bits |= __shfl_down_sync(full_mask, bits, width / v) << width;
        if constexpr (v == 16) *reinterpret_cast<unsigned short*>(marks + i / 8) = (unsigned short)bits;
        else if (i % 8 == 0) marks[i / 8] = (unsigned char)bits;
      }
    }
  } else {
    for (i64 from = begin; from < begin + nv; from += warp_size) {
      unsigned bit = 0;
      if (from + lane < n) {
        S one[1] = {sources[from + lane]};
        bit = keep.bits(one);
      }
      unsigned bits = __ballot_sync(full_mask, bit);
      if (lane == 0) *reinterpret_cast<unsigned*>(marks + from / 8) = bits;
      count += bit;
    }
  }
  count = warp_reduce<Sum<unsigned>, warp_size>(count);
  if (lane == 0) counts[tile] = count;
}

// Returns the marks of v elements from i on, a multiple of v.
template <int v> __device__ unsigned load_marks(const unsigned char* marks, i64 i) {
  if constexpr (v == 32) return *reinterpret_cast<const unsigned*>(marks + i / 8);
  else if constexpr (v == 16) return *reinterpret_cast<const unsigned short*>(marks + i / 8);
  else return marks[i / 8] >> (i & 7) & ((1u << v) - 1);
}

// Writes the elements of x that are marked to y, and their indices to `index`: of tile t, of nt * vt elements,
// from ends[t - 1] on, where the inclusive scan of the counts has `ends`. The grid has a block for every tile.
template <typename T, bool values, bool indices, int nt, int vt>
__device__ void write_kept(const T* x, i64 n, const unsigned char* marks, const i64* ends, T* y, i64* index) {
  constexpr int nv = nt * vt, v = values ? vector_length<T>() : 32, batches = vt / v;
  static_assert(vt % v == 0 && batches <= 4 && nt * v < 1 << 16 && nv <= 1 << 16, "counts take 16 bits");
  using Scan = Cta<Sum<u64>, nt>;
  __shared__ typename Scan::Storage storage;
  __shared__ alignas(16) unsigned char kept_bytes[values ? nv * sizeof(T) : 16];
  __shared__ unsigned short kept_at[indices ? nv : 1];
  T* kept = reinterpret_cast<T*>(kept_bytes);

  i64 out = blockIdx.x ? ends[blockIdx.x - 1] : 0;
  int count = int(ends[blockIdx.x] - out), tid = threadIdx.x;
  if (count == 0) return;
  i64 begin = i64(blockIdx.x) * nv;
  Vector<T, v> moved[batches];
  unsigned bits[batches];
  bool wide = begin + nv <= n && is_aligned<Vector<T, v>>(x);
  auto load = [&](int u) {
    moved[u] = *reinterpret_cast<const Vector<T, v>*>(x + begin + (u * nt + tid) * v);
  };
  // Of a few elements the others near them need not be read; of many, loads do not wait for the marks.
  bool many = values && wide && count >= nv / 16;
  if (many) {
#pragma unroll
    for (int u = 0; u < batches; ++u) load(u);
  }
#pragma unroll
  for (int u = 0; u < batches; ++u) bits[u] = load_marks<v>(marks, begin + (u * nt + tid) * v);
  if (values && wide && !many) {
#pragma unroll
    for (int u = 0; u < batches; ++u) {
      if (bits[u]) load(u);
    }
  }
  if (values && !wide) {
#pragma unroll
    for (int u = 0; u < batches; ++u) {
#pragma unroll
      for (int k = 0; k < v; ++k) {
        if (bits[u] >> k & 1) moved[u].values[k] = x[begin + (u * nt + tid) * v + k];
      }
    }
  }

  // Elements stand in the order of batches first; 16 bits of a number count those of each.
  u64 mine = 0, total;
#pragma unroll
  for (int u = 0; u < batches; ++u) mine += u64(__popc(bits[u])) << 16 * u;
  u64 before = Scan::scan(mine, storage, total);
  unsigned base = 0;
#pragma unroll
  for (int u = 0; u < batches; ++u) {
    unsigned at = base + unsigned(before >> 16 * u & 0xffff);
    base += unsigned(total >> 16 * u & 0xffff);
#pragma unroll
    for (int k = 0; k < v; ++k) {
      if (bits[u] >> k & 1) {
        if constexpr (values) kept[at] = moved[u].values[k];
        if constexpr (indices) kept_at[at] = (u * nt + tid) * v + k;
        ++at;
      }
    }
  }
  __syncthreads();
  if constexpr (values) {
    for (int i = tid; i < count; i += nt) y[out + i] = kept[i];
  }
  if constexpr (indices) {
    // Two at a time, from an even place on.
    int first = int(out & 1), last = first + ((count - first) & ~1);
    for (int i = first + 2 * tid; i < last; i += 2 * nt) {
      *reinterpret_cast<Vector<i64, 2>*>(index + out + i) = {begin + kept_at[i], begin + kept_at[i + 1]};
    }
    if (tid == 0 && first) index[out] = begin + kept_at[0];
    if (tid == 1 && last < count) index[out + last] = begin + kept_at[last];
  }
}

}  // namespace coop
