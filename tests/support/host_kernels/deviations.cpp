// Sums of products of deviations, by a thread of the host for each of a block, one block after the other.
#define MANY_THREADS
#define __CUDA_ARCH__ 800
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "config.cuh"

static thread_local Place threadIdx, blockIdx;

class Barrier {
 public:
  explicit Barrier(int count) : count(count) {}
  void wait() {
    std::unique_lock<std::mutex> lock(mutex);
    long mine = turn;
    if (++waiting == count) {
      waiting = 0;
      ++turn;
      all.notify_all();
    } else {
      all.wait(lock, [&] { return turn != mine; });
    }
  }

 private:
  int count, waiting = 0;
  long turn = 0;
  std::mutex mutex;
  std::condition_variable all;
};

static Barrier block(256), warps[8] = {Barrier(32), Barrier(32), Barrier(32), Barrier(32),
                                       Barrier(32), Barrier(32), Barrier(32), Barrier(32)};
static void __syncthreads() { block.wait(); }

static double left[8][32], right[8][32];

static double __shfl_xor_sync(unsigned, double x, int offset) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  left[warp][lane] = x;
  warps[warp].wait();
  double other = left[warp][lane ^ offset];
  warps[warp].wait();
  return other;
}

// What mma.m8n8k4 does, with the layouts of the manual of PTX.
static void multiply(double (&c)[2], double a, double b) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  left[warp][lane] = a;
  right[warp][lane] = b;
  warps[warp].wait();
  for (int e = 0; e < 2; ++e) {
    for (int k = 0; k < 4; ++k) c[e] += left[warp][lane / 4 * 4 + k] * right[warp][(lane % 4 * 2 + e) * 4 + k];
  }
  warps[warp].wait();
}

namespace coop {
double shared[4 * 64 * 36];
}

#define asm(...) multiply(c, a, b)
#include "kernel_deviations.cuh"
#undef asm

using namespace coop;

extern "C" void deviations_of_floats(const float* a, const double* shifts_a, i64 m, i64 row_a, i64 column_a,
                                     const float* b, const double* shifts_b, i64 p, i64 row_b, i64 column_b,
                                     int same, i64 n, i64 spans, double* products, double* sums_a,
                                     double* sums_b) {
  Variables<float> x{a, shifts_a, m, row_a, column_a}, y{b, shifts_b, p, row_b, column_b};
  i64 blocks = (m + 63) / 64 * ((p + 63) / 64) * spans;
  for (i64 number = 0; number < blocks; ++number) {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 256; ++i) {
      threads.emplace_back([=] {
        threadIdx.x = i;
        blockIdx.x = unsigned(number);
        multiply_deviations(x, y, same, n, spans, products, sums_a, sums_b);
      });
    }
    for (auto& thread : threads) thread.join();
  }
}
