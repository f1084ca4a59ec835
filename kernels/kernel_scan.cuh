// Scan of an array of shape (outer, n, inner) along n, in steps that strategies are made of.
//
// Lines are cut into `tiles`. reduce-then-scan, 3N of traffic:
//
//   upsweep    every tile is reduced to one state: N read
//   spine      the states of a line are scanned, exclusively, from the line's base: these kernels, as
//              Merge<M>, once more
//   downsweep  every tile is scanned from its base: N read, N written
//
// With a fixed number of tiles that is two-level; with tiles of a fixed length the spine is cut again
// where it is long. scan_cooperative takes the three steps in one launch. scan-then-fan, 4N:
//
//   scan       every tile is scanned from the identity and leaves its total: N read, N written
//   spine      as above, over the totals
//   fan        every tile is combined with its base: N read, N written
//
// Where a scan restarts (segments.cuh), states do not commute, and tiles are reduced in order, by a
// scan that writes nothing. Lines that are not cut need the downsweep only. A base comes from device memory,
// one for every (outer, tile, inner); without one the scan starts at the identity. A reverse scan runs from
// the end of a line to its beginning, through the same tiles. Every result is made in a fixed order. x and
// y may be the same memory.
#pragma once

#include "barrier.cuh"
#include "kernel_reduce.cuh"
#include "segments.cuh"

namespace coop {

// A team of a warp or all nt threads scans one contiguous tile, in rounds of vt elements a thread, from
// `carry`, and returns what comes behind it. vt is odd, so that threads read their own elements from
// shared memory without bank conflicts. Without `write` nothing is written: it reduces in order.
template <typename T, typename M, typename R, int nt, int vt, int team, bool exclusive, bool reverse,
          bool write = true>
struct RowScan {
  using State = typename M::State;
  // A round is short beside what comes before it.
  using W = Within<M>;
  using P = typename W::P;
  using Narrow = typename P::State;
  static constexpr int nv = team * vt;
  static constexpr int size = sizeof(T) > sizeof(R) ? sizeof(T) : sizeof(R);

  struct Storage {
    alignas(16) unsigned char bytes[nt * vt * size];
    typename Cta<P, nt>::Storage round;
  };

  static __device__ void synchronise() {
    if constexpr (team == nt) __syncthreads();
    else __syncwarp();
  }

