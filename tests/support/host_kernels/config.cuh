// Stands for kernels/config.cuh, so that the host's compiler takes kernels of one thread.
#pragma once

#include <cstring>

#define __device__
#define __shared__ static

namespace coop {
using i64 = long long;
using u64 = unsigned long long;
constexpr int warp_size = 32;
constexpr unsigned full_mask = ~0u;

template <class T> struct is_float { static constexpr bool value = false; };
template <> struct is_float<float> { static constexpr bool value = true; };
template <> struct is_float<double> { static constexpr bool value = true; };
template <class T> bool is_nan(T x) { return x != x; }
template <class To, class From> To convert(From x) { return To(x); }
}  // namespace coop

struct Place {
  unsigned x;
};
using std::memcpy;
// A program of many threads has their places, and waits for them.
#ifndef MANY_THREADS
static Place threadIdx, blockIdx, gridDim = {1}, blockDim = {1};
static inline void __syncthreads() {}
#endif

static inline float __fmul_rn(float a, float b) { return a * b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline void __syncwarp(unsigned) {}
static inline bool __all_sync(unsigned, bool x) { return x; }
static inline unsigned __ballot_sync(unsigned, bool x) { return x; }
template <class T> static inline T __shfl_sync(unsigned, T x, int, int) { return x; }
template <class T> static inline T __shfl_up_sync(unsigned, T x, int, int) { return x; }
static inline unsigned __funnelshift_l(unsigned low, unsigned high, int shift) {
  return shift & 31 ? high << (shift & 31) | low >> (32 - (shift & 31)) : high;
}
