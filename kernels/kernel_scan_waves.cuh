// Scan of (outer, n) along n in one pass: N read, N written. One block a multiprocessor, all resident.
//
// Tiles are dealt to blocks in turn, a wave of gridDim.x tiles at a time. A block's warps have jobs:
//
//   loader     keeps a ring of stages in shared memory filled by the bulk copy engine
//   workers    reduce their segment of the tile `ahead` waves early; scan and store the present tile
//   publisher  writes the total of a tile to the board, as soon as the workers have it
//   spine      reads the totals of a whole wave and turns them into the base of the block's tile
//
// No block waits for a chain of others: a wave's bases need the totals of that wave only, and these were
// published `ahead` waves ago. Totals are combined in the order of tiles, so results do not change from
// run to run. Tiles that end early, and rows that the copy engine cannot address, are read by the
// workers themselves.
#pragma once

#include "bulk.cuh"
#include "runs.cuh"
#include "tagged.cuh"
#include "warp.cuh"

namespace coop {

// Where one block is `alone` with its rows, they are all its own. Where states are `ordered`, they do not
// commute.
template <typename T, typename M, typename R, int warps, int vt, int stages, int ahead, int slots,
          bool exclusive, bool reverse, bool alone = false, bool ordered = false>
struct ScanWaves {
  // What warps and blocks hand to one another.
  using H = typename Held<M>::Monoid;
  using State = typename H::State;
  // A wave is short beside the sum before it.
  using W = Within<H>;
  using P = typename W::P;
  using Narrow = typename P::State;
  using Words = Tagged<Narrow>;
  using Own = Run<P, T, vt>;
  // Whether blocks share rows; otherwise a block scans whole rows, and there is no board.
  static constexpr bool shared_rows = slots > 0;
  static constexpr int nt = (warps + 3) * warp_size;
  static constexpr int segment = warp_size * vt;
  static constexpr int nv = warps * segment;
  static constexpr int segment_bytes = segment * (sizeof(T) > sizeof(R) ? sizeof(T) : sizeof(R));
  static constexpr bool one_copy = sizeof(T) == sizeof(R);
  // A slot of the board is read last by blocks that lag by so many waves.
  static constexpr int rounds = 2 * stages;
  static constexpr int per_lane = shared_rows ? slots : 1;
  static_assert(vt % 2 == 1, "threads read their own elements from shared memory without bank conflicts");
  static_assert(0 < ahead && ahead < stages && warps <= warp_size, "");

  struct Storage {
    alignas(128) unsigned char ring[stages][warps][segment_bytes];
    alignas(16) unsigned char totals[stages][warps * sizeof(State)];
    alignas(16) unsigned char bases[stages][warps * sizeof(State)];
    Barrier full[stages], empty[stages], reduced[stages], based[stages];
  };

  const T* x;
  R* y;
  const typename M::State* base;
  i64 n;
  unsigned rows;
  // 32 bits count the tiles of any array that fits a GPU.
  unsigned tiles_a_row, tiles;
  u64* board;
  unsigned lowest_tag;
  Storage& s;

  static __device__ unsigned block() { return alone ? 0 : blockIdx.x; }
  static __device__ unsigned blocks() { return alone ? 1 : gridDim.x; }

  // The tile of this block in a wave: where it begins, how many elements it has, whether the copy
  // engine can move it.
  struct Tile {
    i64 first;
    int count;
    bool bulk;
  };
  __device__ Tile tile(unsigned wave) const {
    unsigned t = shared_rows ? wave * blocks() + block() : wave;
    unsigned row = t / tiles_a_row, column = t - row * tiles_a_row;
    if (!shared_rows) row = row * blocks() + block();
    i64 begin = i64(column) * nv, left = n - begin;
    int count = left < nv ? int(left) : nv;
    i64 first = row * n + (reverse ? left - count : begin);
    u64 bits = reinterpret_cast<u64>(x + first) | reinterpret_cast<u64>(y + first) |
               count * sizeof(T) | count * sizeof(R);
    return {first, count, (bits & 15) == 0};
  }

