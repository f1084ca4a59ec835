// Elements as unsigned integers of the same order, NaN above all, -0.0 below 0.0.
#pragma once

#include "config.cuh"

namespace coop {

template <int bytes> struct Word { using type = unsigned; };
template <> struct Word<8> { using type = u64; };

template <typename T> struct OrderKey {
  static constexpr int bits = 8 * sizeof(T);
  using K = typename Word<sizeof(T)>::type;
  // The key of NaN, which in a longer word is above all others.
  static constexpr K last = ~K(0);
  static constexpr K top = K(1) << (bits - 1);
  static constexpr K mask = last >> (8 * sizeof(K) - bits);

  __device__ static K get(T x) {
    K word = 0;
    memcpy(&word, &x, sizeof(T));
    if constexpr (is_float<T>::value) return is_nan(x) ? last : word & top ? ~word & mask : word | top;
    else if constexpr (T(-1) < T(0)) return word ^ top;
    else return word;
  }

  // The same in the bits that an element has, which is what its digits are of.
  __device__ static K digits(T x) { return get(x) & mask; }

  __device__ static T element(K key) {
    K word = key;
    if constexpr (is_float<T>::value) word = key == last ? nan() : key & top ? key ^ top : ~key & mask;
    else if constexpr (T(-1) < T(0)) word = key ^ top;
    T x;
    memcpy(&x, &word, sizeof(T));
    return x;
  }

  // The bits of NaN whose mantissa begins with 1 and goes on with 0.
  __device__ static K nan() {
    constexpr int mantissa = sizeof(T) == 2 ? 10 : sizeof(T) == 4 ? 23 : 52;
    return (mask >> 1) & ~((K(1) << (mantissa - 1)) - 1);
  }
};

// Bits of keys by which tables have the prefixes that begin so.
constexpr int begin_bits = 15;

// Returns the first of prefixes `slot` to `end`, which ascend, that is not below `wanted`; the last where all are.
template <typename K>
__device__ unsigned find_prefix(const u64* prefixes, unsigned slot, unsigned end, K wanted) {
  while (slot < end) {
    unsigned middle = (slot + end) / 2;
    if (K(prefixes[middle]) < wanted) slot = middle + 1;
    else end = middle;
  }
  return slot;
}

}  // namespace coop
