// Distinct elements and their counts, in any order, where they are few beside all: by hash tables in shared
// memory. What one table has no room for is dealt to several:
//
//   deal_keys   every tile of elements is written back as a list a bucket, by a hash of their keys
//   count_keys  every block counts the keys of one bucket in its table, and writes what is in it at the end
//
// Blocks that share a bucket, or all of x where there are no buckets, each write the keys that they meet: these
// are few, so a sort adds them up. A table that overflows sets a flag, and then nothing of the results counts.
#pragma once

#include "buckets.cuh"
#include "order_keys.cuh"

namespace coop {

template <typename T> struct DistinctKey {
  static_assert(sizeof(T) >= 4, "smaller elements are counted by their values");
  using K = typename OrderKey<T>::K;

  // Equal elements have equal keys, which are bits of an element: NaN are one value, and zeros are.
  __device__ static K get(T x) {
    K word;
    memcpy(&word, &x, sizeof(T));
    if constexpr (is_float<T>::value) {
      if (is_nan(x)) word = OrderKey<T>::nan();
      if (word << 1 == 0) word = 0;
    }
    return word;
  }
};

// The first bits and the last are of every bit of a key.
__device__ inline unsigned mixed(unsigned k) {
  k = (k ^ k >> 16) * 0x7feb352du;
  k = (k ^ k >> 15) * 0x846ca68bu;
  return k ^ k >> 16;
}
__device__ inline unsigned mixed(u64 k) {
  k = (k ^ k >> 32) * 0x9e3779b97f4a7c15ull;
  k = (k ^ k >> 29) * 0xbf58476d1ce4e5b9ull;
  return unsigned(k >> 32);
}

// The bucket of a key, and from what is left of the hash the slot of a table.
template <typename K> __device__ u64 hash(K key, unsigned buckets) { return u64(mixed(key)) * buckets; }

// Bytes in front of a table.
constexpr int table_head = 256;

// The vectors of 16 bytes that the lists of a tile of nv keys fill at most.
template <typename K> __device__ constexpr int key_vectors(int nv, int buckets) {
  return nv / vector_length<K>() + buckets;
}

// A block for each of the `tiles` tiles, and no more buckets than threads. extents[bucket * tiles + tile] gets
// the first vector of a list, shifted by 16, and the number of its keys; `sizes` those of all, of some tiles.
template <typename T, int nt, int vt, int every>
__device__ void deal_keys(const T* x, i64 n, int buckets, Vector<typename DistinctKey<T>::K, 16 / sizeof(T)>* lists,
                          unsigned* extents, unsigned* sizes) {
  using K = typename DistinctKey<T>::K;
  constexpr int nv = nt * vt, v = vector_length<K>();
  static_assert(vt % v == 0 && nv < 1 << 16, "");
  using Vec = Vector<K, v>;
  extern __shared__ unsigned counts[];
  __shared__ Vec staged[key_vectors<K>(nv, nt)];
  __shared__ typename Cta<Totals, nt>::Storage storage;
  unsigned* starts = counts + buckets;
  K* slots = reinterpret_cast<K*>(staged);
  int tid = threadIdx.x;
  i64 tile = blockIdx.x, tiles = gridDim.x, first = tile * nv;

  for (int b = tid; b < buckets; b += nt) counts[b] = 0;
  Vector<T, v> loaded[vt / v];
  load_tile<nt>(x + first, n - first, loaded);
  K key[vt];
  unsigned bucket[vt], rank[vt];
#pragma unroll
  for (int i = 0; i < vt; ++i) {
    key[i] = DistinctKey<T>::get(loaded[i / v].values[i % v]);
    bool held = first + (i64(i / v) * nt + tid) * v + i % v < n;
    bucket[i] = held ? unsigned(hash(key[i], buckets) >> 32) : ~0u;
  }
  __syncthreads();
  take_ranks(bucket, rank, counts, buckets);
  __syncthreads();

  unsigned count = tid < buckets ? counts[tid] : 0, all;
  unsigned start = Cta<Totals, nt>::scan((count + v - 1) / v, storage, all);
  if (tid < buckets) {
    starts[tid] = start * v;
    extents[tid * tiles + tile] = start << 16 | count;
    if (tile % every == 0) atomicAdd(sizes + tid, count);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < vt; ++i) {
    if (bucket[i] < unsigned(buckets)) slots[starts[bucket[i]] + rank[i]] = key[i];
  }
  __syncthreads();
  Vec* target = lists + tile * key_vectors<K>(nv, buckets);
  for (unsigned i = tid; i < all; i += nt) target[i] = staged[i];
}

// Keys and counts in a block's dynamic shared memory, `slots` + 1 of each, behind what its threads share besides:
// static shared memory would take from what a block may have.
template <typename K, int nt> struct KeyTable {
  // What stands in a slot that no key has; the key that is equal to it has a slot of its own, the last.
  static constexpr K none = ~K(0);
  // Keys that are this far from where they ought to be say that there are too many.
  static constexpr int most_probes = 128;

  struct Head {
    typename Cta<Totals, nt>::Storage storage;
    BucketShare share;
    u64 begin;
    unsigned cursor;
    bool full;
  };
  static_assert(sizeof(Head) <= table_head, "");

  Head& head;
  K* keys;
  unsigned* counts;
  unsigned slots, buckets;

  // An empty table. Threads must meet before they count.
  __device__ KeyTable(unsigned char* shared, unsigned slots, unsigned buckets)
      : head(*reinterpret_cast<Head*>(shared)), keys(reinterpret_cast<K*>(shared + table_head)),
        counts(reinterpret_cast<unsigned*>(keys + slots + 1)), slots(slots), buckets(buckets) {
    for (unsigned i = threadIdx.x; i <= slots; i += nt) keys[i] = none, counts[i] = 0;
    if (threadIdx.x == 0) head.full = false;
  }

  __device__ bool is_full() const { return *static_cast<volatile bool*>(&head.full); }

  __device__ unsigned slot_of(K key) const {
    unsigned slot = unsigned(u64(unsigned(hash(key, buckets))) * slots >> 32);
    return key == none ? slots : slot;
  }

  // Counts the first `held` keys.
  template <int m> __device__ void count(const K (&key)[m], int held) {
    unsigned at[m], missed = 0;
    K seen[m];
#pragma unroll
    for (int k = 0; k < m; ++k) at[k] = slot_of(key[k]);
#pragma unroll
    for (int k = 0; k < m; ++k) seen[k] = keys[at[k]];
#pragma unroll
    for (int k = 0; k < m; ++k) {
      bool here = seen[k] == key[k];
      if (here && k < held) atomicAdd(counts + at[k], 1u);
      missed |= unsigned(!here && k < held) << k;
    }
    // Those of a lane that stand elsewhere, or nowhere yet, one after the other: so no lane waits for another
    // at each of its keys.
    int probes = 0;
    unsigned slot = 0;
    while (missed) {
      int which = __ffs(missed) - 1;
      K mine = key[0], first = seen[0];
      unsigned begin = at[0];
#pragma unroll
      for (int k = 1; k < m; ++k) {
        if (which == k) mine = key[k], first = seen[k], begin = at[k];
      }
      slot = probes ? slot + 1 : begin + (first != none);
      if (slot >= slots) slot = 0;
      ++probes;
      K there = keys[slot];
      if (there == none) {
        there = atomicCAS(keys + slot, none, mine);
        if (there == none) there = mine;
      }
      if (there == mine) {
        atomicAdd(counts + slot, 1u);
        missed &= missed - 1;
        probes = 0;
      } else if (probes > most_probes) {
        head.full = true;
        return;
      }
    }
  }

  // Writes what is there. found[0] is how many there are of all blocks, found[1] whether there were too many.
  __device__ void write(K* out, i64* out_counts, u64* found) {
    __syncthreads();
    if (head.full) {
      if (threadIdx.x == 0) found[1] = 1;
      return;
    }
    unsigned mine = 0;
    for (unsigned i = threadIdx.x; i <= slots; i += nt) mine += counts[i] != 0;
    mine = Cta<Totals, nt>::reduce(mine, head.storage);
    if (threadIdx.x == 0) {
      head.begin = atomicAdd(found, u64(mine));
      head.cursor = 0;
    }
    __syncthreads();
    for (unsigned from = 0; from <= slots; from += nt) {
      unsigned i = from + threadIdx.x, count = i <= slots ? counts[i] : 0;
      unsigned there = __ballot_sync(full_mask, count != 0), lane = threadIdx.x % warp_size, at = 0;
      if (lane == 0) at = atomicAdd(&head.cursor, unsigned(__popc(there)));
      at = __shfl_sync(full_mask, at, 0) + __popc(there & ((1u << lane) - 1));
      if (count) {
        out[head.begin + at] = keys[i];
        out_counts[head.begin + at] = count;
      }
    }
  }
};

// Blocks are dealt to buckets by their sizes, at least one to each. The tiles are dealt to the warps of a
// bucket's blocks in turn, and a warp reads the lists of as many tiles as it has lanes as one.
template <typename K, int nt, int unroll>
__device__ void count_keys(const Vector<K, 16 / sizeof(K)>* lists, const unsigned* extents, const unsigned* sizes,
                           int buckets, i64 tiles, int stride, unsigned slots, K* out, i64* out_counts, u64* found) {
  constexpr int v = vector_length<K>();
  extern __shared__ u64 shared[];
  KeyTable<K, nt> table(reinterpret_cast<unsigned char*>(shared), slots, buckets);
  auto [bucket, index, blocks] = take_share<nt>(sizes, buckets, table.head.storage, table.head.share);
  if (blocks == 0) return;

  const unsigned* mine = extents + bucket * tiles;
  int tid = threadIdx.x, lane = tid % warp_size;
  i64 warps = i64(blocks) * (nt / warp_size);
  for (i64 first = index * (nt / warp_size) + tid / warp_size; first < tiles; first += warps * warp_size) {
    i64 tile = first + lane * warps;
    unsigned extent = tile < tiles ? mine[tile] : 0;
    unsigned end = warp_scan<Totals>(((extent & 0xffff) + v - 1) / v);
    unsigned vectors = __shfl_sync(full_mask, end, warp_size - 1);
    for (unsigned begin = 0; begin < vectors; begin += warp_size * unroll) {
      // Asked together, which lets lanes meet before they shuffle.
      if (__any_sync(full_mask, table.is_full())) break;
      K key[unroll][v];
      int held[unroll];
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        unsigned i = begin + u * warp_size + lane;
        int owner = 0;
#pragma unroll
        for (int step = warp_size / 2; step > 0; step /= 2) {
          if (__shfl_sync(full_mask, end, owner + step - 1) <= i) owner += step;
        }
        unsigned from = __shfl_sync(full_mask, extent, owner), to = __shfl_sync(full_mask, end, owner);
        int count = from & 0xffff, at = int(i) - int(to) + (count + v - 1) / v;
        held[u] = i < vectors ? count - at * v : 0;
        if (i < vectors) {
          auto some = lists[(first + owner * warps) * stride + (from >> 16) + at];
#pragma unroll
          for (int k = 0; k < v; ++k) key[u][k] = some.values[k];
        }
      }
#pragma unroll
      for (int u = 0; u < unroll; ++u) table.count(key[u], held[u]);
    }
  }
  table.write(out, out_counts, found);
}

// For for_each_ahead.
template <typename T, int nt> struct EachCounted {
  using K = typename DistinctKey<T>::K;
  KeyTable<K, nt>& table;

  template <int m> __device__ void operator()(const T (&samples)[m], i64) {
    K key[m];
    if (table.is_full()) return;
#pragma unroll
    for (int k = 0; k < m; ++k) key[k] = DistinctKey<T>::get(samples[k]);
    table.count(key, m);
  }
};

// The same of the elements themselves, of which every block takes a share.
template <typename T, int nt, int unroll>
__device__ void count_elements(const T* x, i64 n, i64 share, unsigned slots, typename DistinctKey<T>::K* out,
                               i64* out_counts, u64* found) {
  extern __shared__ u64 shared[];
  KeyTable<typename DistinctKey<T>::K, nt> table(reinterpret_cast<unsigned char*>(shared), slots, 1);
  __syncthreads();
  i64 begin = blockIdx.x * share, size = n - begin < share ? n - begin : share;
  if (size > 0) for_each_ahead<nt, unroll>(x + begin, size, threadIdx.x, EachCounted<T, nt>{table});
  table.write(out, out_counts, found);
}

}  // namespace coop