  // How many elements of a tile belong to a warp, and where the first is in memory. A warp without any
  // is behind the others, so that what it reads for nothing is what no other writes.
  static __device__ int elements(Tile t, int warp) {
    int left = t.count - warp * segment;
    return left < 0 ? 0 : left < segment ? left : segment;
  }
  static __device__ int begin(Tile t, int warp) {
    int mine = elements(t, warp);
    return reverse && mine ? t.count - warp * segment - mine : warp * segment;
  }
  // Where the warp's elements lie in the ring. One copy moves a tile whose results fit where it was.
  __device__ unsigned char* ring(Tile t, int stage, int warp) const {
    if constexpr (!one_copy) return s.ring[stage][warp];
    else return s.ring[stage][0] + begin(t, warp) * sizeof(T);
  }

  __device__ unsigned waves() const {
    unsigned all = shared_rows ? tiles : tiles / tiles_a_row;
    unsigned mine = (all - block() + blocks() - 1) / blocks();
    return shared_rows ? mine : mine * tiles_a_row;
  }

  static __device__ unsigned parity(unsigned wave) { return (wave / stages) & 1; }

  __device__ void run() {
    int warp = threadIdx.x / warp_size;
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (int i = 0; i < stages; ++i) {
        s.full[i].init(1);
        s.empty[i].init(warps * warp_size);
        s.reduced[i].init(warps);
        s.based[i].init(warps);
      }
      fence_barriers();
    }
    __syncthreads();
    if (warp < warps) work(warp);
    else if (warp == warps) load();
    else if constexpr (!shared_rows) {
      if (warp == warps + 1) own_spine();
    } else if (warp == warps + 1) publish();
    else spine();
    if constexpr (alone) {
      // The memory may be used again, for barriers too.
      __syncthreads();
      if (threadIdx.x != 0) return;
#pragma unroll 1
      for (int i = 0; i < stages; ++i) {
        s.full[i].end();
        s.empty[i].end();
        s.reduced[i].end();
        s.based[i].end();
      }
    }
  }

  __device__ void load() {
    if (threadIdx.x % warp_size) return;
    for (unsigned k = 0, end = waves(); k < end; ++k) {
      int stage = k % stages;
      if (k >= stages) s.empty[stage].wait(parity(k - stages));
      Tile t = tile(k);
      if (!t.bulk) {
        s.full[stage].arrive();
        continue;
      }
      s.full[stage].arrive_and_expect(t.count * sizeof(T));
      if constexpr (one_copy) {
        bulk_load(s.ring[stage], x + t.first, t.count * sizeof(T), s.full[stage]);
      } else {
        for (int w = 0; w * segment < t.count; ++w) {
          bulk_load(s.ring[stage][w], x + t.first + begin(t, w), elements(t, w) * sizeof(T), s.full[stage]);
        }
      }
    }
  }

  __device__ void work(int warp) {
    for (unsigned k = 0, end = waves(); k < end + ahead; ++k) {
      if (k < end) reduce(warp, k);
      if (k >= ahead) scan(warp, k - ahead);
    }
    wait_for_stores<0>();
  }

  __device__ void reduce(int warp, unsigned k) {
    int lane = threadIdx.x % warp_size, stage = k % stages;
    Tile t = tile(k);
    T* in = reinterpret_cast<T*>(ring(t, stage, warp));
    s.full[stage].wait(parity(k));
    Narrow own = P::identity();
    if (!ordered && t.bulk && t.count == nv) {
      Own run;
#pragma unroll
      for (int i = 0; i < vt; ++i) run.set(i, in[i * warp_size + lane]);
      own = run.total();
    } else {
      const T* source = x + t.first + begin(t, warp);
      int count = elements(t, warp);
      if (!t.bulk) {
        T loaded[vt];
#pragma unroll
        for (int i = 0; i < vt; ++i) {
          if (i * warp_size + lane < count) loaded[i] = source[i * warp_size + lane];
        }
#pragma unroll
        for (int i = 0; i < vt; ++i) {
          if (i * warp_size + lane < count) in[i * warp_size + lane] = loaded[i];
        }
      }
      __syncwarp();
      if constexpr (ordered) {
        // As in `scan`, so that a lane's elements are neighbours.
#pragma unroll
        for (int i = 0; i < vt; ++i) {
          int at = lane * vt + i;
          if (at < count) own = P::combine(own, P::lift(in[reverse ? count - 1 - at : at]));
        }
      } else {
#pragma unroll 4
        for (int at = lane; at < count; at += warp_size) own = P::combine(own, P::lift(in[at]));
      }
    }
    State sum = warp_reduce<H, warp_size>(W::widen(own));
    if (lane == 0) {
      reinterpret_cast<State*>(s.totals[stage])[warp] = sum;
      s.reduced[stage].arrive();
    }
  }

