// Histogram of n samples into the bins between ascending edges, counting as numpy.histogram does.
//
// A sample belongs to the last bin whose left edge is not above it, and the last bin is closed on the
// right. Between edges of equal distance the bin is guessed by arithmetic; the guess is compared with the
// edges only where the sample lies within `slack` bins of one, which bounds every rounding on the way.
#pragma once

#include "load.cuh"
#include "monoids.cuh"

namespace coop {

// E is the type in which samples are compared with edges; scale is 0 where edges are not equidistant.
template <typename E> struct Bins {
  const E* edges;
  int n;
  E low, high, scale, slack;

  // The bin of v, or -1 for a sample outside and for NaN.
  __device__ int find(E v) const {
    if (!(v >= low && v <= high)) return -1;
    if (scale > 0) {
      E t = (v - low) * scale;
      int bin = t < E(n) ? int(t) : n - 1;
      E fraction = t - E(bin);
      if (fraction > slack && fraction < 1 - slack) return bin;
      while (bin > 0 && v < edges[bin]) --bin;
      while (bin < n - 1 && v >= edges[bin + 1]) ++bin;
      return bin;
    }
    int first = 0, last = n - 1;
    while (first < last) {
      int middle = (first + last + 1) / 2;
      if (v >= edges[middle]) first = middle;
      else last = middle - 1;
    }
    return first;
  }
};

// The samples of this block: an equal share, in whole 16-byte vectors of the largest element type.
struct Share {
  i64 begin, size;
  __device__ explicit Share(i64 n) {
    i64 share = (n + gridDim.x - 1) / gridDim.x;
    share = (share + 127) / 128 * 128;
    begin = share * blockIdx.x;
    size = begin >= n ? 0 : (n - begin < share ? n - begin : share);
  }
};

// Every block counts in shared memory, in dynamic storage of n 4-byte counters, and adds its counters to
// the table at the end. A block takes fewer than 2^32 samples.
template <typename T, typename E, int nt>
__device__ void count_shared(const T* x, i64 size, Bins<E> bins, u64* table) {
  extern __shared__ unsigned counters[];
  for (int i = threadIdx.x; i < bins.n; i += nt) counters[i] = 0;
  __syncthreads();
  Share share(size);
  for_each<nt, 4>(x + share.begin, share.size, threadIdx.x, [&](T value, i64) {
    int bin = bins.find(convert<E>(value));
    if (bin >= 0) atomicAdd(counters + bin, 1u);
  });
  __syncthreads();
  for (int i = threadIdx.x; i < bins.n; i += nt) {
    if (counters[i]) atomicAdd(table + i, u64(counters[i]));
  }
}

// Every sample is counted in the table itself: for more bins than shared memory holds.
template <typename T, typename E, int nt>
__device__ void count_global(const T* x, i64 size, Bins<E> bins, u64* table) {
  Share share(size);
  for_each<nt, 4>(x + share.begin, share.size, threadIdx.x, [&](T value, i64) {
    int bin = bins.find(convert<E>(value));
    if (bin >= 0) atomicAdd(table + bin, 1ull);
  });
}

// Weights are added to the table itself; the order of float64 additions is left to the hardware.
template <typename T, typename E, typename W, typename A, int nt>
__device__ void weigh_global(const T* x, const W* weights, i64 size, Bins<E> bins, A* table) {
  Share share(size);
  const W* w = weights + share.begin;
  for_each<nt, 4>(x + share.begin, share.size, threadIdx.x, [&](T value, i64 i) {
    int bin = bins.find(convert<E>(value));
    if (bin >= 0) atomicAdd(table + bin, convert<A>(w[i]));
  });
}

}  // namespace coop
