// Multi-chunk launches: one cooperative launch over chunks of an array, on one GPU or on several.
//
// Every GPU has a list of stretches of its chunks, in the order of the array, and a block takes some
// neighbours of them. The shape is the same at every level:
//
//   upsweep    a block reduces its stretches                                    N read
//   publish    the last block of a GPU combines the stretches of each chunk, and writes the state of the
//              chunk into the memory of every GPU
//   barrier    of all GPUs
//   spine      every block combines the states of the chunks before its own
//   downsweep  a block scans its stretches from there                           N read, N written
//
// States are combined in the order of the array, so that floats come out the same on every run.
//
// Where GPUs belong to several processes, a scan is two launches on each: one up to the barrier, which no
// other GPU takes part in, and one of the downsweep, with what comes before each chunk given.
#pragma once

#include "barrier.cuh"
#include "kernel_scan.cuh"
#include "kernel_scan_waves.cuh"

namespace coop {

// A stretch of a chunk: y is null where nothing is written.
template <typename T, typename R> struct Stretch {
  const T* x;
  R* y;
  i64 n;      // less than 2^31
  i64 first;  // where in its chunk it begins
  i64 chunk;  // its chunk's number in the order of a scan
};

// What a GPU is to do: stretches in the order of a scan; block b takes those from first[b] to first[b + 1],
// and the GPU's chunk c, of `chunks`, has those from begin[c] to begin[c + 1], at least one.
template <typename T, typename R> struct Work {
  const Stretch<T, R>* stretches;
  const int* first;
  const int* begin;
  int chunks;
  int all;  // the chunks of all GPUs
};

// Reduces the stretches, and leaves the states of all chunks in `of_chunks` of every GPU. `states` has room
// for one a stretch. Returns whether all GPUs came.
template <typename T, typename M, typename R, int nt, int unroll>
__device__ bool multichunk_upsweep(const Work<T, R>& work, typename M::State* states,
                                   typename M::State* const* of_chunks, const Peers& peers, unsigned epoch,
                                   typename Cta<M, nt>::Storage& storage) {
  using State = typename M::State;
  for (int s = work.first[blockIdx.x]; s < work.first[blockIdx.x + 1]; ++s) {
    Stretch<T, R> stretch = work.stretches[s];
    typename M::Lift lift;
    for_each<nt, unroll>(stretch.x, int(stretch.n), threadIdx.x, [&](T value, int i) { lift.add(value, i); });
    State sum = Cta<M, nt>::reduce(lift.state(stretch.first), storage);
    if (threadIdx.x == 0) states[s] = sum;
    __syncthreads();
  }
  return peer_barrier(peers, epoch, [&] {
    int lane = threadIdx.x % warp_size;
    for (int c = threadIdx.x / warp_size; c < work.chunks; c += nt / warp_size) {
      int begin = work.begin[c], count = work.begin[c + 1] - begin;
      int each = (count + warp_size - 1) / warp_size;
      State sum = M::identity();
      for (int i = lane * each; i < count && i < (lane + 1) * each; ++i) {
        sum = M::combine(sum, states[begin + i]);
      }
      sum = broadcast(warp_reduce<M, warp_size>(sum), 0);
      if (lane < peers.count) of_chunks[lane][work.stretches[begin].chunk] = sum;
    }
  });
}

// Thread 0 returns the combination of states[0] to states[n - 1], in order.
template <typename M, int nt>
__device__ typename M::State reduce_in_order(const typename M::State* states, int n,
                                             typename Cta<M, nt>::Storage& storage) {
  typename M::State sum = M::identity();
  int each = (n + nt - 1) / nt;
  for (int i = threadIdx.x * each; i < n && i < (threadIdx.x + 1) * each; ++i) {
    sum = M::combine(sum, states[i]);
  }
  return Cta<M, nt>::reduce(sum, storage);
}

// Every GPU gets the states of all chunks and, in `out`, that of the whole array.
template <typename T, typename M, int nt, int unroll>
__device__ void multichunk_reduce(Work<T, T> work, typename M::State* states,
                                  typename M::State* const* of_chunks, typename M::State* out, const Peers& peers,
                                  unsigned epoch) {
  __shared__ typename Cta<M, nt>::Storage storage;
  if (!multichunk_upsweep<T, M, T, nt, unroll>(work, states, of_chunks, peers, epoch, storage)) return;
  if (blockIdx.x != 0) return;
  auto sum = reduce_in_order<M, nt>(of_chunks[peers.rank], work.all, storage);
  if (threadIdx.x == 0) *out = sum;
}

// What a launch of a scan does.
enum Steps { up = 1, down = 2 };

// The steps of a scan into chunks of the same sizes; `scan` scans one stretch, of at least one element,
// from a base that is in shared memory. Without `up`, `states` are those of the stretches already, and
// `bases` what comes before each chunk.
template <typename T, typename M, typename R, int nt, int unroll, typename F>
__device__ void multichunk_scan(const Work<T, R>& work, typename M::State* states,
                                typename M::State* const* of_chunks, const typename M::State* bases, int steps,
                                const Peers& peers, unsigned epoch, F scan) {
  using State = typename M::State;
  __shared__ typename Cta<M, nt>::Storage storage;
  __shared__ alignas(16) unsigned char bytes[2 * sizeof(State)];
  State* base = reinterpret_cast<State*>(bytes);
  if (steps & up) {
    if (!multichunk_upsweep<T, M, R, nt, unroll>(work, states, of_chunks, peers, epoch, storage)) return;
    if (!(steps & down)) return;
  }
  // The chunk of this GPU that a stretch belongs to grows with the stretches.
  int c = 0;
  for (int s = work.first[blockIdx.x]; s < work.first[blockIdx.x + 1]; ++s) {
    Stretch<T, R> stretch = work.stretches[s];
    while (work.begin[c + 1] <= s) ++c;
    int chunk = int(stretch.chunk);
    // What comes before the chunk, and then what comes before the stretch within it.
#pragma unroll 1
    for (int within = 0; within < 2; ++within) {
      const State* from = within ? states + work.begin[c] : of_chunks[peers.rank];
      int count = within ? s - work.begin[c] : bases ? 0 : chunk;
      State sum = reduce_in_order<M, nt>(from, count, storage);
      if (threadIdx.x == 0) base[within] = within ? M::combine(base[0], sum) : bases ? bases[chunk] : sum;
      __syncthreads();
    }
    if (stretch.n && stretch.y) scan(stretch, base + 1);
    // What the next stretch writes, its barriers too, is the same memory.
    __syncthreads();
  }
}

// By tiles in dynamic shared memory that the bulk copy engine moves; see kernel_scan_waves.cuh for the
// numbers.
template <typename T, typename M, typename R, int warps, int vt, int stages, int ahead, bool exclusive,
          bool reverse, int unroll, int bytes>
__device__ void multichunk_scan_waves(Work<T, R> work, typename M::State* states,
                                      typename M::State* const* of_chunks, const typename M::State* bases,
                                      int steps, const Peers& peers, unsigned epoch) {
  using Scan = ScanWaves<T, M, R, warps, vt, stages, ahead, 0, exclusive, reverse, true>;
  alignas(128) extern __shared__ unsigned char memory[];
  static_assert(sizeof(typename Scan::Storage) <= bytes, "the launch gives a block too little memory");
  multichunk_scan<T, M, R, Scan::nt, unroll>(
      work, states, of_chunks, bases, steps, peers, epoch,
      [&](const Stretch<T, R>& stretch, const typename M::State* base) {
        unsigned tiles = unsigned((stretch.n + Scan::nv - 1) / Scan::nv);
        Scan{stretch.x, stretch.y, base, stretch.n, 1, tiles, tiles, nullptr, 0,
             *reinterpret_cast<typename Scan::Storage*>(memory)}
            .run();
      });
}

// By tiles in static shared memory, on any GPU.
template <typename T, typename M, typename R, int nt, int vt, bool exclusive, bool reverse, int unroll>
__device__ void multichunk_scan_rows(Work<T, R> work, typename M::State* states,
                                     typename M::State* const* of_chunks, const typename M::State* bases, int steps,
                                     const Peers& peers, unsigned epoch) {
  using Scan = RowScan<T, M, R, nt, vt, nt, exclusive, reverse>;
  __shared__ typename Scan::Storage storage;
  multichunk_scan<T, M, R, nt, unroll>(
      work, states, of_chunks, bases, steps, peers, epoch,
      [&](const Stretch<T, R>& stretch, const typename M::State* base) {
        Scan::run(stretch.x, stretch.y, stretch.n, *base, storage);
      });
}

}  // namespace coop