  __device__ void scan(int warp, unsigned k) {
    int lane = threadIdx.x % warp_size, stage = k % stages;
    Tile t = tile(k);
    const T* in = reinterpret_cast<const T*>(ring(t, stage, warp));
    R* out = reinterpret_cast<R*>(ring(t, stage, warp));
    int count = elements(t, warp);
    // Behind the end of a row this scans what lies there, for nothing.
    Own run;
#pragma unroll
    for (int i = 0; i < vt; ++i) {
      int at = lane * vt + i;
      if (reverse) at = at < count ? count - 1 - at : 0;
      run.set(i, in[at]);
    }
    auto write = [&](int i, R result) {
      int at = lane * vt + i;
      if (!reverse || at < count) out[reverse ? count - 1 - at : at] = result;
    };
    const State& base = reinterpret_cast<const State*>(s.bases[stage])[warp];
    bool done = false;
    if constexpr (Own::template is_quick<R>) {
      s.based[stage].wait(parity(k));
      __syncwarp();
      done = run.template quick_results<R, exclusive>(base, write);
    }
    if (!done) {
      Narrow before = shuffle_up(warp_scan<P>(run.total()), 1);
      s.based[stage].wait(parity(k));
      State start = base;
      if (lane) start = W::after(start, before);
      __syncwarp();
      run.template results<W, R, exclusive>(start, write);
    }
    // For the copy from here, or that of a later tile to here.
    fence_shared();
    __syncwarp();
    R* target = y + t.first + begin(t, warp);
    if (!t.bulk) {
#pragma unroll
      for (int i = 0; i < vt; ++i) {
        int at = i * warp_size + lane;
        if (at < count) target[at] = out[at];
      }
      __syncwarp();
    }
    if (lane == 0) {
      if (t.bulk && count) bulk_store(target, out, count * sizeof(R));
      commit_stores();
      // The stage of the tile before is free when its store has read it.
      wait_for_stores<1>();
      if (k > 0) s.empty[(k - 1) % stages].arrive();
    } else {
      s.empty[stage].arrive();
    }
  }

  __device__ void publish() {
    int lane = threadIdx.x % warp_size;
    for (unsigned k = 0, end = waves(); k < end; ++k) {
      int stage = k % stages;
      s.reduced[stage].wait(parity(k));
      State total = lane < warps ? reinterpret_cast<State*>(s.totals[stage])[lane] : H::identity();
      total = warp_reduce<H, warp_size>(total);
      if (lane == 0) Words::write(slot(k, block()), W::narrow(total), tag(k));
    }
  }

  // What lies on the board from launches before has lower tags.
  __device__ unsigned tag(unsigned wave) const { return lowest_tag + wave; }

  __device__ u64* slot(unsigned wave, unsigned block) const {
    return board + (wave % rounds * blocks() + block) * Words::words;
  }

