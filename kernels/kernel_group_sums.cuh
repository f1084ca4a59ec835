// Sums of many groups of labels that lie as the elements do. Groups come in buckets of 2^14:
//
//   largest_element  the exponent of the largest element, for floats
//   deal_groups      every tile of elements is written back as a list a bucket, of codes within it and of elements
//   add_lists        every block adds up the lists of one bucket in shared memory
//   settle_groups    makes the sums
//
// Elements are added as integers, so that their order does not matter: floats as multiples of 2^-57 of a power of
// two above the largest. Those that would lose bits so are added apart, in units that are finer by 2^-128; infinities
// and NaN to the result. For elements of up to 4 bytes.
#pragma once

#include "cta.cuh"
#include "load.cuh"

namespace coop {

constexpr int group_bits = 14, bucket_groups = 1 << group_bits;

// The bits of the largest element, which leave room for the sum of a warp's, and how much lighter than it a float
// with 24 bits is to be added apart.
constexpr int element_bits = 57, element_depth = element_bits - 24;

// The words of what is added apart, 32 bits each and the rest for carries, and by how many bits its unit is finer.
constexpr int apart_group_words = 5, apart_bits = 32 * (apart_group_words - 1);

// The elements that take as long to add as a list takes to find.
constexpr unsigned group_list_cost = 16;

struct GroupTotals {
  using State = unsigned;
  __device__ static State identity() { return 0; }
  __device__ static State combine(State a, State b) { return a + b; }
};

struct GroupSum {
  using State = i64;
  __device__ static i64 combine(i64 a, i64 b) { return i64(u64(a) + u64(b)); }
};

// The lanes of a warp with elements of one group from which on these are added up before.
constexpr int crowd = 4;

// The biased exponent of a finite float, 1 for zero too, or 255.
__device__ inline int exponent_of(float x) {
  int exponent = int(__float_as_uint(x) >> 23 & 0xff);
  return exponent ? exponent : 1;
}

// `exponent` gets the largest one of the finite elements; it is zero before.
template <typename T, int nt>
__device__ void largest_element(const T* x, i64 size, int* exponent) {
  int most = 1;
  i64 each = ((size + gridDim.x - 1) / gridDim.x + 63) / 64 * 64, begin = blockIdx.x * each;
  i64 count = size - begin < each ? size - begin : each;
  if (count > 0) {
    for_each<nt, 4>(x + begin, count, threadIdx.x, [&](T value, i64) {
      int mine = exponent_of(convert<float>(value));
      if (mine < 255 && mine > most) most = mine;
    });
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    int other = __shfl_xor_sync(full_mask, most, offset);
    most = other > most ? other : most;
  }
  if (threadIdx.x % warp_size == 0) atomicMax(exponent, most);
}

// A block for each of the `tiles` tiles, and no more buckets than threads. extents[bucket * tiles + tile] gets where
// a list begins in its tile, shifted by 16, and its length. `sizes` gets about the work that the buckets make, in
// elements, from some of the tiles. Dynamic shared memory holds a tile and two numbers a bucket.
template <typename T, int nt, int vt>
__device__ void deal_groups(const T* x, const int* codes, i64 size, int groups, unsigned short* lows, T* values,
                            unsigned* extents, unsigned* sizes, int buckets) {
  constexpr int nv = nt * vt, every = 64, v = 4;
  static_assert(vt % v == 0 && nv < 1 << 16, "");
  alignas(16) extern __shared__ unsigned char staged[];
  __shared__ typename Cta<GroupTotals, nt>::Storage storage;
  auto* value = reinterpret_cast<T*>(staged);
  auto* low = reinterpret_cast<unsigned short*>(value + nv);
  auto* counts = reinterpret_cast<unsigned*>(low + nv);
  unsigned* starts = counts + buckets;
  int tid = threadIdx.x;
  i64 tile = blockIdx.x, tiles = gridDim.x, first = tile * nv;
  for (int b = tid; b < buckets; b += nt) counts[b] = 0;
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
#pragma unroll
    for (int k = 0; k < v; ++k) {
      code[i * v + k] = unsigned(some.values[k]) < unsigned(groups) ? unsigned(some.values[k]) : ~0u;
    }
  }
  __syncthreads();
  // Neighbours in one bucket take their ranks at once: additions to one counter wait for one another.
#pragma unroll
  for (int i = vt - 1; i >= 0; --i) {
    bool joined = i < vt - 1 && code[i + (i < vt - 1)] >> group_bits == code[i] >> group_bits;
    rank[i] = joined ? rank[i + (i < vt - 1)] + 1 : 1;
  }
#pragma unroll
  for (int i = 0; i < vt; ++i) {
    bool joined = i > 0 && code[i - (i > 0)] >> group_bits == code[i] >> group_bits;
    if (joined) rank[i] = rank[i - (i > 0)] + 1;
    else if (code[i] != ~0u) rank[i] = atomicAdd(counts + (code[i] >> group_bits), rank[i]);
  }
  __syncthreads();
  unsigned done = 0;
  for (int some = 0; some < buckets; some += nt) {
    int b = some + tid;
    unsigned mine = b < buckets ? counts[b] : 0, all;
    unsigned start = done + Cta<GroupTotals, nt>::scan(mine, storage, all);
    done += all;
    if (b < buckets) {
      starts[b] = start;
      extents[b * tiles + tile] = start << 16 | mine;
      if (tile % every == 0) atomicAdd(sizes + b, mine + group_list_cost);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < vt; ++i) {
    if (code[i] != ~0u) {
      unsigned at = starts[code[i] >> group_bits] + rank[i];
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

// Blocks are dealt to buckets by the work that these make, at least one to each. The tiles are dealt to the warps of
// a bucket's blocks in turn, and a warp reads the lists of as many tiles as it has lanes as one. Dynamic shared
// memory holds three words a group and those of a scan. `special` gets what is not finite, and `apart` what is light.
template <typename T, int nt>
__device__ void add_lists(const unsigned short* lows, const T* values, const unsigned* extents, const unsigned* sizes,
                          int buckets, i64 tiles, int nv, int groups, const int* exponents, double* special, u64* high,
                          u64* low, u64* apart) {
  extern __shared__ unsigned group_words[];
  unsigned* words = group_words;
  // Behind the words, because static shared memory would take from what a block may have.
  auto& storage = *reinterpret_cast<typename Cta<GroupTotals, nt>::Storage*>(words + 3 * bucket_groups);
  unsigned* chosen = words + 3 * bucket_groups + nt / warp_size;
  int tid = threadIdx.x;
  unsigned size = tid < buckets ? sizes[tid] : 0, all;
  Cta<GroupTotals, nt>::scan(size, storage, all);
  unsigned blocks = tid < buckets ? 1 + unsigned(u64(size) * (gridDim.x - buckets) / (u64(all) + 1)) : 0;
  unsigned before = Cta<GroupTotals, nt>::scan(blocks, storage, all);
  if (tid == 0) chosen[2] = 0;
  __syncthreads();
  if (before <= blockIdx.x && blockIdx.x < before + blocks) {
    chosen[0] = tid;
    chosen[1] = blockIdx.x - before;
    chosen[2] = blocks;
  }
  for (int i = tid; i < 3 * bucket_groups; i += nt) words[i] = 0;
  __syncthreads();
  unsigned bucket = chosen[0], index = chosen[1];
  blocks = chosen[2];
  if (blocks == 0) return;

  i64 first_group = i64(bucket) << group_bits;
  int exponent = is_float<T>::value ? *exponents : 0;
  double unit = __longlong_as_double(i64(1023 + element_bits - 1 - (exponent - 127)) << 52);
  // Returns false for what it has dealt with itself.
  auto get = [&](unsigned code, T value, i64& integer) {
    if constexpr (is_float<T>::value) {
      float x = convert<float>(value);
      int mine = exponent_of(x);
      if (mine == 255) {
        atomicAdd(special + first_group + code, double(x));
        return false;
      }
      if (mine < exponent - element_depth) {
        add_light_element(x, exponent, apart + (first_group + code) * apart_group_words);
        return false;
      }
      integer = __double2ll_rn(double(x) * unit);
    } else {
      integer = i64(value);
    }
    return true;
  };
  auto add = [&](unsigned code, i64 integer) {
    unsigned* own = words + code;
    unsigned word = unsigned(integer);
    u64 carry = u64(atomicAdd(own, word)) + word >> 32;
    u64 middle = (u64(integer) >> 32) + carry;
    word = unsigned(middle);
    carry = (middle >> 32) + (u64(atomicAdd(own + bucket_groups, word)) + word >> 32);
    unsigned top = unsigned(carry) - (integer < 0);
    if (top) atomicAdd(own + 2 * bucket_groups, top);
  };
  const unsigned* mine = extents + bucket * tiles;
  constexpr int unroll = 4;
  int lane = tid % warp_size;
  i64 warps = i64(blocks) * (nt / warp_size);
  for (i64 first = index * (nt / warp_size) + tid / warp_size; first < tiles; first += warps * warp_size) {
    i64 tile = first + lane * warps;
    unsigned extent = tile < tiles ? mine[tile] : 0;
    unsigned end = warp_scan<GroupTotals>(extent & 0xffff);
    unsigned count = __shfl_sync(full_mask, end, warp_size - 1);
    for (unsigned begin = 0; begin < count; begin += warp_size * unroll) {
      unsigned code[unroll];
      T value[unroll];
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        unsigned i = begin + u * warp_size + lane;
        int owner = 0;
#pragma unroll
        for (int step = warp_size / 2; step > 0; step /= 2) {
          if (__shfl_sync(full_mask, end, owner + step - 1) <= i) owner += step;
        }
        unsigned from = __shfl_sync(full_mask, extent, owner), to = __shfl_sync(full_mask, end, owner);
        i64 at = (first + owner * warps) * nv + (from >> 16) + i + (from & 0xffff) - to;
        code[u] = i < count ? lows[at] : ~0u;
        if (i < count) value[u] = values[at];
      }
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        i64 integer = 0;
        bool counts = code[u] != ~0u && get(code[u], value[u], integer);
        // What goes to the group of the first lane is added up before: additions to one word wait for one another.
        unsigned leader = __shfl_sync(full_mask, code[u], 0);
        bool joins = counts && code[u] == leader;
        if (__popc(__ballot_sync(full_mask, joins)) >= crowd) {
          i64 sum = warp_reduce<GroupSum, warp_size>(joins ? integer : 0);
          if (lane == 0) add(leader, sum);
          counts = counts && !joins;
        }
        if (counts) add(code[u], integer);
      }
    }
  }
  __syncthreads();
  for (int i = tid; i < bucket_groups && first_group + i < groups; i += nt) {
    u64 above = u64(words[2 * bucket_groups + i]) << 32 | words[bucket_groups + i];
    if (above) atomicAdd(high + first_group + i, above);
    if (words[i]) atomicAdd(low + first_group + i, u64(words[i]));
  }
}

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
