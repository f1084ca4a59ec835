// Order statistics of windows, each by one thread of the host that takes block after block.
#include "kernel_window_order.cuh"

namespace coop {
alignas(16) unsigned char bytes[1 << 20];
}

using namespace coop;

template <typename T, typename Statistic>
void all_blocks(const T* x, const T* halo, T* y, i64 lines, i64 n, int before, OrderSpec spec) {
  constexpr int stretch = 65;
  i64 parts = (n + stretch - 1) / stretch;
  for (blockIdx.x = 0; blockIdx.x < lines * parts; ++blockIdx.x) {
    window_order<T, Statistic, stretch>(x, halo, y, n, before, parts, spec);
  }
}

template <typename T>
int by_name(const char* functor, const T* x, const T* halo, T* y, i64 lines, i64 n, int before, OrderSpec spec) {
#define CASE(...) \
  if (!strcmp(functor, #__VA_ARGS__)) return all_blocks<T, __VA_ARGS__>(x, halo, y, lines, n, before, spec), 0
  CASE(WindowRank<T>);
  CASE(WindowPlace<T, true>);
  CASE(WindowPlace<T, false>);
  CASE(WindowQuantile<T>);
  CASE(WindowSorted<T, 16>);
  CASE(WindowSorted<T, 32>);
  CASE(WindowSorted<T, 64>);
  return 1;
}

extern "C" int order_of_floats(const char* functor, const float* x, const float* halo, float* y, i64 lines, i64 n,
                               int before, int length, int min_count, int first, double q) {
  return by_name(functor, x, halo, y, lines, n, before, {length, min_count, first, q});
}

extern "C" int order_of_doubles(const char* functor, const double* x, const double* halo, double* y, i64 lines,
                                i64 n, int before, int length, int min_count, int first, double q) {
  return by_name(functor, x, halo, y, lines, n, before, {length, min_count, first, q});
}
