// Where each sample goes: its bin index, or an offset in the table of several coordinates.
#pragma once

#include "bins.cuh"

namespace coop {

// The offsets of bins, as `Numbering` of algebra/bins.py: a negative one stands for nowhere.
struct Numbering {
  i64 below, above, missing, first, step;
  bool closed;

  template <typename B, typename E> __device__ i64 get(const B& bins, E v, unsigned bin) const {
    if (bin < bins.n && (closed || v != bins.high)) return first + step * i64(bin);
    return v < bins.low ? below : v >= bins.high ? above : missing;
  }
};

// index[i] gets the offset of x[i]. Where `count` is not 0, that is one of `count` within another: within that
// of the line of x[i], if `inner` is not 0, for x of shape (outer, n, inner); else within index[i] as it was.
// -1 stands for nowhere. Dynamic shared memory holds what `bins` stages.
template <typename E, typename I, typename T, typename B, int nt, int unroll>
__device__ void locate(const T* x, i64 size, B bins, Numbering numbering, i64 count, i64 n, i64 inner, I* index) {
  extern __shared__ u64 shared[];
  bins.stage(shared);
  __syncthreads();
  constexpr i64 tile = i64(nt) * unroll;
  for (i64 begin = blockIdx.x * tile; begin < size; begin += gridDim.x * tile) {
    T samples[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      i64 i = begin + u * nt + threadIdx.x;
      samples[u] = x[i < size ? i : size - 1];
    }
    unsigned bin[unroll];
    bins.find(samples, bin);
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      i64 i = begin + u * nt + threadIdx.x;
      if (i >= size) break;
      i64 offset = numbering.get(bins, value_of<E>(bins, samples[u]), bin[u]);
      if (count) {
        i64 before = inner ? i / (n * inner) * inner + i % inner : index[i] == I(-1) ? -1 : i64(index[i]);
        offset = before < 0 || offset < 0 ? -1 : before * count + offset;
      }
      index[i] = I(offset);
    }
  }
}

}  // namespace coop
