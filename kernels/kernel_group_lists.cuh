// Reductions of many groups of labels that lie as the elements do. Groups come in buckets of 2^14:
//
//   deal_groups   every tile of elements is written back as a list a bucket, of codes within it and of elements
//   reduce_lists  every block takes the lists of one bucket, to a table of its groups in shared memory
//
// Tables do not depend on the order of the elements. These have up to 4 bytes.
#pragma once

#include "buckets.cuh"

namespace coop {

constexpr int group_bits = 14, bucket_groups = 1 << group_bits;

// The elements that take as long to add as a list takes to find.
constexpr unsigned group_list_cost = 16;

// The biased exponent of a finite float, 1 for zero too, or 255.
__device__ inline int exponent_of(float x) {
  int exponent = int(__float_as_uint(x) >> 23 & 0xff);
  return exponent ? exponent : 1;
}

// The larger one of an exponent and that of a value, if it is a finite float.
template <typename T> __device__ int larger_exponent(int exponent, T value) {
  if constexpr (is_float<T>::value) {
    int own = exponent_of(convert<float>(value));
    return own < 255 && own > exponent ? own : exponent;
  } else {
    return exponent;
  }
}

// Returns the largest of a warp's exponents.
__device__ inline int warp_largest(int exponent) {
#pragma unroll
  for (int offset = warp_size / 2; offset > 0; offset /= 2) {
    int other = __shfl_xor_sync(full_mask, exponent, offset);
    exponent = other > exponent ? other : exponent;
  }
  return exponent;
}

// A block for each of the `tiles` tiles, and no more buckets than threads. extents[bucket * tiles + tile] gets where
// a list begins in its tile, shifted by 16, and its length. `sizes` gets about the work that the buckets make, in
// elements, from some of the tiles. Threads take turns in `copies` counters a bucket, for additions to one wait for
// one another. Dynamic shared memory holds a tile, the counters and one more, and what a scan needs. `exponent`
// gets the largest biased exponent of finite floats, if it is less; null for nobody who asks.
template <typename T, int nt, int vt>
__device__ void deal_groups(const T* x, const int* codes, i64 size, int groups, unsigned short* lows, T* values,
                            unsigned* extents, unsigned* sizes, int buckets, int copies, int* exponent) {
  constexpr int nv = nt * vt, every = 64, v = 4;
  static_assert(vt % v == 0 && nv < 1 << 16, "");
  alignas(16) extern __shared__ unsigned char staged[];
  auto* value = reinterpret_cast<T*>(staged);
  auto* low = reinterpret_cast<unsigned short*>(value + nv);
  // Not in static shared memory, which would take from what a block may have.
  auto& storage = *reinterpret_cast<typename Cta<Totals, nt>::Storage*>(low + nv);
  auto* counts = reinterpret_cast<unsigned*>(&storage + 1);
  int tid = threadIdx.x, counters = buckets * copies, mine = tid % copies, most = 1;
  unsigned* block_most = counts + counters + 1;
  i64 tile = blockIdx.x, tiles = gridDim.x, first = tile * nv;
  for (int c = tid; c <= counters + 1; c += nt) counts[c] = 0;
  using Codes = Vector<int, v>;
  using Values = Vector<T, v>;
  bool whole = first + nv <= size && reinterpret_cast<u64>(x) % sizeof(Values) == 0 &&
               reinterpret_cast<u64>(codes) % sizeof(Codes) == 0;
  unsigned code[vt], rank[vt];
  Values loaded[vt / v];
#pragma unroll
  for (int i = 0; i < vt / v; ++i) {
    i64 at = first + (i64(i) * nt + tid) * v;
    Codes some;
    if (whole) {
      some = *reinterpret_cast<const Codes*>(codes + at);
      loaded[i] = *reinterpret_cast<const Values*>(x + at);
    } else {
#pragma unroll
      for (int k = 0; k < v; ++k) {
        some.values[k] = at + k < size ? codes[at + k] : -1;
        if (at + k < size) loaded[i].values[k] = x[at + k];
      }
    }
    if (exponent) {
#pragma unroll
      for (int k = 0; k < v; ++k) {
        if (whole || at + k < size) most = larger_exponent(most, loaded[i].values[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < v; ++k) {
      code[i * v + k] = unsigned(some.values[k]) < unsigned(groups) ? unsigned(some.values[k]) : ~0u;
    }
  }
  __syncthreads();
  if (exponent) {
    most = warp_largest(most);
    if (tid % warp_size == 0) atomicMax(block_most, unsigned(most));
  }
  take_ranks<group_bits>(code, rank, counts, copies, mine);
  __syncthreads();
  unsigned done = 0;
  for (int some = 0; some < counters; some += nt) {
    int c = some + tid;
    unsigned count = c < counters ? counts[c] : 0, all;
    unsigned start = done + Cta<Totals, nt>::scan(count, storage, all);
    done += all;
    if (c < counters) counts[c] = start;
  }
  if (tid == 0) {
    counts[counters] = done;
    // Few blocks find a larger one, and the others need not wait for one another.
    if (exponent && int(*block_most) > *static_cast<volatile int*>(exponent)) atomicMax(exponent, int(*block_most));
  }
  __syncthreads();
  for (int b = tid; b < buckets; b += nt) {
    unsigned start = counts[b * copies], count = counts[(b + 1) * copies] - start;
    extents[b * tiles + tile] = start << 16 | count;
    if (tile % every == 0) atomicAdd(sizes + b, count + group_list_cost);
  }
#pragma unroll
  for (int i = 0; i < vt; ++i) {
    if (code[i] != ~0u) {
      unsigned at = counts[(code[i] >> group_bits) * copies + mine] + rank[i];
      low[at] = code[i] & (bucket_groups - 1);
      value[at] = loaded[i / v].values[i % v];
    }
  }
  __syncthreads();
  using Words = Vector<unsigned, 4>;
  auto* target_lows = reinterpret_cast<Words*>(lows + first);
  auto* target_values = reinterpret_cast<Words*>(values + first);
  int used_lows = (done * 2 + 15) / 16, used_values = int(done * sizeof(T) + 15) / 16;
  for (int i = tid; i < used_lows; i += nt) target_lows[i] = reinterpret_cast<Words*>(low)[i];
  for (int i = tid; i < used_values; i += nt) target_values[i] = reinterpret_cast<Words*>(value)[i];
}

// Blocks are dealt to buckets by the work that these make. Dynamic shared memory holds Table::words words a group and
// those of a scan. All lanes of a warp call table.add, with code ~0 for nothing, and then a thread calls table.flush
// for a group.
template <typename T, typename Table, int nt>
__device__ void reduce_lists(const unsigned short* lows, const T* values, const unsigned* extents,
                             const unsigned* sizes, int buckets, i64 tiles, int nv, int groups, Table table) {
  extern __shared__ unsigned group_words[];
  constexpr int all_words = Table::words * bucket_groups;
  unsigned* words = group_words;
  // Behind the words, because static shared memory would take from what a block may have.
  auto& storage = *reinterpret_cast<typename Cta<Totals, nt>::Storage*>(words + all_words);
  auto& chosen = *reinterpret_cast<BucketShare*>(words + all_words + nt / warp_size);
  int tid = threadIdx.x;
  for (int i = tid; i < all_words; i += nt) words[i] = 0;
  BucketShare share = take_share<nt>(sizes, buckets, storage, chosen);
  if (share.blocks == 0) return;

  i64 first_group = i64(share.bucket) << group_bits;
  table.begin(words, first_group);
  constexpr int unroll = 4;
  unsigned code[unroll];
  T value[unroll];
  auto load = [&](int u, bool held, i64 tile, unsigned at) {
    code[u] = held ? lows[tile * nv + at] : ~0u;
    if (held) value[u] = values[tile * nv + at];
  };
  walk_lists<nt, unroll>(extents, tiles, share, load, [&] {
#pragma unroll
    for (int u = 0; u < unroll; ++u) table.add(code[u], value[u]);
  });
  __syncthreads();
  for (int i = tid; i < bucket_groups && first_group + i < groups; i += nt) table.flush(i);
}

}  // namespace coop
