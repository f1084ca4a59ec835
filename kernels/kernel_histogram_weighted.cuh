// Histogram of weighted samples: the weights of each bin are added as integers, so that their order does
// not matter and results do not change from run to run.
//
// Float weights are multiples of 2^-62 of a power of two above the largest of them; those that would lose
// bits so, and there are few as a rule, are added in finer words (add_light): a bin of light weights
// keeps its digits beside a heavy one, down to 2^-167 of the largest weight. Integers are added as they
// are, and wrap as NumPy's. A sum has 96 bits: in shared memory three words (weigh_shared), in global
// memory the sum of what is above 2^32 and the sum of what is below (weigh_global, and where blocks meet),
// and the light words. settle() makes the results of them.
// Infinite weights and NaN are added to the result at once, where they win.
#pragma once

#include "kernel_histogram.cuh"

namespace coop {

// The words of the light weights of a bin, 32 bits each and the rest for carries, and the bits by which
// their unit is finer: what is lighter than 2^-8 of the largest weight fits.
constexpr int light_words = 5, finer = light_words * 32 - 54;

// The exponent of the power of two by which float weights are multiplied.
__device__ inline int unit_power(int exponent) {
  // Below 2^-959 weights lose bits rather than the unit its range.
  return 61 - ((exponent > 64 ? exponent : 64) - 1023);
}

// The power of two by which float weights are multiplied, from the exponent that largest() has found.
__device__ inline double unit(int exponent) {
  return __longlong_as_double(i64(unit_power(exponent) + 1023) << 52);
}

// `exponent` gets the largest biased float64 exponent of the finite weights; it is zero before.
template <typename W, int nt>
__device__ void largest(const W* weights, i64 size, int* exponent) {
  SampleTile tile(size, gridDim.x, blockIdx.x);
  int most = 0;
  for_each<nt, 4>(weights + tile.begin, tile.size, threadIdx.x, [&](W weight, i64) {
    int mine = int(__double_as_longlong(convert<double>(weight)) >> 52 & 0x7ff);
    if (mine < 0x7ff && mine > most) most = mine;
  });
  for (int offset = 16; offset > 0; offset /= 2) {
    int other = __shfl_xor_sync(full_mask, most, offset);
    most = other > most ? other : most;
  }
  if (threadIdx.x % warp_size == 0) atomicMax(exponent, most);
}

// Adds the double of these bits to the light words of a bin, as integers with its sign. A call, for there are
// few such weights, and it would be inlined for each sample of a vector.
__device__ __noinline__ void add_light(i64 bits, int exponent, u64* light) {
  int power = int(bits >> 52 & 0x7ff);
  u64 digits = u64(bits) & 0xfffffffffffffull;
  if (power) digits |= 1ull << 52;
  int shift = (power ? power : 1) - 1075 + unit_power(exponent) + finer;
  if (shift < 0) {
    digits = shift < -60 ? 0 : (digits + (1ull << (-shift - 1))) >> -shift;
    shift = 0;
  }
  int word = shift / 32, by = shift % 32;
  u64 middle = digits >> 32 << by;
  u64 added[3] = {digits << by & 0xffffffff,
                  (((digits & 0xffffffff) << by) >> 32) + (middle & 0xffffffff), middle >> 32};
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    if (added[k]) atomicAdd(light + word + k, bits < 0 ? 0 - added[k] : added[k]);
  }
}

// Weights as integers of 64 bits.
template <typename W, bool is_float> struct Weights {
  // Of a weight this much lighter than the largest the last bit is a multiple of the unit yet.
  static constexpr int depth = sizeof(W) == 8 ? 8 : 37;

  const W* weights;
  double* table;
  u64* light;
  int exponent;
  double scale;

  // Returns false for what it has dealt with itself: not finite, or too light for the unit.
  __device__ bool get(i64 i, unsigned bin, i64& integer) const {
    if constexpr (is_float) {
      double weight = convert<double>(weights[i]);
      integer = __double2ll_rn(weight * scale);
      int mine = int(__double_as_longlong(weight) >> 52 & 0x7ff);
      if (mine == 0x7ff) atomicAdd(table + bin, weight);
      else if (mine < exponent - depth) add_light(__double_as_longlong(weight), exponent, light + i64(bin) * light_words);
      else return true;
      return false;
    } else {
      integer = i64(weights[i]);
      return true;
    }
  }
};