  // Reads the totals of a wave, of blocks [lane * per_lane, (lane + 1) * per_lane) as far as they exist.
  // Returns whether all were there.
  __device__ bool gather(unsigned wave, Narrow (&totals)[per_lane]) const {
    int first = threadIdx.x % warp_size * per_lane;
    unsigned left = tiles - wave * blocks();
    int present = left < blocks() ? left : blocks();
    const u64* at = slot(wave, first);
    bool complete = true;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      totals[i] = P::identity();
      if (first + i < present) complete &= Words::read(at + i * Words::words, totals[i]) == tag(wave);
    }
    return complete;
  }

  // Returns what the stage's warps come to, each with those before it.
  __device__ Narrow scan_warps(int stage) const {
    int lane = threadIdx.x % warp_size;
    const State* totals = reinterpret_cast<const State*>(s.totals[stage]);
    return warp_scan<P>(lane < warps ? W::narrow(totals[lane]) : P::identity());
  }

  // The spine of whole rows: the base of a tile is what came before it in the block.
  __device__ void own_spine() {
    int lane = threadIdx.x % warp_size;
    State carry = H::identity();
    unsigned column = 0, row = block();
    for (unsigned k = 0, end = waves(); k < end; ++k) {
      int stage = k % stages;
      if (column == 0) carry = base ? Held<M>::hold(base[row]) : H::identity();
      s.reduced[stage].wait(parity(k));
      Narrow inclusive = scan_warps(stage), within = shuffle_up(inclusive, 1);
      if (lane < warps) {
        reinterpret_cast<State*>(s.bases[stage])[lane] = lane ? W::after(carry, within) : carry;
        s.based[stage].arrive();
      }
      carry = W::after(carry, broadcast(inclusive, warp_size - 1));
      if (++column == tiles_a_row) {
        column = 0;
        row += blocks();
      }
    }
  }

  __device__ void spine() {
    int lane = threadIdx.x % warp_size, owner = block() / per_lane;
    State carry = H::identity();
    for (unsigned k = 0, end = waves(); k < end; ++k) {
      int stage = k % stages;
      s.reduced[stage].wait(parity(k));
      Narrow totals[per_lane];
      while (!gather(k, totals)) {
      }
      Narrow within = shuffle_up(scan_warps(stage), 1);

      // `mine` is what comes before the block's own tile among the lane's tiles. A row restarts the sum.
      Narrow mine = P::identity(), sum = P::identity();
      bool mine_restarts = false, restarts = false;
      unsigned t = k * blocks() + lane * per_lane, row = t / tiles_a_row, column = t - row * tiles_a_row;
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        if (column == 0 && lane * per_lane + i < blocks()) {
          restarts = true;
          sum = base && row < rows ? W::narrow(Held<M>::hold(base[row])) : P::identity();
        }
        if (lane * per_lane + i == block()) {
          mine = sum;
          mine_restarts = restarts;
        }
        sum = P::combine(sum, totals[i]);
        if (++column == tiles_a_row) {
          column = 0;
          ++row;
        }
      }
      // An inclusive scan over the lanes, each from the last restart on.
      unsigned heads = __ballot_sync(full_mask, restarts);
      unsigned until = heads & (full_mask >> (warp_size - 1 - lane));
      int head = until ? warp_size - 1 - __clz(until) : 0;
#pragma unroll
      for (int offset = 1; offset < warp_size; offset *= 2) {
        Narrow before = shuffle_up(sum, offset);
        if (lane - offset >= head) sum = P::combine(before, sum);
      }
      Narrow prior = shuffle_up(sum, 1);
      if (lane == 0) prior = P::identity();
      if (!mine_restarts) mine = P::combine(prior, mine);
      bool carried = !mine_restarts && !(heads & ((1u << lane) - 1));
      State start = broadcast(carried ? W::after(carry, mine) : W::widen(mine), owner);
      Narrow all = broadcast(sum, warp_size - 1);
      carry = heads ? W::widen(all) : W::after(carry, all);
      if (lane < warps) {
        reinterpret_cast<State*>(s.bases[stage])[lane] = lane ? W::after(start, within) : start;
        s.based[stage].arrive();
      }
    }
  }
};

// See the head of the file. The board has room for rounds * gridDim.x tagged states, and all tags on it are
// below `lowest_tag`, which is not 0. A block has `bytes` of dynamic shared memory.
template <typename T, typename M, typename R, int warps, int vt, int stages, int ahead, int slots,
          bool exclusive, bool reverse, int bytes, bool ordered = false>
__device__ void scan_waves(const T* x, R* y, const typename M::State* base, i64 outer, i64 n, u64* board,
                           unsigned lowest_tag) {
  using Scan = ScanWaves<T, M, R, warps, vt, stages, ahead, slots, exclusive, reverse, false, ordered>;
  alignas(128) extern __shared__ unsigned char memory[];
  static_assert(sizeof(typename Scan::Storage) <= bytes, "the launch gives a block too little memory");
  i64 tiles_a_row = (n + Scan::nv - 1) / Scan::nv;
  Scan{x,
       y,
       base,
       n,
       unsigned(outer),
       unsigned(tiles_a_row),
       unsigned(outer * tiles_a_row),
       board,
       lowest_tag,
       *reinterpret_cast<typename Scan::Storage*>(memory)}
      .run();
}

}  // namespace coop
