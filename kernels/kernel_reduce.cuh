// Reduction of an array of shape (outer, n, inner) over n, in one read.
//
//   slabs     many slabs of (n, inner) fit into a block's shared memory: its threads take their lines
//   rows      inner == 1: a warp reduces a contiguous line, or a block a tile of a long one
//   columns   inner > 1: a block's threads stand side by side along inner, and in rows along n
//   threads   inner > 1, and lines enough to give every thread its own
//
// Where there are too few lines to keep a GPU busy, each is cut into so many `tiles`, of one block each.
// A block leaves the state of its tile behind and counts itself; the last one of a line combines what
// all of them left, in the order of the tiles. So every state is made in a fixed order, and results do
// not change from run to run. M must be commutative.
#pragma once

#include "compensated.cuh"
#include "cta.cuh"
#include "load.cuh"
#include "reproducible.cuh"

namespace coop {

// The elements of a tile of a line of n, the one numbered `index`; a tile begins at a multiple of `grain`.
struct LineTile {
  i64 begin, end;
  __device__ LineTile(i64 n, i64 tiles, i64 index, int grain = 1) {
    i64 length = (n + tiles - 1) / tiles;
    length = (length + grain - 1) / grain * grain;
    begin = index * length < n ? index * length : n;
    end = begin + length < n ? begin + length : n;
  }
};

// inner == 1. A warp reduces one line; out has shape (outer,).
template <typename T, typename M, int nt, int unroll>
__device__ void reduce_rows(const T* x, typename M::State* out, i64 outer, int n) {
  i64 line = i64(blockIdx.x) * (nt / warp_size) + threadIdx.x / warp_size;
  if (line >= outer) return;
  int lane = threadIdx.x % warp_size;
  typename M::Lift lift;
  for_each<warp_size, unroll>(x + line * n, n, lane, [&](T value, int i) { lift.add(value, i); });
  typename M::State s = warp_reduce<M, warp_size>(lift.state(0));
  if (lane == 0) out[line] = s;
}

// Combines the states of the threads of a block with those of the other tiles of its line. `tile_states`
// holds the states of tiles and `tickets` a zero for every line; both may be null where tiles == 1.
template <typename M, int nt>
__device__ void combine_tiles(typename M::State s, typename M::State* out, typename M::State* tile_states,
                              unsigned* tickets, i64 line, i64 tiles) {
  __shared__ typename Cta<M, nt>::Storage storage;
  s = Cta<M, nt>::reduce(s, storage);
  if (threadIdx.x == 0) (tiles == 1 ? out : tile_states)[blockIdx.x] = s;
  if (tiles == 1 || !arrive_last(tickets + line, tiles)) return;
  s = M::identity();
  for (i64 i = threadIdx.x; i < tiles; i += nt) {
    s = M::combine(s, tile_states[line * tiles + i]);
  }
  s = Cta<M, nt>::reduce(s, storage);
  if (threadIdx.x == 0) out[line] = s;
}

// inner == 1, and a block for each of the `tiles` of a line; out has shape (outer,).
template <typename T, typename M, int nt, int unroll>
__device__ void reduce_long_rows(const T* x, typename M::State* out, typename M::State* tile_states,
                                 unsigned* tickets, i64 n, i64 tiles) {
  i64 line = blockIdx.x / tiles;
  LineTile tile(n, tiles, blockIdx.x % tiles, 128 / sizeof(T));
  typename M::Lift lift;
  for_each<nt, unroll>(x + line * n + tile.begin, int(tile.end - tile.begin), threadIdx.x,
                       [&](T value, int i) { lift.add(value, i); });
  combine_tiles<M, nt>(lift.state(tile.begin), out, tile_states, tickets, line, tiles);
}

// The same for elements {x, y} of T, each read from an array of its own. With `skips`, they are {0, 0} where
// x is NaN.
template <typename T, typename Real, typename M, int nt, int unroll>
__device__ void reduce_long_pairs(const Real* x, const Real* y, typename M::State* out,
                                  typename M::State* tile_states, unsigned* tickets, i64 n, i64 tiles, int skips) {
  i64 line = blockIdx.x / tiles;
  LineTile tile(n, tiles, blockIdx.x % tiles, 128 / sizeof(Real));
  i64 begin = line * n + tile.begin;
  typename M::Lift lift;
  for_each_pair<nt, unroll>(x + begin, y + begin, int(tile.end - tile.begin), threadIdx.x,
                            [&](Real a, Real b, int i) {
                              lift.add(skips && a != a ? T{0, 0} : T{a, b}, i);
                            });
  combine_tiles<M, nt>(lift.state(tile.begin), out, tile_states, tickets, line, tiles);
}

// Lines enough for a thread to take v neighbouring ones alone, where v divides inner. `columns` is
// outer * inner, and so is the size of out.
template <typename T, typename M, int nt, int v, int unroll>
__device__ void reduce_threads(const T* x, typename M::State* out, i64 columns, int n, i64 inner) {
  using State = typename M::State;
  using Vec = Vector<T, v>;
  i64 column = (i64(blockIdx.x) * nt + threadIdx.x) * v;
  if (column >= columns) return;
  const T* source = x + column / inner * n * inner + column % inner;
  typename M::Lift lift[v];
  // The first `count` loads are made together, so that they wait for the memory together.
  auto batch = [&](int row, int count) {
    Vec loaded[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (u < count) {
        loaded[u] = *reinterpret_cast<const Vec*>(source);
        source += inner;
      }
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (u < count) {
#pragma unroll
        for (int k = 0; k < v; ++k) lift[k].add(loaded[u].values[k], row + u);
      }
    }
  };
  int row = 0;
  for (; row + unroll <= n; row += unroll) batch(row, unroll);
  if (row < n) batch(row, n - row);
  constexpr int bytes = v * sizeof(State);
  if constexpr (bytes % 16 == 0) {
    State states[v];
#pragma unroll
    for (int k = 0; k < v; ++k) states[k] = lift[k].state(0);
#pragma unroll
    for (int k = 0; k < bytes / 16; ++k) {
      Vector<unsigned, 4> words;
      memcpy(&words, reinterpret_cast<const unsigned char*>(states) + 16 * k, 16);
      reinterpret_cast<Vector<unsigned, 4>*>(out + column)[k] = words;
    }
  } else {
#pragma unroll
    for (int k = 0; k < v; ++k) out[column + k] = lift[k].state(0);
  }
}

// Combines states[i + width * j] over j < count, neighbours in pairs, into states[i], for i < width.
// Starts and ends synchronised.
template <typename M, int nt>
__device__ void combine_rows(typename M::State* states, int count, int width) {
  __syncthreads();
  for (int half; count > 1; count = half) {
    half = (count + 1) / 2;
    for (int i = threadIdx.x; i < (count - half) * width; i += nt) {
      states[i] = M::combine(states[i], states[i + half * width]);
    }
    __syncthreads();
  }
}

// inner > 1. The array is read as rows of `width` elements, in loads of v: either width == inner, or it
// is the multiple of inner that one row of a block's `lanes` threads covers exactly, so that a thread
// keeps its columns. v divides width and, where there are several slabs, n * inner. A block reduces one
// tile of one group of lanes * v columns; tile_states holds the states of all, and tickets a zero for every
// group of a slab. Both may be null where tiles == 1. out has shape (outer, inner).
template <typename T, typename M, int nt, int v, int unroll>
__device__ void reduce_columns(const T* x, typename M::State* out, typename M::State* tile_states,
                               unsigned* tickets, i64 n, i64 inner, i64 width, i64 tiles,
                               int lanes) {
  using State = typename M::State;
  using Vec = Vector<T, v>;
  __shared__ alignas(16) unsigned char bytes[nt * v * sizeof(State)];
  State* states = reinterpret_cast<State*>(bytes);
  int rows = nt / lanes, tx = threadIdx.x % lanes, ty = threadIdx.x / lanes, span = lanes * v;
  i64 groups = (width + span - 1) / span;
  i64 group = blockIdx.x % groups, item = blockIdx.x / groups;
  i64 index = item % tiles, slab = item / tiles;
  i64 first = group * span, column = first + tx * v;
  int lines = int(width / inner);  // of the n that a row holds
  typename M::Lift lift[v];
  LineTile tile(n / lines, tiles, index);
  if (ty < rows && column < width) {
    // Columns of a row of several lines belong to different elements along n.
    auto add = [&](int k, T value, int row) {
      int line = lines == 1 ? 0 : int(column + k) / int(inner);
      lift[k].add(value, row * lines + line);
    };
    int row = ty, count = int(tile.end - tile.begin);
    i64 step = rows * width;
    const T* source = x + slab * n * inner + (tile.begin + row) * width + column;
    // The first `some` loads are made together, so that they wait for the memory together.
    auto batch = [&](int some) {
      Vec loaded[unroll];
      const T* from = source;
#pragma unroll
      for (int u = 0; u < unroll; ++u, from += step) {
        if (u < some) loaded[u] = *reinterpret_cast<const Vec*>(from);
      }
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        if (u < some) {
#pragma unroll
          for (int k = 0; k < v; ++k) add(k, loaded[u].values[k], row + u * rows);
        }
      }
      source = from;
      row += unroll * rows;
    };
    int left = (count - row + rows - 1) / rows;
    for (; left >= unroll; left -= unroll) batch(unroll);
    if (left > 0) batch(left);
    // The last row may hold fewer lines.
    int rest = int(n % lines) * int(inner);
    if (lines > 1 && index == tiles - 1 && ty == 0) {
#pragma unroll
      for (int k = 0; k < v; ++k) {
        if (int(column) + k < rest) {
          add(k, x[(slab * n + n / lines * lines) * inner + column + k], count);
        }
      }
    }
  }
  if (ty < rows) {
#pragma unroll
    for (int k = 0; k < v; ++k) {
      states[ty * span + tx * v + k] = lift[k].state(tile.begin * lines);
    }
  }
  int columns = inner < span ? int(inner) : span;
  combine_rows<M, nt>(states, rows * span / columns, columns);

