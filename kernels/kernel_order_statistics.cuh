// Order statistics of lines: a team of threads holds a line's keys and bisects for each rank.
//
//   keys      ..2..3..3....7...8....9..   rank 4 of 6: 7 keys up to mid? no: the upper half, and so on,
//   interval  lo         mid        hi    until lo == hi, or a single key of the line is in [lo, hi]
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

// Keys that are equal, and how many of the line are below them and up to them.
template <typename K> struct Found {
  K key;
  unsigned below, up_to;
};

// Finds the key of a rank, which is one of [below, up_to), as those of the keys of [lo, hi] are.
template <typename Team, typename K>
__device__ Found<K> bisect(Team& team, unsigned rank, K lo, K hi, unsigned below, unsigned up_to) {
  while (lo < hi) {
    if (up_to - below == 1) {
      lo = least_from(team, lo);
      break;
    }
    K mid = lo + (hi - lo) / 2;
    unsigned count = count_up_to(team, mid);
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
  K lo = ~K(0), hi = 0;
  team.each([&](K key) {
    lo = key < lo ? key : lo;
    // Such keys are behind the line's end, too.
    if (key != ~K(0)) hi = key > hi ? key : hi;
  });
  lo = team.least(lo);
  hi = ~team.least(~hi);
  unsigned c = n;
  if constexpr (is_float<T>::value) {
    c = count_up_to(team, K(Key::last - 1));
  } else if (Key::bits == 8 * int(sizeof(K)) && count_up_to(team, K(Key::last - 1)) < n) {
    hi = Key::last;
  }
  if (team.leads()) wanted.counts[line] = c;
  Found<K> found{Key::last, 0, 0};
  for (int j = 0; j < wanted.m; ++j) {
    if (c) {
      u64 asked = wanted.ranks[c * wanted.step + j];
      unsigned rank = asked < c ? unsigned(asked) : c - 1;
      if (rank == found.up_to && j) {
        K next = least_from(team, K(found.key + 1));
        found = {next, found.up_to, count_up_to(team, next)};
      } else if (rank > found.up_to && j) {
        found = bisect(team, rank, K(found.key + 1), hi, found.up_to, c);
      } else if (rank < found.below) {
        found = bisect(team, rank, lo, K(found.key - 1), 0u, found.below);
      } else if (!j) {
        found = bisect(team, rank, lo, hi, 0u, c);
      }
    }
    if (team.leads()) wanted.values[j * wanted.distance + line] = Key::element(found.key);
  }
}

// Where an element of a tile is in shared memory, so that threads that read lines side by side find it in
// different banks.
__device__ inline int skewed(int at) { return at + at / warp_size; }

// Lines of x, an array of shape (outer, n, inner): a thread a line, of at most vt elements. Dynamic shared
// memory holds `nt` lines if they are contiguous (inner == 1), which are read as they lie.
template <typename T, int vt, int nt>
__device__ void select_by_threads(const T* x, i64 n, i64 inner, Wanted<T> wanted) {
  extern __shared__ u64 shared[];
  using Key = OrderKey<T>;
  T* tile = reinterpret_cast<T*>(shared);
  RegisterLine<typename Key::K, 1, vt> team;
  for (i64 first = i64(blockIdx.x) * nt; first < wanted.lines; first += i64(gridDim.x) * nt) {
    i64 line = first + threadIdx.x;
    if (inner == 1) {
      i64 left = wanted.lines - first;
      int size = int(left < nt ? left : nt) * int(n);
#pragma unroll 8
      for (int i = threadIdx.x; i < size; i += nt) tile[skewed(i)] = x[first * n + i];
      __syncthreads();
    }
    if (line < wanted.lines) {
      const T* column = x + line / inner * n * inner + line % inner;
#pragma unroll
      for (int i = 0; i < vt; ++i) {
        team.keys[i] = ~typename Key::K(0);
        if (i < n) team.keys[i] = Key::get(inner == 1 ? tile[skewed(threadIdx.x * int(n) + i)] : column[i * inner]);
      }
      select_ranks(team, unsigned(n), line, wanted);
    }
    if (inner == 1) __syncthreads();
  }
}

// Lines of x, an array of shape (outer, n, inner): a warp a line, of at most warp_size * vt elements. Where
// they are not contiguous, dynamic shared memory holds n rows of `width` neighbours, a power of two, and of
// `pad` elements by which the elements of a line are in different banks.
template <typename T, int vt, int nt>
__device__ void select_by_warps(const T* x, i64 n, i64 inner, int width, int pad, Wanted<T> wanted) {
  extern __shared__ u64 shared[];
  using Key = OrderKey<T>;
  constexpr int warps = nt / warp_size;
  int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  RegisterLine<typename Key::K, warp_size, vt> team;
  auto take = [&](const T* elements, int step, i64 line) {
#pragma unroll
    for (int i = 0; i < vt; ++i) {
      int at = i * warp_size + lane;
      team.keys[i] = at < n ? Key::get(elements[at * step]) : ~typename Key::K(0);
    }
    select_ranks(team, unsigned(n), line, wanted);
  };
  if (inner == 1) {
    for (i64 line = i64(blockIdx.x) * warps + warp; line < wanted.lines; line += i64(gridDim.x) * warps) {
      take(x + line * n, 1, line);
    }
    return;
  }
  T* tile = reinterpret_cast<T*>(shared);
  i64 across = (inner + width - 1) / width, tiles = wanted.lines / inner * across;
  for (i64 t = blockIdx.x; t < tiles; t += gridDim.x) {
    i64 outer = t / across, first = t % across * width;
    i64 left = inner - first;
    int columns = int(left < width ? left : width);
    const T* corner = x + outer * n * inner + first;
    int column = threadIdx.x % width;
    if (column < columns) {
#pragma unroll 8
      for (int row = threadIdx.x / width; row < n; row += nt / width) {
        tile[row * (width + pad) + column] = corner[row * inner + column];
      }
    }
    __syncthreads();
    for (int own = warp; own < columns; own += warps) take(tile + own, width + pad, outer * inner + first + own);
    __syncthreads();
  }
}

// Contiguous lines of n elements: a block a line, whose keys are in dynamic shared memory.
template <typename T, int nt>
__device__ void select_by_blocks(const T* x, i64 n, Wanted<T> wanted) {
  extern __shared__ u64 shared[];
  using Key = OrderKey<T>;
  using Line = SharedLine<typename Key::K, nt>;
  auto& storage = *reinterpret_cast<typename Line::Storage*>(shared);
  auto* keys = reinterpret_cast<typename Key::K*>(&storage + 1);
  int fours = int((n + 3) / 4);
  for (i64 line = blockIdx.x; line < wanted.lines; line += gridDim.x) {
    const T* elements = x + line * n;
#pragma unroll 8
    for (int i = threadIdx.x; i < n; i += nt) keys[i] = Key::get(elements[i]);
    if (n + threadIdx.x < 4 * fours) keys[n + threadIdx.x] = ~typename Key::K(0);
    __syncthreads();
    Line team{reinterpret_cast<const typename Line::Four*>(keys), fours, storage};
    select_ranks(team, unsigned(n), line, wanted);
    __syncthreads();
  }
}

}  // namespace coop
