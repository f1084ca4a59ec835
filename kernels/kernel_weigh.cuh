// Histogram of weighted samples: the weights of each bin are added as integers, so that their order does
// not matter and results do not change from run to run.
//
// Float weights are rounded to multiples of 2^-62 of a power of two above the largest of them, and so
// keep what float64 could tell of their sum; integers are added as they are, and wrap as NumPy's. A sum
// has 96 bits: in shared memory three words (weigh_shared), in global memory the part above 2^32 and the
// sum of the parts below (weigh_global, and where blocks meet). settle() makes the results of them.
// Infinite weights and NaN are added to the result at once, where they win.
#pragma once

#include "kernel_histogram.cuh"

namespace coop {

// The power of two by which float weights are multiplied, from the exponent that largest() has found.
__device__ inline double unit(int exponent) {
  // Below 2^-959 weights lose bits rather than the unit its range.
  i64 power = 61 - ((exponent > 64 ? exponent : 64) - 1023);
  return __longlong_as_double((power + 1023) << 52);
}

// `exponent` gets the largest biased float64 exponent of the finite weights; it is zero before.
template <typename W, int nt>
__device__ void largest(const W* weights, i64 size, int* exponent) {
  Share share(size, gridDim.x, blockIdx.x);
  int most = 0;
  for_each<nt, 4>(weights + share.begin, share.size, threadIdx.x, [&](W weight, i64) {
    int mine = int(__double_as_longlong(convert<double>(weight)) >> 52 & 0x7ff);
    if (mine < 0x7ff && mine > most) most = mine;
  });
  for (int offset = 16; offset > 0; offset /= 2) {
    int other = __shfl_xor_sync(full_mask, most, offset);
    most = other > most ? other : most;
  }
  if (threadIdx.x % warp_size == 0) atomicMax(exponent, most);
}

// Weights as integers of 64 bits.
template <typename W, bool is_float> struct Weights {
  const W* weights;
  double scale;

  // Returns false for what is not finite.
  __device__ bool get(i64 i, i64& integer, double& other) const {
    if constexpr (is_float) {
      other = convert<double>(weights[i]);
      integer = __double2ll_rn(other * scale);
      return other - other == 0;
    } else {
      integer = i64(weights[i]);
      return true;
    }
  }
};

// The sums of the bins in shared memory, three words each.
template <typename T, typename B, typename W, bool is_float, int nt>
__device__ void weigh_shared(const T* x, const W* w, i64 size, B bins, const int* exponent, double* table,
                             u64* high, u64* low) {
  extern __shared__ unsigned words[];
  int n = bins.n;
  for (int i = threadIdx.x; i < 3 * n; i += nt) words[i] = 0;
  __syncthreads();
  Share share(size, gridDim.x, blockIdx.x);
  Weights<W, is_float> weights{w + share.begin, is_float ? unit(*exponent) : 0.0};
  for_each<nt, 4>(x + share.begin, share.size, threadIdx.x, [&](T value, i64 i) {
    unsigned bin = bins.find(value);
    if (bin >= n) return;
    i64 integer;
    double other;
    if (!weights.get(i, integer, other)) {
      atomicAdd(table + bin, other);
      return;
    }
    unsigned part = unsigned(integer);
    u64 carry = u64(atomicAdd(words + bin, part)) + part >> 32;
    u64 middle = (u64(integer) >> 32) + carry;
    part = unsigned(middle);
    carry = (middle >> 32) + (u64(atomicAdd(words + n + bin, part)) + part >> 32);
    unsigned top = unsigned(carry) - (integer < 0);
    if (top) atomicAdd(words + 2 * n + bin, top);
  });
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += nt) {
    u64 above = u64(words[2 * n + i]) << 32 | words[n + i];
    if (above) atomicAdd(high + i, above);
    if (words[i]) atomicAdd(low + i, u64(words[i]));
  }
}

// The sums of the bins in global memory.
template <typename T, typename B, typename W, bool is_float, int nt>
__device__ void weigh_global(const T* x, const W* w, i64 size, B bins, const int* exponent, double* table,
                             u64* high, u64* low) {
  Share share(size, gridDim.x, blockIdx.x);
  Weights<W, is_float> weights{w + share.begin, is_float ? unit(*exponent) : 0.0};
  for_each<nt, 4>(x + share.begin, share.size, threadIdx.x, [&](T value, i64 i) {
    unsigned bin = bins.find(value);
    if (bin >= bins.n) return;
    i64 integer;
    double other;
    if (!weights.get(i, integer, other)) {
      atomicAdd(table + bin, other);
      return;
    }
    u64 above = u64(integer >> 32), below = u64(integer) & 0xffffffff;
    if (above) atomicAdd(high + bin, above);
    if (below) atomicAdd(low + bin, below);
  });
}

// Adds the sums to the table, an element a thread.
template <typename A>
__device__ void settle(A* table, const u64* high, const u64* low, const int* exponent, int n) {
  i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  u64 above = high[i] + (low[i] >> 32), below = low[i] & 0xffffffff;
  if constexpr (is_float<A>::value) {
    double sum = double(i64(above)) * 4294967296.0 + double(below);
    table[i] += sum / unit(*exponent);
  } else {
    table[i] += above << 32 | below;
  }
}

}  // namespace coop