  // x is a pointer to T, or reads as one.
  template <typename X>
  static __device__ State run(X x, R* y, i64 n, State carry, Storage& storage) {
    int lane = threadIdx.x % team;
    unsigned char* round = storage.bytes + (threadIdx.x / team) * nv * size;
    T* in = reinterpret_cast<T*>(round);
    R* out = reinterpret_cast<R*>(round);
    for (i64 begin = 0; begin < n; begin += nv) {
      int count = n - begin < nv ? int(n - begin) : nv;
      X source = x + (reverse ? n - 1 - begin : begin);
#pragma unroll
      for (int k = 0; k < vt; ++k) {
        int i = k * team + lane;
        if (i < count) in[i] = source[reverse ? -i : i];
      }
      synchronise();
      Narrow states[vt];
      Narrow sum = P::identity();
#pragma unroll
      for (int k = 0; k < vt; ++k) {
        int i = lane * vt + k;
        states[k] = i < count ? P::lift(in[i]) : P::identity();
        sum = P::combine(sum, states[k]);
      }
      Narrow before, total;
      if constexpr (team == nt) {
        before = Cta<P, nt>::scan(sum, storage.round, total);
      } else {
        Narrow inclusive = warp_scan<P>(sum);
        before = shuffle_up(inclusive, 1);
        if (lane == 0) before = P::identity();
        total = broadcast(inclusive, warp_size - 1);
      }
      typename W::Walk walk(carry, before);
      carry = W::after(carry, total);
      synchronise();
      if constexpr (!write) continue;
#pragma unroll
      for (int k = 0; k < vt; ++k) {
        out[lane * vt + k] = Result<M, R, exclusive>::of(walk, states[k]);
      }
      synchronise();
      R* target = reverse ? y + n - 1 - begin : y + begin;
#pragma unroll
      for (int k = 0; k < vt; ++k) {
        int i = k * team + lane;
        if (i < count) target[reverse ? -i : i] = out[i];
      }
      synchronise();
    }
    return carry;
  }
};

// inner == 1. A team scans one tile; `totals`, if any, gets what is behind each.
template <typename T, typename M, typename R, int nt, int vt, int team, bool write, bool exclusive,
          bool reverse, typename X>
__device__ void scan_rows(X x, R* y, const typename M::State* base, typename M::State* totals, i64 outer,
                          i64 n, i64 tiles) {
  using Scan = RowScan<T, M, R, nt, vt, team, exclusive, reverse, write>;
  __shared__ typename Scan::Storage storage;
  i64 item = i64(blockIdx.x) * (nt / team) + threadIdx.x / team;
  // Teams are whole warps, so a team leaves as one; a team of nt threads always has an item.
  if (item >= outer * tiles) return;
  LineTile tile(n, tiles, item % tiles);
  i64 first = (item / tiles) * n + tile.begin;
  typename M::State carry = base ? base[item] : M::identity();
  carry = Scan::run(x + first, y + first, tile.end - tile.begin, carry, storage);
  if (totals && threadIdx.x % team == 0) totals[item] = carry;
}

// inner == 1, n at most nt * vt. A block scans as many whole lines as make a tile of that size.
template <typename T, typename M, typename R, int nt, int vt, bool exclusive, bool reverse>
__device__ void scan_short_rows(const T* x, R* y, const typename M::State* base, i64 outer, int n) {
  using W = Within<M>;
  using P = typename W::P;
  using Line = Segmented<P>;
  constexpr int size = sizeof(T) > sizeof(R) ? sizeof(T) : sizeof(R);
  __shared__ alignas(16) unsigned char bytes[nt * vt * size];
  __shared__ typename Cta<Line, nt>::Storage storage;
  T* in = reinterpret_cast<T*>(bytes);
  R* out = reinterpret_cast<R*>(bytes);
  int tid = threadIdx.x, lines = nt * vt / n;
  i64 top = i64(blockIdx.x) * lines;
  if (outer - top < lines) lines = int(outer - top);
  int count = lines * n;
  // A reverse scan runs through the tile from its end, and so through every line.
  auto position = [=](int i) { return reverse ? count - 1 - i : i; };
#pragma unroll
  for (int k = 0; k < vt; ++k) {
    int i = k * nt + tid;
    if (i < count) in[i] = x[top * n + i];
  }
  __syncthreads();

  int line = tid * vt / n, column = tid * vt - line * n;
  auto start = [&](int line) {
    return base && line < lines ? base[top + (reverse ? lines - 1 - line : line)] : M::identity();
  };
  typename P::State states[vt];
  typename Line::State sum = Line::identity();
#pragma unroll
  for (int k = 0; k < vt; ++k) {
    int i = tid * vt + k;
    states[k] = i < count ? P::lift(in[position(i)]) : P::identity();
    if (column == 0) {
      if constexpr (W::same) sum = {start(line), 1};
      else sum = {P::identity(), 1};
    }
    sum.value = P::combine(sum.value, states[k]);
    if (++column == n) {
      column = 0;
      ++line;
    }
  }
  typename Line::State total, before = Cta<Line, nt>::scan(sum, storage, total);
  line = tid * vt / n;
  column = tid * vt - line * n;
  typename W::Walk walk(M::identity());
  if constexpr (W::same) walk = typename W::Walk(before.value);
  else walk = typename W::Walk(start(line), before.value);
#pragma unroll
  for (int k = 0; k < vt; ++k) {
    int i = tid * vt + k;
    if (column == 0) walk = typename W::Walk(start(line));
    R result = Result<M, R, exclusive>::of(walk, states[k]);
    if (i < count) out[position(i)] = result;
    if (++column == n) {
      column = 0;
      ++line;
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < vt; ++k) {
    int i = k * nt + tid;
    if (i < count) y[top * n + i] = out[i];
  }
}

// inner == 1. A block reduces a contiguous tile; every thread returns, thread 0 with its state.
template <typename T, typename M, int nt>
__device__ typename M::State reduce_tile(const T* x, i64 n, typename Cta<M, nt>::Storage& storage) {
  typename M::State sum = M::identity();
  for_each<nt, 4>(x, n, threadIdx.x, [&](T value, i64) { sum = M::combine(sum, M::lift(value)); });
  return Cta<M, nt>::reduce(sum, storage);
}

// inner == 1. A block reduces one tile; states has shape (outer, tiles).
template <typename T, typename M, int nt>
__device__ void upsweep_rows(const T* x, typename M::State* states, i64 n, i64 tiles) {
  __shared__ typename Cta<M, nt>::Storage storage;
  LineTile tile(n, tiles, blockIdx.x % tiles);
  const T* begin = x + (blockIdx.x / tiles) * n + tile.begin;
  auto state = reduce_tile<T, M, nt>(begin, tile.end - tile.begin, storage);
  if (threadIdx.x == 0) states[blockIdx.x] = state;
}

// inner > 1. A block reduces 2^log_width neighbouring columns of a tile, its threads side by side along
// inner and in rows along n; states has shape (outer, tiles, inner).
template <typename T, typename M, int nt>
__device__ void upsweep_columns(const T* x, typename M::State* states, i64 n, i64 inner, i64 tiles,
                                int log_width) {
  using State = typename M::State;
  using W = Within<M>;
  __shared__ alignas(16) unsigned char bytes[nt * sizeof(State)];
  auto* meeting = reinterpret_cast<State*>(bytes);
  int width = 1 << log_width, rows = nt >> log_width;
  int tx = threadIdx.x & (width - 1), ty = threadIdx.x >> log_width;
  i64 groups = (inner + width - 1) >> log_width;
  i64 column = (blockIdx.x % groups) * width + tx, item = blockIdx.x / groups;
  State sum = M::identity();
  if (column < inner) {
    LineTile tile(n, tiles, item % tiles);
    const T* top = x + (item / tiles) * n * inner + column;
    constexpr int unroll = 8;
    for (i64 row = tile.begin + ty; row < tile.end; row += unroll * rows) {
      T loaded[unroll];
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        if (row + u * rows < tile.end) loaded[u] = top[(row + u * rows) * inner];
      }
      typename W::Walk walk(sum);
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        if (row + u * rows < tile.end) walk.add(W::P::lift(loaded[u]));
      }
      sum = walk.state();
    }
  }
  meeting[threadIdx.x] = sum;
  for (int half = rows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (ty < half) {
      meeting[threadIdx.x] = M::combine(meeting[threadIdx.x], meeting[threadIdx.x + half * width]);
    }
  }
  if (ty == 0 && column < inner) states[item * inner + column] = meeting[threadIdx.x];
}

