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

// The vectors of 16 bytes that the lists of a tile of nv keys fill at most.
template <typename K> __device__ constexpr int key_vectors(int nv, int buckets) {
  return nv / vector_length<K>() + buckets;
}

// A block for each of the `tiles` tiles, and no more buckets than threads. extents[bucket * tiles + tile] gets
// the first vector of a list, shifted by 16, and the number of its keys; `sizes` gets those of all tiles.
template <typename T, int nt, int vt>
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
  take_ranks<0>(bucket, rank, counts);
  __syncthreads();

  unsigned count = tid < buckets ? counts[tid] : 0, all;
  unsigned start = Cta<Totals, nt>::scan((count + v - 1) / v, storage, all);
  if (tid < buckets) {
    starts[tid] = start * v;
    extents[tid * tiles + tile] = start << 16 | count;
    atomicAdd(sizes + tid, count);
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

// Keys and their counts in a block's dynamic shared memory. A key stands in its slot, or behind it where others do;
// what is not found at once waits, until a warp has a lane full of it. Static shared memory would take from what a
// block may have.
template <typename K, int nt> struct KeyTable {
  // What stands in a slot that no key has; the key that is equal to it has a slot of its own, behind all others.
  static constexpr K none = ~K(0);
  static constexpr int v = vector_length<K>(), warps = nt / warp_size, room = (v + 1) * warp_size;

  struct Head {
    typename Cta<Totals, nt>::Storage storage;
    BucketShare share;
    u64 begin;
    unsigned cursor, used;
    bool full;
    alignas(16) K key[warps][room];
    unsigned slot[warps][room];
  };

  Head& head;
  K* keys;
  unsigned* counts;
  unsigned slots, buckets, lane;
  // A warp's keys that wait for another look, and how many there are.
  K* waiting_key;
  unsigned* waiting_slot;
  int waiting;

  // An empty table. Threads must meet before they count.
  __device__ KeyTable(u64* shared, unsigned slots, unsigned buckets)
      : head(*reinterpret_cast<Head*>(shared)), keys(reinterpret_cast<K*>(&head + 1)),
        counts(reinterpret_cast<unsigned*>(keys + slots + 1)), slots(slots), buckets(buckets),
        lane(threadIdx.x % warp_size), waiting_key(head.key[threadIdx.x / warp_size]),
        waiting_slot(head.slot[threadIdx.x / warp_size]), waiting(0) {
    for (unsigned i = threadIdx.x; i <= slots; i += nt) keys[i] = none, counts[i] = 0;
    if (threadIdx.x == 0) head.used = 0, head.full = false;
  }

  __device__ unsigned slot_of(K key) const {
    unsigned slot = unsigned(u64(unsigned(hash(key, buckets))) * slots >> 32);
    return key == none ? slots : slot;
  }

  // Adds 1 to a slot's count, or to one that nobody reads: that needs no branch.
  __device__ void add(bool found, unsigned slot) { atomicAdd(counts + (found ? slot : slots + 1), 1u); }

  // Puts a key of each lane that has one behind `begin` others.
  __device__ void wait(bool missed, K key, unsigned slot, int begin) {
    unsigned lanes = __ballot_sync(full_mask, missed);
    int at = begin + __popc(lanes & ((1u << lane) - 1));
    if (missed) {
      waiting_key[at] = key;
      waiting_slot[at] = slot;
    }
    waiting = begin + __popc(lanes);
  }

  // Counts the first `held` keys of each lane of a warp.
  __device__ void count(const K (&key)[v], int held) {
    unsigned at[v];
    K seen[v];
#pragma unroll
    for (int k = 0; k < v; ++k) at[k] = slot_of(key[k]);
#pragma unroll
    for (int k = 0; k < v; ++k) seen[k] = keys[at[k]];
#pragma unroll
    for (int k = 0; k < v; ++k) {
      bool found = seen[k] == key[k];
      add(found && k < held, at[k]);
      wait(!found && k < held, key[k], at[k] + (seen[k] != none), waiting);
    }
    while (waiting >= warp_size) look_again();
  }

  // Looks at one more slot for each of the keys that wait, as many as there are lanes.
  __device__ void look_again() {
    __syncwarp();
    int begin = waiting < warp_size ? 0 : waiting - warp_size;
    bool mine = begin + int(lane) < waiting;
    K key = mine ? waiting_key[begin + lane] : none;
    unsigned slot = mine ? waiting_slot[begin + lane] : 0;
    if (slot >= slots) slot = 0;
    K seen = mine ? keys[slot] : K(0);
    if (seen == none) {
      seen = atomicCAS(keys + slot, none, key);
      if (seen == none) {
        seen = key;
        // Some slots stay free, or looks for a key that is not there would not end.
        if (atomicAdd(&head.used, 1u) > slots / 8 * 7) head.full = true;
      }
    }
    add(seen == key, slot);
    __syncwarp();
    wait(mine && seen != key, key, slot + 1, begin);
    if (is_full()) waiting = 0;
  }

  // Tells whether there are too many keys; a warp's lanes all get one answer.
  __device__ bool is_full() const {
    return __any_sync(full_mask, *static_cast<const volatile bool*>(&head.full));
  }

  // Writes what is there. found[0] is how many there are of all blocks, found[1] whether there were too many.
  __device__ void write(K* out, i64* out_counts, u64* found) {
    while (waiting) look_again();
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
      unsigned there = __ballot_sync(full_mask, count != 0), at = 0;
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
// bucket's blocks in turn, and a warp reads the lists of as many tiles as it has lanes as one. What is read next is
// under way while keys are counted, by one copy of the code that does it.
template <typename K, int nt>
__device__ void count_keys(const Vector<K, 16 / sizeof(K)>* lists, const unsigned* extents, const unsigned* sizes,
                           int buckets, i64 tiles, int stride, unsigned slots, K* out, i64* out_counts, u64* found) {
  constexpr int v = vector_length<K>();
  extern __shared__ u64 shared[];
  KeyTable<K, nt> table(shared, slots, buckets);
  auto [bucket, index, blocks] = take_share<nt>(sizes, buckets, table.head.storage, table.head.share);
  if (blocks == 0) return;

  const unsigned* mine = extents + bucket * tiles;
  int tid = threadIdx.x, lane = tid % warp_size;
  i64 warps = i64(blocks) * (nt / warp_size), first = index * (nt / warp_size) + tid / warp_size;
  auto extent_at = [&](i64 tile) { return tile < tiles ? mine[tile] : 0u; };
  unsigned next_extent = extent_at(first + lane * warps);
  for (; first < tiles && !table.is_full(); first += warps * warp_size) {
    unsigned extent = next_extent;
    next_extent = extent_at(first + (lane + warp_size) * warps);
    unsigned end = warp_scan<Totals>(((extent & 0xffff) + v - 1) / v);
    unsigned vectors = __shfl_sync(full_mask, end, warp_size - 1);
    Vector<K, v> next;
    // Reads a lane's vector, the i-th of the tiles' lists; returns how many keys it has.
    auto read = [&](unsigned i) {
      int owner = owner_of(end, i);
      unsigned from = __shfl_sync(full_mask, extent, owner), to = __shfl_sync(full_mask, end, owner);
      int count = from & 0xffff, at = int(i) - int(to) + (count + v - 1) / v;
      if (i < vectors) next = lists[(first + owner * warps) * stride + (from >> 16) + at];
      return i < vectors ? count - at * v : 0;
    };
    int next_held = read(lane);
#pragma unroll 1
    for (unsigned begin = 0; begin < vectors; begin += warp_size) {
      Vector<K, v> now = next;
      int held = next_held;
      next_held = read(begin + warp_size + lane);
      table.count(now.values, held);
    }
  }
  table.write(out, out_counts, found);
}

// The same of the elements themselves, of which every block takes a share, a multiple of 16 bytes.
template <typename T, int nt>
__device__ void count_elements(const T* x, i64 n, i64 share, unsigned slots, typename DistinctKey<T>::K* out,
                               i64* out_counts, u64* found) {
  using K = typename DistinctKey<T>::K;
  constexpr int v = vector_length<T>();
  extern __shared__ u64 shared[];
  KeyTable<K, nt> table(shared, slots, 1);
  __syncthreads();
  i64 begin = blockIdx.x * share, end = n - begin < share ? n : begin + share;
  bool aligned = reinterpret_cast<u64>(x) % 16 == 0;
  Vector<T, v> next;
  auto read = [&](i64 from) {
    i64 at = from + threadIdx.x * v;
    int held = end - at < v ? int(end - at) : v;
    if (aligned && held == v) {
      next = *reinterpret_cast<const Vector<T, v>*>(x + at);
    } else {
#pragma unroll
      for (int k = 0; k < v; ++k) {
        if (k < held) next.values[k] = x[at + k];
      }
    }
    return held;
  };
  int next_held = read(begin);
#pragma unroll 1
  for (; begin < end && !table.is_full(); begin += nt * v) {
    K key[v];
#pragma unroll
    for (int k = 0; k < v; ++k) key[k] = DistinctKey<T>::get(next.values[k]);
    int held = next_held;
    next_held = read(begin + nt * v);
    table.count(key, held);
  }
  table.write(out, out_counts, found);
}

}  // namespace coop
