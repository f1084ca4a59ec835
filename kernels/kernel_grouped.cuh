// Reduction by group of an array of shape (outer, n, inner): every one of the n rows has a code, the number of
// its group, or another number if it is left out.
//
//   sort_codes       makes a plan: the rows in the order of their groups
//   group_columns    inner > 1: a thread takes some neighbouring columns of the rows of a group
//   group_lines      inner == 1: lines that fit into shared memory, a team of threads a group
//   group_gathered   inner == 1: a warp takes the rows of a group
//   group_private    inner == 1: every thread has a table of all groups in shared memory
//   combine_pieces   of groups that were cut into several pieces, or of the tables of several blocks
//
// An element is read once, whatever the order of the codes. States are combined in an order that depends on the
// codes and the sizes only. All but group_private keep the order of the rows, so that states need not commute.
#pragma once

#include "kernel_reduce.cuh"

namespace coop {

// Several monoids over the same elements.
template <typename A, typename B> struct Both {
  struct State {
    typename A::State a;
    typename B::State b;
  };
  struct Lift {
    typename A::Lift a;
    typename B::Lift b;
    template <typename T> __device__ void add(T x, int i) {
      a.add(x, i);
      b.add(x, i);
    }
    __device__ State state(i64 first) const { return {a.state(first), b.state(first)}; }
  };
  __device__ static State identity() { return {A::identity(), B::identity()}; }
  __device__ static State combine(State x, State y) { return {A::combine(x.a, y.a), B::combine(x.b, y.b)}; }
};

template <int size> struct WordOf { using type = u64; };
template <> struct WordOf<1> { using type = unsigned char; };
template <> struct WordOf<2> { using type = unsigned short; };
template <> struct WordOf<4> { using type = unsigned; };

// Writes the field at `offset` of v states, the first of them to element i; nothing where `to` is null.
template <int v, int offset, int size, typename S>
__device__ void put_field(unsigned char* to, i64 i, const S* states) {
  if (!to) return;
  using Word = typename WordOf<size>::type;
  constexpr int words = size / sizeof(Word);
  Vector<Word, v * words> all;
#pragma unroll
  for (int k = 0; k < v; ++k) {
    memcpy(all.values + k * words, reinterpret_cast<const unsigned char*>(states + k) + offset, size);
  }
  Word* target = reinterpret_cast<Word*>(to + i * size);
  if constexpr (v * size <= 16) {
    *reinterpret_cast<Vector<Word, v * words>*>(target) = all;
  } else {
    using Half = Vector<Word, 16 / sizeof(Word)>;
#pragma unroll
    for (int k = 0; k < v * size / 16; ++k) {
      Half half;
      memcpy(&half, all.values + k * (16 / sizeof(Word)), 16);
      reinterpret_cast<Half*>(target)[k] = half;
    }
  }
}

// The rows by their groups: those of group g are order[begin[g]] to order[begin[g + 1] - 1], ascending. A group is
// cut into pieces of `piece` rows, numbered from first[g] on; or `first` is null, and every group is one piece.
struct Plan {
  const int* order;
  const int* begin;
  const int* first;
  int groups;
  int piece;
};

struct Piece {
  int group, begin, count;
  bool whole;  // whether it is all of its group

  // The piece of that number; of group -1 if there is none.
  __device__ Piece(const Plan& plan, int number) : group(number), whole(true) {
    int index = 0;
    if (plan.first) {
      if (number >= plan.first[plan.groups]) {
        group = -1;
        return;
      }
      int low = 0, high = plan.groups;
      while (high - low > 1) {
        int middle = (low + high) / 2;
        (plan.first[middle] <= number ? low : high) = middle;
      }
      group = low;
      index = number - plan.first[group];
      whole = plan.first[group + 1] - plan.first[group] == 1;
    }
    begin = plan.begin[group] + index * plan.piece;
    count = plan.begin[group + 1] - begin;
    if (!whole && count > plan.piece) count = plan.piece;
  }
};

// Some rows of a plan. Where they are neighbours their numbers need not be read.
struct Rows {
  const int* order;
  int first;
  bool run;

