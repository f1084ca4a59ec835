// Sums of many groups: the tables of kernel_group_lists.cuh, and what is before and after.
//
//   largest_element  the exponent of the largest element, for floats that are not dealt yet
//   settle_groups    makes the sums
//
// Elements are added as integers, so that their order does not matter: floats as multiples of 2^-57 of a power of
// two above the largest. Those that would lose bits so are added apart, in units that are finer by 2^-128; infinities
// and NaN to the result.
#pragma once

#include "kernel_group_lists.cuh"

namespace coop {

// The bits of the largest element, which leave room for the sum of a warp's, and how much lighter than it a float
// with 24 bits is to be added apart.
constexpr int element_bits = 57, element_depth = element_bits - 24;

// The words of what is added apart, 32 bits each and the rest for carries, and by how many bits its unit is finer.
constexpr int apart_group_words = 5, apart_bits = 32 * (apart_group_words - 1);

struct GroupSum {
  using State = i64;
  __device__ static i64 combine(i64 a, i64 b) { return i64(u64(a) + u64(b)); }
};

// The lanes of a warp with elements of one group from which on these are added up before.
constexpr int crowd = 4;

// `exponent` gets the largest one of the finite elements, if it is less.
template <typename T, int nt>
__device__ void largest_element(const T* x, i64 size, int* exponent) {
  int most = 1;
  i64 each = ((size + gridDim.x - 1) / gridDim.x + 63) / 64 * 64, begin = blockIdx.x * each;
  i64 count = size - begin < each ? size - begin : each;
  if (count > 0) {
    for_each<nt, 4>(x + begin, count, threadIdx.x, [&](T value, i64) { most = larger_exponent(most, value); });
  }
  most = warp_largest(most);
  if (threadIdx.x % warp_size == 0) atomicMax(exponent, most);
}

// Adds a light float as integers, with its sign.
__device__ __noinline__ void add_light_element(float x, int exponent, u64* apart) {
  unsigned bits = __float_as_uint(x);
  int mine = int(bits >> 23 & 0xff);
  u64 digits = (bits & 0x7fffff) | (mine ? 1u << 23 : 0u);
  int shift = (mine ? mine : 1) - exponent + element_depth + apart_bits;
  if (shift < 0) {
    digits = shift < -24 ? 0 : (digits + (1ull << (-shift - 1))) >> -shift;
    shift = 0;
  }
  int word = shift / 32;
  digits <<= shift % 32;
  u64 added[2] = {digits & 0xffffffff, digits >> 32};
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    if (added[k]) atomicAdd(apart + word + k, bits >> 31 ? 0 - added[k] : added[k]);
  }
}

// The sums of a bucket, three words each. `special` gets what is not finite, and `apart` what is light.
template <typename T> struct SumTable {
  static constexpr int words = 3;

  double* special;
  u64 *high, *low, *apart;
  const int* exponents;
  unsigned* sums;
  i64 first;
  int exponent;
  double unit;
  // The group that many lanes of the warp last had elements of, or ~0.
  unsigned crowded = ~0u;

  __device__ SumTable(double* special, u64* high, u64* low, u64* apart, const int* exponents)
      : special(special), high(high), low(low), apart(apart), exponents(exponents) {}

  __device__ void begin(unsigned* shared, i64 first_group) {
    sums = shared;
    first = first_group;
    exponent = is_float<T>::value ? *exponents : 0;
    unit = __longlong_as_double(i64(1023 + element_bits - 1 - (exponent - 127)) << 52);
  }

  __device__ void add(unsigned code, T value) {
    i64 integer = 0;
    bool counts = code != ~0u && get(code, value, integer);
    // What goes to a crowded group is added up before: additions to one word wait for one another.
    unsigned leader = crowded != ~0u ? crowded : __shfl_sync(full_mask, code, 0);
    bool joins = counts && code == leader, many = __popc(__ballot_sync(full_mask, joins)) >= crowd;
    crowded = many ? leader : ~0u;
    if (many) {
      i64 sum = warp_reduce<GroupSum, warp_size>(joins ? integer : 0);
      if (threadIdx.x % warp_size == 0) add_integer(leader, sum);
      counts = counts && !joins;
    }
    if (counts) add_integer(code, integer);
  }

  __device__ void flush(int i) {
    u64 above = u64(sums[2 * bucket_groups + i]) << 32 | sums[bucket_groups + i];
    if (above) atomicAdd(high + first + i, above);
    if (sums[i]) atomicAdd(low + first + i, u64(sums[i]));
  }

 private:
  // Returns false for what it has dealt with itself.
  __device__ bool get(unsigned code, T value, i64& integer) {
    if constexpr (is_float<T>::value) {
      float x = convert<float>(value);
      int mine = exponent_of(x);
      if (mine == 255) {
        atomicAdd(special + first + code, double(x));
        return false;
      }
      if (mine < exponent - element_depth) {
        add_light_element(x, exponent, apart + (first + code) * apart_group_words);
        return false;
      }
      integer = __double2ll_rn(double(x) * unit);
    } else {
      integer = i64(value);
    }
    return true;
  }

  __device__ void add_integer(unsigned code, i64 integer) {
    unsigned* own = sums + code;
    unsigned word = unsigned(integer);
    u64 carry = u64(atomicAdd(own, word)) + word >> 32;
    u64 middle = (u64(integer) >> 32) + carry;
    word = unsigned(middle);
    carry = (middle >> 32) + (u64(atomicAdd(own + bucket_groups, word)) + word >> 32);
    unsigned top = unsigned(carry) - (integer < 0);
    if (top) atomicAdd(own + 2 * bucket_groups, top);
  }
};

// Adds the sums to the table, a group a thread.
template <typename A>
__device__ void settle_groups(A* table, const u64* high, const u64* low, const u64* apart, const int* exponent,
                              int groups) {
  i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= groups) return;
  if constexpr (!is_float<A>::value) {
    table[i] += (high[i] << 32) + low[i];
  } else {
    // Digits of 32 bits, of the magnitude: those of a negative number would cancel after rounding.
    const u64* light = apart + i * apart_group_words;
    constexpr int count = apart_group_words + 2;
    i64 parts[count];
#pragma unroll
    for (int k = 0; k < apart_group_words; ++k) parts[k] = i64(light[k]);
    parts[count - 3] += i64(low[i] & 0xffffffff);
    parts[count - 2] = i64(low[i] >> 32) + i64(high[i] & 0xffffffff);
    parts[count - 1] = i64(high[i]) >> 32;
    i64 carry = 0;
#pragma unroll
    for (int k = 0; k < count; ++k) {
      carry += parts[k];
      parts[k] = carry & 0xffffffff;
      carry >>= 32;
    }
    bool negative = carry < 0;
    double sum = 0, power = __longlong_as_double(i64(1023 - apart_bits) << 52);
    i64 borrow = negative;
#pragma unroll
    for (int k = 0; k < count; ++k) {
      if (negative) {
        borrow += ~parts[k] & 0xffffffff;
        parts[k] = borrow & 0xffffffff;
        borrow >>= 32;
      }
      sum += double(parts[k]) * power;
      power *= 4294967296.0;
    }
    sum += double(negative ? ~carry + borrow : carry) * power;
    double unit = __longlong_as_double(i64(1023 - (element_bits - 1 - (*exponent - 127))) << 52);
    table[i] += (negative ? -sum : sum) * unit;
  }
}

}  // namespace coop