// The sums of the bins in shared memory, three words each, behind what `bins` stages.
template <typename T, typename B, typename W, bool is_float, int nt, int unroll>
__device__ void weigh_shared(const T* x, const W* w, i64 size, B bins, const int* exponent, double* table,
                             u64* high, u64* low, u64* light) {
  extern __shared__ u64 shared[];
  unsigned* words = reinterpret_cast<unsigned*>(shared) + bins.stage(shared) / 4;
  int n = bins.n;
  for (int i = threadIdx.x; i < 3 * n; i += nt) words[i] = 0;
  __syncthreads();
  SampleTile tile(size, gridDim.x, blockIdx.x);
  int most = is_float ? *exponent : 0;
  Weights<W, is_float> weights{w + tile.begin, table, light, most, is_float ? unit(most) : 0.0};
  for_each_sample<nt, unroll>(x + tile.begin, tile.size, bins, [&](unsigned bin, i64 i) {
    i64 integer;
    if (!weights.get(i, bin, integer)) return;
    unsigned word = unsigned(integer);
    u64 carry = u64(atomicAdd(words + bin, word)) + word >> 32;
    u64 middle = (u64(integer) >> 32) + carry;
    word = unsigned(middle);
    carry = (middle >> 32) + (u64(atomicAdd(words + n + bin, word)) + word >> 32);
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
template <typename T, typename B, typename W, bool is_float, int nt, int unroll>
__device__ void weigh_global(const T* x, const W* w, i64 size, B bins, const int* exponent, double* table,
                             u64* high, u64* low, u64* light) {
  SampleTile tile(size, gridDim.x, blockIdx.x);
  int most = is_float ? *exponent : 0;
  Weights<W, is_float> weights{w + tile.begin, table, light, most, is_float ? unit(most) : 0.0};
  for_each_sample<nt, unroll>(x + tile.begin, tile.size, bins, [&](unsigned bin, i64 i) {
    i64 integer;
    if (!weights.get(i, bin, integer)) return;
    u64 above = u64(integer >> 32), below = u64(integer) & 0xffffffff;
    if (above) atomicAdd(high + bin, above);
    if (below) atomicAdd(low + bin, below);
  });
}

// The sum of a bin's light words, in the unit of the others.
__device__ inline double light_sum(const u64* light) {
  unsigned digits[light_words];
  i64 carry = 0;
  for (int k = 0; k < light_words; ++k) {
    carry += i64(light[k]);
    digits[k] = unsigned(carry);
    carry >>= 32;
  }
  // Digits of the magnitude: those of a negative number would cancel after rounding.
  bool negative = carry < 0;
  u64 borrow = negative;
  double sum = 0, power = __longlong_as_double(i64(1023 - finer) << 52);
  for (int k = 0; k < light_words; ++k) {
    if (negative) {
      borrow += u64(~digits[k] & 0xffffffffu);
      digits[k] = unsigned(borrow);
      borrow >>= 32;
    }
    sum += digits[k] * power;
    power *= 4294967296.0;
  }
  sum += double(negative ? i64(u64(~carry) + borrow) : carry) * power;
  return negative ? -sum : sum;
}

// Adds the sums to the table, an element a thread.
template <typename A>
__device__ void settle(A* table, const u64* high, const u64* low, const u64* light, const int* exponent,
                       int n) {
  i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  u64 above = high[i] + (low[i] >> 32), below = low[i] & 0xffffffff;
  if constexpr (is_float<A>::value) {
    double sum = double(i64(above)) * 4294967296.0 + double(below);
    table[i] += (sum + light_sum(light + i * light_words)) / unit(*exponent);
  } else {
    table[i] += above << 32 | below;
  }
}

}  // namespace coop