  __device__ Rows(const int* order, int count) : order(order), first(count ? order[0] : 0) {
    run = !count || order[count - 1] - first == count - 1;
  }
  __device__ int operator[](int k) const { return run ? first + k : order[k]; }
};

// The rows of a group that go before, in the low half, and the pieces, in the high half.
struct BeforeGroup {
  using State = u64;
  __device__ static u64 identity() { return 0; }
  __device__ static u64 combine(u64 a, u64 b) { return a + b; }
};

// Makes the plan of n codes, by one block; a code that is not below `groups` is left out. Each of the first `warps`
// warps counts its share of the codes in dynamic shared memory, which has room for a number a group and warp and
// for a scan.
// `sizes` gets the rows of each group; it and `first` may be null.
template <int nt>
__device__ void sort_codes(const int* codes, int n, int groups, int warps, int piece, int* order, int* begin,
                           int* first, i64* sizes) {
  alignas(16) extern __shared__ unsigned char plan_bytes[];
  // Before the counts, because static shared memory would take from what a block may have.
  auto& storage = *reinterpret_cast<typename Cta<BeforeGroup, nt>::Storage*>(plan_bytes);
  auto* counts = reinterpret_cast<unsigned*>(plan_bytes + sizeof(storage));
  constexpr int unroll = 8, step = warp_size * unroll;
  int tid = threadIdx.x, warp = tid / warp_size, lane = tid % warp_size;
  unsigned* mine = counts + warp * groups;
  int each = (n + warps - 1) / warps;
  int from = warp < warps && warp * each < n ? warp * each : n, to = from + each < n ? from + each : n;
  auto load = [&](int at, unsigned (&code)[unroll]) {
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      int i = at + u * warp_size + lane;
      code[u] = i < to ? unsigned(codes[i]) : ~0u;
    }
  };
  for (int i = tid; i < warps * groups; i += nt) counts[i] = 0;
  __syncthreads();
  for (int at = from; at < to; at += step) {
    unsigned code[unroll];
    load(at, code);
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (code[u] < groups) atomicAdd(mine + code[u], 1u);
    }
  }
  __syncthreads();
  u64 done = 0;
  for (int some = 0; some < groups; some += nt) {
    int g = some + tid;
    unsigned size = 0;
    for (int w = 0; g < groups && w < warps; ++w) {
      unsigned count = counts[w * groups + g];
      counts[w * groups + g] = size;
      size += count;
    }
    unsigned pieces = size ? (size + piece - 1) / piece : 1;
    u64 all, before = Cta<BeforeGroup, nt>::scan(u64(pieces) << 32 | size, storage, all) + done;
    done += all;
    if (g >= groups) continue;
    begin[g] = int(before & 0xffffffff);
    if (first) first[g] = int(before >> 32);
    if (sizes) sizes[g] = size;
    for (int w = 0; w < warps; ++w) counts[w * groups + g] += unsigned(before);
    if (g == groups - 1) {
      begin[groups] = int(before & 0xffffffff) + size;
      if (first) first[groups] = int(before >> 32) + pieces;
    }
  }
  __syncthreads();
  for (int at = from; at < to; at += step) {
    unsigned code[unroll];
    load(at, code);
#pragma unroll 1
    for (int u = 0; u < unroll; ++u) {
      // A run-time index would keep the codes in local memory.
      unsigned own = code[0];
#pragma unroll
      for (int k = 1; k < unroll; ++k) code[k - 1] = code[k];
      bool active = own < groups;
      unsigned same = __match_any_sync(full_mask, own);
      int rank = __popc(same & ((1u << lane) - 1));
      unsigned place = active ? mine[own] : 0;
      __syncwarp();
      if (active && rank == 0) mine[own] = place + __popc(same);
      __syncwarp();
      if (active) order[place + rank] = at + u * warp_size + lane;
    }
  }
}

// inner > 1, and v divides it. A block takes `lanes` threads side by side of some pieces, of which there may be
// fewer than `pieces`. States of pieces that are not all of their group go to `parts`, of shape
// (outer, pieces, inner); the others to `out`, of shape (outer, groups, inner).
template <typename T, typename M, int nt, int v, int unroll, typename Out>
__device__ void group_columns(const T* x, const Plan& plan, const Out& out, typename M::State* parts, i64 outer,
                              i64 n, i64 inner, int pieces, int lanes) {
  using State = typename M::State;
  using Vec = Vector<T, v>;
  int tx = threadIdx.x % lanes, ty = threadIdx.x / lanes, deep = nt / lanes;
  unsigned columns = unsigned(inner / v), slices = (columns + lanes - 1) / lanes;
  i64 column = i64(blockIdx.x % slices) * lanes + tx;
  i64 item = i64(blockIdx.x / slices) * deep + ty;
  if (ty >= deep || column >= columns || item >= outer * pieces) return;
  i64 slab = outer == 1 ? 0 : item / pieces;
  Piece piece(plan, int(item - slab * pieces));
  if (piece.group < 0) return;
  column *= v;
  const T* source = x + slab * n * inner + column;
  Rows rows(plan.order + piece.begin, piece.count);
  typename M::Lift lift[v];
  // The first `count` loads are made together, so that they wait for the memory together.
  auto batch = [&](int k, int count) {
    Vec loaded[unroll];
    int row[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (u < count) row[u] = rows[k + u];
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (u < count) loaded[u] = *reinterpret_cast<const Vec*>(source + row[u] * inner);
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (u < count) {
#pragma unroll
        for (int j = 0; j < v; ++j) lift[j].add(loaded[u].values[j], row[u]);
      }
    }
  };
  int k = 0;
  for (; k + unroll <= piece.count; k += unroll) batch(k, unroll);
  if (k < piece.count) batch(k, piece.count - k);
  State states[v];
#pragma unroll
  for (int j = 0; j < v; ++j) states[j] = lift[j].state(0);
  if (piece.whole) {
    out.template put<v>((slab * plan.groups + piece.group) * inner + column, states);
  } else {
#pragma unroll
    for (int j = 0; j < v; ++j) parts[item * inner + column + j] = states[j];
  }
}