// inner > 1. A thread scans one column of a tile; neighbouring threads take neighbouring columns.
template <typename T, typename M, typename R, int nt, bool exclusive, bool reverse, typename X>
__device__ void scan_columns(X x, R* y, const typename M::State* base, i64 outer, i64 n, i64 inner,
                             i64 tiles) {
  i64 i = i64(blockIdx.x) * nt + threadIdx.x;
  if (i >= outer * tiles * inner) return;
  i64 column = i % inner, item = i / inner;
  LineTile tile(n, tiles, item % tiles);
  i64 offset = (item / tiles) * n * inner + column, rows = tile.end - tile.begin;
  auto offset_of = [=](i64 row) {
    return offset + (reverse ? tile.end - 1 - row : tile.begin + row) * inner;
  };
  using W = Within<M>;
  typename M::State carry = base ? base[i] : M::identity();
  constexpr int unroll = 8;
  for (i64 row = 0; row < rows; row += unroll) {
    T loaded[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (row + u < rows) loaded[u] = x[offset_of(row + u)];
    }
    typename W::Walk walk(carry);
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (row + u < rows) y[offset_of(row + u)] = Result<M, R, exclusive>::of(walk, W::P::lift(loaded[u]));
    }
    carry = walk.state();
  }
}

// inner == 1. The last step of scan-then-fan: a block combines each result of a tile with its base.
template <typename M, typename R, int nt>
__device__ void fan_rows(R* y, const typename M::State* base, i64 n, i64 tiles) {
  LineTile tile(n, tiles, blockIdx.x % tiles);
  R* row = y + (blockIdx.x / tiles) * n;
  using W = Within<M>;
  typename M::State carry = W::ready(base[blockIdx.x]);
  for (i64 i = tile.begin + threadIdx.x; i < tile.end; i += nt) {
    row[i] = W::template result<R>(carry, convert<typename W::P::State>(row[i]));
  }
}

// inner == 1. The two levels in one cooperative launch of outer * tiles blocks, one for each tile.
// `states` has room for one a block, and `arrived` is zero.
template <typename T, typename M, typename R, int nt, int vt, bool exclusive, bool reverse>
__device__ void scan_cooperative(const T* x, R* y, const typename M::State* base,
                                 typename M::State* states, unsigned* arrived, i64 n, i64 tiles) {
  using State = typename M::State;
  using Scan = RowScan<T, M, R, nt, vt, nt, exclusive, reverse>;
  __shared__ typename Scan::Storage storage;
  __shared__ typename Cta<M, nt>::Storage cta;
  __shared__ alignas(16) unsigned char bytes[sizeof(State)];
  State& start = *reinterpret_cast<State*>(bytes);
  int index = blockIdx.x % tiles;
  i64 row = blockIdx.x / tiles;
  LineTile tile(n, tiles, index);
  const T* begin = x + row * n + tile.begin;
  i64 length = tile.end - tile.begin;

  State sum = reduce_tile<T, M, nt>(begin, length, cta);
  if (threadIdx.x == 0) states[blockIdx.x] = sum;
  grid_barrier(arrived, 1);

  // A thread combines neighbours among the tiles that come before, so that their order is kept.
  int before = reverse ? int(tiles) - 1 - index : index, each = (before + nt - 1) / nt;
  const State* line = states + row * tiles;
  sum = M::identity();
  for (int i = threadIdx.x * each; i < before && i < (threadIdx.x + 1) * each; ++i) {
    sum = M::combine(sum, line[reverse ? tiles - 1 - i : i]);
  }
  sum = Cta<M, nt>::reduce(sum, cta);
  if (threadIdx.x == 0) start = base ? M::combine(base[row], sum) : sum;
  __syncthreads();
  Scan::run(begin, y + row * n + tile.begin, length, start, storage);
}

}  // namespace coop
