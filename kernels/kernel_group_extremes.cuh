// Extrema of many groups of labels that lie as the elements do: keys that grow with what is kept, 0 for nothing, of
// elements of up to 4 bytes.
//
//   extremes_shared  a table of all groups in the shared memory of every block, in one read
//   ExtremeTable     the tables of kernel_group_lists.cuh
//   find_extremes    where the first element with its group's key is
//   settle_extremes  makes elements of keys
#pragma once

#include "kernel_group_lists.cuh"
#include "monoids.cuh"

namespace coop {

// The keys of the least or the largest element; NaN is kept, or left out. Zeros have one key where only what is less
// or greater counts.
template <typename T, bool most, bool keeps_nan, bool one_zero> struct ExtremeKey {
  __device__ static unsigned get(T x) {
    unsigned key;
    if constexpr (is_float<T>::value) {
      if (is_nan(x)) return keeps_nan ? ~0u : 0;
      unsigned bits = __float_as_uint(convert<float>(x));
      if (one_zero && bits == 1u << 31) bits = 0;
      key = bits >> 31 ? ~bits : bits | 1u << 31;
    } else {
      key = unsigned(i64(x) - i64(limits<T>::low()));
    }
    return most ? key : (is_float<T>::value ? ~key : unsigned(i64(limits<T>::high()) - i64(x)));
  }
  // Not of 0.
  __device__ static T element(unsigned key) {
    if constexpr (is_float<T>::value) {
      if (keeps_nan && key == ~0u) return convert<T>(__longlong_as_double(0x7ff8000000000000));
      if (!most) key = ~key;
      return convert<T>(double(__uint_as_float(key >> 31 ? key & 0x7fffffff : ~key)));
    } else {
      return most ? T(i64(limits<T>::low()) + i64(key)) : T(i64(limits<T>::high()) - i64(key));
    }
  }
};

// Few elements are better than what a table has.
__device__ inline void keep_better(unsigned* word, unsigned key) {
  if (key > *const_cast<volatile unsigned*>(word)) atomicMax(word, key);
}

template <typename T, typename Key> struct ExtremeTable {
  static constexpr int words = 1;

  unsigned* table;
  unsigned* keys;
  i64 first;

  __device__ explicit ExtremeTable(unsigned* table) : table(table) {}
  __device__ void begin(unsigned* shared, i64 first_group) {
    keys = shared;
    first = first_group;
  }
  __device__ void add(unsigned code, T value) {
    if (code != ~0u) keep_better(keys + code, Key::get(value));
  }
  __device__ void flush(int i) {
    if (keys[i]) keep_better(table + first + i, keys[i]);
  }
};

// Calls f(x[i], codes[i], i) for every i < size, each once, spread over the blocks. v elements are aligned as a whole,
// and so are their codes.
template <int nt, int v, int unroll, typename T, typename F>
__device__ void for_pairs(const T* x, const int* codes, i64 size, F f) {
  i64 each = ((size + gridDim.x - 1) / gridDim.x + 63) / 64 * 64, begin = blockIdx.x * each;
  i64 left = size - begin < each ? size - begin : each;
  int count = left > 0 ? int(left) : 0, vectors = count / v;
  const T* values = x + begin;
  const int* labels = codes + begin;
  for (int j = threadIdx.x; j < vectors; j += unroll * nt) {
    Vector<T, v> loaded[unroll];
    Vector<int, v> found[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (j + u * nt < vectors) {
        loaded[u] = reinterpret_cast<const Vector<T, v>*>(values)[j + u * nt];
        found[u] = reinterpret_cast<const Vector<int, v>*>(labels)[j + u * nt];
      }
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (j + u * nt < vectors) {
#pragma unroll
        for (int k = 0; k < v; ++k) f(loaded[u].values[k], found[u].values[k], begin + (j + u * nt) * v + k);
      }
    }
  }
  int rest = vectors * v + threadIdx.x;
  if (rest < count) f(values[rest], labels[rest], begin + rest);
}

// Dynamic shared memory has a word a group, or two if elements are counted. A block takes fewer than 2^32.
template <typename T, typename Key, int nt, int v, int unroll, bool counted>
__device__ void extremes_shared(const T* x, const int* codes, i64 size, int groups, unsigned* table, u64* counts) {
  extern __shared__ unsigned extreme_words[];
  unsigned *words = extreme_words, *sizes = words + groups;
  for (int i = threadIdx.x; i < groups * (1 + counted); i += nt) words[i] = 0;
  __syncthreads();
  for_pairs<nt, v, unroll>(x, codes, size, [&](T value, int code, i64) {
    if (unsigned(code) >= unsigned(groups)) return;
    if (counted) atomicAdd(sizes + code, 1u);
    keep_better(words + code, Key::get(value));
  });
  __syncthreads();
  for (int i = threadIdx.x; i < groups; i += nt) {
    if (words[i]) keep_better(table + i, words[i]);
    if (counted && sizes[i]) atomicAdd(counts + i, u64(sizes[i]));
  }
}

// The indices are the largest number before. The lowest integer has key 0, as has NaN that is left out.
template <typename T, typename Key, int nt, int v, int unroll>
__device__ void find_extremes(const T* x, const int* codes, i64 size, int groups, const unsigned* table, i64* indices) {
  for_pairs<nt, v, unroll>(x, codes, size, [&](T value, int code, i64 i) {
    if (unsigned(code) >= unsigned(groups)) return;
    unsigned key = Key::get(value);
    if (key != table[code] || (is_float<T>::value && key == 0)) return;
    if (i < *const_cast<volatile i64*>(indices + code)) atomicMin(indices + code, i);
  });
}

// A group a thread. M says what is of no element.
template <typename T, typename Key, typename M>
__device__ void settle_extremes(const unsigned* table, T* out, int groups) {
  i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < groups) out[i] = table[i] ? Key::element(table[i]) : M::identity();
}

}  // namespace coop
