// Order statistics of lines: a team of threads holds a line's keys and bisects for each rank.
//
//   keys      2  3 3      7 8      9      rank 4 of [0, 6): 3 keys are up to mid, so it is above, and so on
//   interval  lo      mid          hi     until lo == hi, or there is only one key from lo to hi
//
// A team is a thread, a warp or a block. There are at most as many steps as keys have bits.
#pragma once

#include "order_keys.cuh"

namespace coop {

// Which values are wanted of `lines` lines, and where they go: of one with c elements that are not NaN
// values[j * distance + line] gets that of the rank ranks[c * step + j], for j < m.
template <typename T> struct Wanted {
  i64 lines;
  const i64* ranks;
  i64 step;
  int m;
  i64 distance;
  T* values;
  i64* counts;
};

__device__ inline unsigned warp_sum(unsigned x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(full_mask, x);
#else
  for (int offset = 16; offset; offset /= 2) x += __shfl_xor_sync(full_mask, x, offset);
  return x;
#endif
}

__device__ inline unsigned warp_min(unsigned x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_min_sync(full_mask, x);
#else
  for (int offset = 16; offset; offset /= 2) x = min(x, __shfl_xor_sync(full_mask, x, offset));
  return x;
#endif
}

__device__ inline u64 warp_min(u64 x) {
  unsigned high = warp_min(unsigned(x >> 32));
  unsigned low = warp_min(unsigned(x >> 32) == high ? unsigned(x) : ~0u);
  return u64(high) << 32 | low;
}

// The keys of a line in the registers of a thread, or of the lanes of a warp; ~0 where the line has ended.
template <typename K, int lanes, int vt> struct RegisterLine {
  static constexpr bool together = lanes > 1;
  K keys[vt];

  __device__ bool leads() const { return lanes == 1 || threadIdx.x % lanes == 0; }

  __device__ unsigned sum(unsigned x) {
    if constexpr (lanes > 1) return warp_sum(x);
    return x;
  }
  __device__ K least(K x) {
    if constexpr (lanes > 1) return warp_min(x);
    return x;
  }
  template <typename F> __device__ void each(F f) const {
#pragma unroll
    for (int i = 0; i < vt; ++i) f(keys[i]);
  }
};

// The keys of a line in shared memory, for a block. Sums and least keys end synchronised.
template <typename K, int nt> struct SharedLine {
  static constexpr bool together = true;
  struct alignas(16) Four {
    K keys[4];
  };
  // For two steps in turn, so that a thread may begin one while another reads the last.
  struct alignas(16) Storage {
    K partial[2][nt / warp_size];
  };

  const Four* fours;
  int count;
  Storage& storage;
  unsigned turn = 0;

  __device__ bool leads() const { return threadIdx.x == 0; }

  template <typename X, typename Of> __device__ X reduce(X x, X neutral, Of of) {
    K* partial = storage.partial[turn++ & 1];
    x = of(x);
    if (threadIdx.x % warp_size == 0) partial[threadIdx.x / warp_size] = K(x);
    __syncthreads();
    int lane = threadIdx.x % warp_size;
    return of(lane < nt / warp_size ? X(partial[lane]) : neutral);
  }
  __device__ unsigned sum(unsigned x) {
    return reduce(x, 0u, [](unsigned a) { return warp_sum(a); });
  }
  __device__ K least(K x) {
    return reduce(x, ~K(0), [](K a) { return warp_min(a); });
  }
  template <typename F> __device__ void each(F f) const {
#pragma unroll 4
    for (int i = threadIdx.x; i < count; i += nt) {
      Four four = fours[i];
#pragma unroll
      for (int k = 0; k < 4; ++k) f(four.keys[k]);
    }
  }
};

template <typename Team, typename K>
__device__ unsigned count_up_to(Team& team, K key) {
  unsigned count = 0;
  team.each([&](K own) { count += own <= key; });
  return team.sum(count);
}

template <typename Team, typename K>
__device__ K least_from(Team& team, K key) {
  K least = ~K(0);
  team.each([&](K own) { least = own >= key && own < least ? own : least; });
  return team.least(least);
}

template <typename Team, typename K>
__device__ K most_up_to(Team& team, K key) {
  K most = 0;
  team.each([&](K own) { most = own <= key && own > most ? own : most; });
  return ~team.least(~most);
}

// Keys that are equal, and how many of the line are below them and up to them.
template <typename K> struct Found {
  K key;
  unsigned below, up_to;
};

// Finds the key of a rank, which is one of [below, up_to), as those of the keys of [lo, hi] are.
template <typename Team, typename K>
__device__ Found<K> bisect(Team& team, unsigned rank, K lo, K hi, unsigned below, unsigned up_to) {
  int idle = 0;
  while (lo < hi) {
    if (up_to - below == 1) {
      lo = least_from(team, lo);
      break;
    }
    // Keys that are equal, or far from the others, take many steps that tell none apart: then the interval
    // is cut to where keys are. Threads with a line each would wait for one another's cuts.
    if (Team::together && idle == 2) {
      lo = least_from(team, lo);
      hi = most_up_to(team, hi);
      idle = 0;
      continue;
    }
    K mid = lo + (hi - lo) / 2;
    unsigned count = count_up_to(team, mid);
    idle = count == below || count == up_to ? idle + 1 : 0;
    if (count > rank) {
      hi = mid;
      up_to = count;
    } else {
      lo = mid + 1;
      below = count;
    }
  }
  return {lo, below, up_to};
}

// Writes what is wanted of a line of n elements, of which the team has the keys.
template <typename T, typename Team>
__device__ void select_ranks(Team& team, unsigned n, i64 line, const Wanted<T>& wanted) {
  using Key = OrderKey<T>;
  using K = typename Key::K;
  K least = ~K(0), most = 0;
  unsigned c = 0;
  team.each([&](K key) {
    least = key < least ? key : least;
    // The last key is of NaN, and behind the line's end.
    most = key != ~K(0) && key > most ? key : most;
    c += key != ~K(0);
  });
  least = team.least(least);
  most = ~team.least(~most);
  c = team.sum(c);
  if (!is_float<T>::value && c < n) {
    // But of integers it is one as others are.
    most = ~K(0);
    c = n;
  }
  if (team.leads()) wanted.counts[line] = c;
  Found<K> found{Key::last, 0, 0};
  for (int j = 0; j < wanted.m; ++j) {
    u64 asked = wanted.ranks[c * wanted.step + j];
    unsigned rank = asked < c ? unsigned(asked) : c - 1;
    if (c == 0 || (rank >= found.below && rank < found.up_to)) {
      // It is the key of the rank before.
    } else if (j && rank == found.up_to) {
      K next = least_from(team, K(found.key + 1));
      found = {next, rank, count_up_to(team, next)};
    } else {
      bool above = j && rank > found.up_to, under = rank < found.below;
      found = bisect(team, rank, above ? K(found.key + 1) : least, under ? K(found.key - 1) : most,
                     above ? found.up_to : 0, under ? found.below : c);
    }
    if (team.leads()) wanted.values[j * wanted.distance + line] = Key::element(found.key);
  }
}

// Calls put(i, get(i)) for every i in [0, n), nt threads together.
template <int nt, typename Get, typename Put>
__device__ void copy_batches(int n, Get get, Put put) {
  constexpr int unroll = 8;
  using T = decltype(get(0));
  // Loads are together, so that they wait for the memory together.
  for (int start = threadIdx.x; start < n; start += nt * unroll) {
    T batch[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (start + u * nt < n) batch[u] = get(start + u * nt);
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (start + u * nt < n) put(start + u * nt, batch[u]);
    }
  }
}

// Loads keys into registers, get(i) the element of the i-th, of which there are `count`.
template <typename T, int vt, typename K, typename Get>
__device__ void load_keys(K (&keys)[vt], int count, Get get) {
  T elements[vt];
#pragma unroll
  for (int i = 0; i < vt; ++i) {
    if (i < count) elements[i] = get(i);
  }
#pragma unroll
  for (int i = 0; i < vt; ++i) keys[i] = i < count ? OrderKey<T>::get(elements[i]) : ~K(0);
}

// Where an element of a tile is in shared memory, so that threads that read lines side by side find it in
// different banks.
__device__ inline int skewed(int at) { return at + at / warp_size; }

// Lines of x, an array of shape (outer, n, inner): a thread a line, of at most vt elements. Dynamic shared
// memory holds `nt` lines if they are contiguous (inner == 1), which are read as they lie.
template <typename T, int vt, int nt>
__device__ void select_by_threads(const T* x, int n, i64 inner, Wanted<T> wanted) {
  extern __shared__ u64 shared[];
  T* tile = reinterpret_cast<T*>(shared);
  RegisterLine<typename OrderKey<T>::K, 1, vt> team;
  i64 first = i64(blockIdx.x) * nt, left = wanted.lines - first, line = first + threadIdx.x;
  if (inner == 1) {
    const T* lines = x + first * n;
    copy_batches<nt>(int(left < nt ? left : nt) * n, [&](int i) { return lines[i]; },
                     [&](int i, T element) { tile[skewed(i)] = element; });
    __syncthreads();
  }
  if (threadIdx.x >= left) return;
  if (inner == 1) {
    load_keys<T>(team.keys, n, [&](int i) { return tile[skewed(threadIdx.x * n + i)]; });
  } else {
    i64 outer = line < inner ? 0 : line / inner;
    const T* column = x + line + outer * (n - 1) * inner;
    load_keys<T>(team.keys, n, [&](int i) { return column[i * inner]; });
  }
  select_ranks(team, unsigned(n), line, wanted);
}

// Lines of x, an array of shape (outer, n, inner): a warp a line, of at most warp_size * vt elements. A block
// takes `width` neighbours. Where lines are not contiguous, dynamic shared memory holds n rows of these and of
// `pad` elements by which the elements of a line are in different banks, and the width is a power of two.
template <typename T, int vt, int nt>
__device__ void select_by_warps(const T* x, int n, i64 inner, int width, int pad, Wanted<T> wanted) {
  extern __shared__ u64 shared[];
  constexpr int warps = nt / warp_size;
  int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  RegisterLine<typename OrderKey<T>::K, warp_size, vt> team;
  T* tile = reinterpret_cast<T*>(shared);
  bool rows = inner == 1;
  i64 side = rows ? wanted.lines : inner, across = (side + width - 1) / width;
  i64 outer = blockIdx.x / across, first = (blockIdx.x - outer * across) * width;
  int columns = int(side - first < width ? side - first : width), pitch = width + pad;
  if (!rows) {
    const T* corner = x + outer * n * inner + first;
    int column = threadIdx.x % width, bits = __ffs(width) - 1;
    if (column < columns) {
      copy_batches<nt>(
          n * width, [&](int i) { return corner[(i >> bits) * inner + column]; },
          [&](int i, T element) { tile[(i >> bits) * pitch + column] = element; });
    }
    __syncthreads();
  }
  // How many of the line's elements are this lane's.
  int count = (n - lane + warp_size - 1) / warp_size;
  for (int own = warp; own < columns; own += warps) {
    i64 line = outer * inner + first + own;
    if (rows) {
      const T* elements = x + line * n + lane;
      load_keys<T>(team.keys, count, [&](int i) { return elements[i * warp_size]; });
    } else {
      const T* elements = tile + lane * pitch + own;
      load_keys<T>(team.keys, count, [&](int i) { return elements[i * warp_size * pitch]; });
    }
    select_ranks(team, unsigned(n), line, wanted);
  }
}

// Contiguous lines of n elements: a block a line, whose keys are in dynamic shared memory.
template <typename T, int nt>
__device__ void select_by_blocks(const T* x, int n, Wanted<T> wanted) {
  extern __shared__ u64 shared[];
  using K = typename OrderKey<T>::K;
  using Line = SharedLine<K, nt>;
  auto& storage = *reinterpret_cast<typename Line::Storage*>(shared);
  K* keys = reinterpret_cast<K*>(&storage + 1);
  int fours = (n + 3) / 4;
  i64 line = blockIdx.x;
  const T* elements = x + line * n;
  copy_batches<nt>(n, [&](int i) { return elements[i]; },
                   [&](int i, T element) { keys[i] = OrderKey<T>::get(element); });
  if (n + int(threadIdx.x) < 4 * fours) keys[n + threadIdx.x] = ~K(0);
  __syncthreads();
  Line team{reinterpret_cast<const typename Line::Four*>(keys), fours, storage};
  select_ranks(team, unsigned(n), line, wanted);
}

}  // namespace coop