// A share of k < count: neighbours for each of `team` threads where states do not commute, every team-th otherwise.
template <bool ordered> struct Share {
  int begin, end, step;
  __device__ Share(int count, int lane, int team) : begin(lane), end(count), step(team) {
    if (!ordered) return;
    int each = (count + team - 1) / team;
    begin = lane * each < count ? lane * each : count;
    end = begin + each < count ? begin + each : count;
    step = 1;
  }
};

// Combines the states of `team` neighbouring lanes in order; the first of them gets the result.
template <typename M>
__device__ typename M::State team_reduce(typename M::State s, int team) {
#pragma unroll 1
  for (int offset = 1; offset < team; offset *= 2) s = M::combine(s, shuffle_down(s, offset));
  return s;
}

// inner == 1. A block copies `lines` neighbouring lines at a time to dynamic shared memory, of which a team of
// threads takes a group. No group is cut; out has shape (outer, groups).
template <typename T, typename M, int nt, bool ordered, typename Out>
__device__ void group_lines(const T* x, const Plan& plan, const Out& out, i64 outer, int n, int lines, int team) {
  // Padding after every 128 bytes keeps rows that are a group's length apart on different banks.
  constexpr unsigned gap = sizeof(T) < 4 ? 4 : sizeof(T);
  alignas(16) extern __shared__ unsigned char tile[];
  auto at = [&](unsigned i) {
    unsigned byte = i * unsigned(sizeof(T));
    return reinterpret_cast<T*>(tile + byte + byte / 128 * gap);
  };
  int lane = threadIdx.x % team;
  for (i64 first = i64(blockIdx.x) * lines; first < outer; first += i64(gridDim.x) * lines) {
    int some = outer - first < lines ? int(outer - first) : lines;
    for_each<nt, 4>(x + first * n, some * n, threadIdx.x, [&](T value, int i) { *at(i) = value; });
    __syncthreads();
    // All lanes of a warp stay to the end.
    for (int begin = 0; begin < some * plan.groups; begin += nt / team) {
      int item = begin + threadIdx.x / team;
      typename M::Lift lift;
      if (item < some * plan.groups) {
        int line = item / plan.groups, group = item - line * plan.groups;
        int from = plan.begin[group], count = plan.begin[group + 1] - from;
        Rows rows(plan.order + from, count);
        Share<ordered> share(count, lane, team);
        for (int k = share.begin; k < share.end; k += share.step) {
          int row = rows[k];
          lift.add(*at(line * n + row), row);
        }
      }
      typename M::State s = team_reduce<M>(lift.state(0), team);
      if (item < some * plan.groups && lane == 0) out.template put<1>(first * plan.groups + item, &s);
    }
    __syncthreads();
  }
}

// inner == 1. A warp takes a piece of a line, as in group_columns.
template <typename T, typename M, int nt, bool ordered, int unroll, typename Out>
__device__ void group_gathered(const T* x, const Plan& plan, const Out& out, typename M::State* parts, i64 outer,
                               i64 n, int pieces) {
  int lane = threadIdx.x % warp_size;
  i64 item = i64(blockIdx.x) * (nt / warp_size) + threadIdx.x / warp_size;
  if (item >= outer * pieces) return;
  i64 slab = outer == 1 ? 0 : item / pieces;
  Piece piece(plan, int(item - slab * pieces));
  if (piece.group < 0) return;
  const T* source = x + slab * n;
  Rows rows(plan.order + piece.begin, piece.count);
  Share<ordered> share(piece.count, lane, warp_size);
  typename M::Lift lift;
  for (int k = share.begin; k < share.end; k += unroll * share.step) {
    T loaded[unroll];
    int row[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      int i = k + u * share.step;
      if (i < share.end) row[u] = rows[i];
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (k + u * share.step < share.end) loaded[u] = source[row[u]];
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (k + u * share.step < share.end) lift.add(loaded[u], row[u]);
    }
  }
  typename M::State s = team_reduce<M>(lift.state(0), warp_size);
  if (lane != 0) return;
  if (piece.whole) out.template put<1>(slab * plan.groups + piece.group, &s);
  else parts[item] = s;
}