  int valid = inner - first < columns ? int(inner - first) : columns;
  State* target = (tiles == 1 ? out : tile_states) + item * inner + first;
  for (int i = threadIdx.x; i < valid; i += nt) target[i] = states[i];
  if (tiles == 1 || !arrive_last(tickets + slab * groups + group, tiles)) return;
  int teams = nt / valid > 1 ? nt / valid : 1;
  for (int i = threadIdx.x; i < teams * valid; i += nt) {
    State s = M::identity();
    for (i64 p = i / valid; p < tiles; p += teams) {
      s = M::combine(s, tile_states[(slab * tiles + p) * inner + first + i % valid]);
    }
    states[i] = s;
  }
  combine_rows<M, nt>(states, teams, valid);
  for (int i = threadIdx.x; i < valid; i += nt) out[slab * inner + first + i] = states[i];
}

// Slabs, of which `slabs` neighbours and one vector more fit into `unroll` vectors a thread. A block
// copies so many at a time to shared memory, where `team` neighbouring threads of a warp reduce a line;
// the next ones are on their way meanwhile. out has shape (outer, inner).
template <typename T, typename M, int nt, int unroll>
__device__ void reduce_slabs(const T* x, typename M::State* out, i64 outer, int n, int inner,
                             int slabs, int team) {
  using Vec = Vector<unsigned, 4>;
  constexpr int v = sizeof(Vec) / sizeof(T);
  // Padding after every 128 bytes keeps lines of any length on different banks.
  constexpr int gap = sizeof(T) < 4 ? 4 : sizeof(T);
  constexpr int room = nt * unroll * sizeof(Vec);
  __shared__ alignas(16) unsigned char tile[room + room / 128 * gap];
  auto address = [&](unsigned byte) { return tile + byte + byte / 128 * gap; };

  int size = n * inner, lane = threadIdx.x % team;
  i64 first = i64(blockIdx.x) * slabs, step = i64(gridDim.x) * slabs;
  Vec loaded[unroll];
  const T* source;
  int length, skew, end;  // of the tile; what its first vector holds before it; where vectors end
  // Vectors may reach beyond the tile, but not beyond the array.
  auto fetch = [&] {
    i64 left = outer - first;
    source = x + first * size;
    length = (left < slabs ? int(left) : slabs) * size;
    skew = int(reinterpret_cast<u64>(source) % sizeof(Vec) / sizeof(T));
    end = left * size < length + v ? int(left * size) : length + v;
    int begin = first == 0 ? 0 : -v;
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      int at = (threadIdx.x + u * nt) * v - skew;
      if (begin <= at && at < length && at + v <= end) {
        loaded[u] = *reinterpret_cast<const Vec*>(source + at);
      }
    }
  };
  if (first < outer) fetch();
  while (first < outer) {
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      unsigned* words = reinterpret_cast<unsigned*>(address((threadIdx.x + u * nt) * sizeof(Vec)));
#pragma unroll
      for (int w = 0; w < 4; ++w) words[w] = loaded[u].values[w];
    }
    auto at = [&](int i) { return reinterpret_cast<T*>(address((skew + i) * sizeof(T))); };
    if (first == 0 || end < length + v) {
      // At the ends of the array some elements are in no vector.
      __syncthreads();
      int head = first == 0 ? (v - skew) % v : 0, tail = (skew + length) % v;
      int i = threadIdx.x < v ? threadIdx.x : length - 2 * v + threadIdx.x;
      bool mine = threadIdx.x < v ? i < head : threadIdx.x < 2 * v && i >= length - tail && i >= head;
      if (mine && i < length) *at(i) = source[i];
    }
    __syncthreads();
    int lines = (outer - first < slabs ? int(outer - first) : slabs) * inner;
    typename M::State* target = out + first * inner;
    int shift = skew;
    first += step;
    if (first < outer) fetch();
    for (int some = 0; some < lines; some += nt / team) {
      int line = some + threadIdx.x / team;
      typename M::Lift lift;
      if (line < lines) {
        int begin = shift + line / inner * size + line % inner;
        for (int i = lane; i < n; i += team) {
          lift.add(*reinterpret_cast<T*>(address((begin + i * inner) * sizeof(T))), i);
        }
      }
      typename M::State s = lift.state(0);
      for (int offset = 1; offset < team; offset *= 2) s = M::combine(s, shuffle_down(s, offset));
      if (line < lines && lane == 0) target[line] = s;
    }
    __syncthreads();
  }
}

}  // namespace coop