// inner == 1, and few groups: dynamic shared memory has a state a group and thread. Lines are cut into `tiles`, of a
// block each; v elements are aligned as a whole, and so are their codes. parts has shape (outer, groups, tiles).
// M must be commutative.
template <typename T, typename M, int v, int unroll>
__device__ void group_private(const T* x, const int* codes, typename M::State* parts, i64 outer, i64 n, int groups,
                              i64 tiles) {
  using State = typename M::State;
  alignas(16) extern __shared__ unsigned char bytes[];
  State* table = reinterpret_cast<State*>(bytes);
  int tid = threadIdx.x, nt = blockDim.x;
  i64 line = blockIdx.x / tiles;
  LineTile tile(n, tiles, blockIdx.x % tiles, 64);
  for (int g = 0; g < groups; ++g) table[g * nt + tid] = M::identity();
  const T* values = x + line * n + tile.begin;
  const int* labels = codes + tile.begin;
  int size = int(tile.end - tile.begin), vectors = size / v;
  auto add = [&](T value, int code, int i) {
    if (unsigned(code) >= unsigned(groups)) return;
    typename M::Lift lift;
    lift.add(value, i);
    State& mine = table[code * nt + tid];
    mine = M::combine(mine, lift.state(tile.begin));
  };
  auto batch = [&](int first, int count) {
    Vector<T, v> loaded[unroll];
    Vector<int, v> found[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (u < count) {
        loaded[u] = reinterpret_cast<const Vector<T, v>*>(values)[first + u * nt];
        found[u] = reinterpret_cast<const Vector<int, v>*>(labels)[first + u * nt];
      }
    }
    // Few copies of what combines: code costs time to compile.
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (u < count) {
#pragma unroll
        for (int k = 0; k < v; ++k) add(loaded[u].values[k], found[u].values[k], (first + u * nt) * v + k);
      }
    }
  };
  for (int j = tid; j < vectors; j += unroll * nt) {
    int left = (vectors - j + nt - 1) / nt;
    batch(j, left < unroll ? left : unroll);
  }
  int rest = vectors * v + tid;
  if (rest < size) add(values[rest], labels[rest], rest);
  __syncthreads();
  int lane = tid % warp_size;
  for (int g = tid / warp_size; g < groups; g += nt / warp_size) {
    State s = M::identity();
    for (int t = lane; t < nt; t += warp_size) s = M::combine(s, table[g * nt + t]);
    s = team_reduce<M>(s, warp_size);
    if (lane == 0) parts[(line * groups + g) * tiles + blockIdx.x % tiles] = s;
  }
}

// Combines the states of the pieces of every group that has several, in order; or, without `first`, of `each` pieces
// of every group. parts has shape (outer, pieces, inner), and out (outer, groups, inner). A team of 1 or 32 threads
// takes a column, in a grid of any size.
template <typename M, int nt, typename Out>
__device__ void combine_pieces(const typename M::State* parts, const int* first, const Out& out, i64 outer, int groups,
                               i64 inner, i64 pieces, int each, int team) {
  using State = typename M::State;
  auto settle = [&](i64 item, i64 column, int lane) {
    int group = int(item % groups);
    i64 begin = first ? first[group] : i64(group) * each;
    int count = first ? int(first[group + 1] - begin) : each;
    if (first && count == 1) return;
    Share<true> share(count, lane, team);
    const State* from = parts + (item / groups * pieces + begin) * inner + column;
    State s = M::identity();
    for (int k = share.begin; column < inner && k < share.end; ++k) s = M::combine(s, from[k * inner]);
    s = team_reduce<M>(s, team);
    if (column < inner && lane == 0) out.template put<1>(item * inner + column, &s);
  };
  i64 items = outer * groups;
  if (team > 1) {
    i64 warps = i64(gridDim.x) * (nt / warp_size);
    i64 at = i64(blockIdx.x) * (nt / warp_size) + threadIdx.x / warp_size;
    for (; at < items * inner; at += warps) settle(at / inner, at % inner, threadIdx.x % warp_size);
  } else {
    i64 slices = (inner + nt - 1) / nt;
    for (i64 at = blockIdx.x; at < items * slices; at += gridDim.x) {
      settle(at / slices, at % slices * nt + threadIdx.x, 0);
    }
  }
}

}  // namespace coop
