// What every kernel stands on: names of sizes and element types. No header of the toolkit is needed.
#pragma once

namespace coop {

using i64 = long long;
using u64 = unsigned long long;

constexpr int warp_size = 32;
constexpr unsigned full_mask = 0xffffffffu;

__device__ inline unsigned shared_address(const void* p) {
  return unsigned(__cvta_generic_to_shared(p));
}

template <typename A, typename B> struct is_same { static constexpr bool value = false; };
template <typename A> struct is_same<A, A> { static constexpr bool value = true; };

// IEEE binary16 as it lies in memory; arithmetic is done in float or double.
struct half_t {
  unsigned short bits;

  __device__ operator float() const {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  __device__ static half_t round(double value) {
    half_t result;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(result.bits) : "d"(value));
    return result;
  }
};

template <typename F> struct complex_t {
  F re, im;
};

template <typename F>
__device__ complex_t<F> operator+(complex_t<F> a, complex_t<F> b) {
  return {a.re + b.re, a.im + b.im};
}

template <typename T> struct is_float { static constexpr bool value = false; };
template <> struct is_float<half_t> { static constexpr bool value = true; };
template <> struct is_float<float> { static constexpr bool value = true; };
template <> struct is_float<double> { static constexpr bool value = true; };

template <typename T>
__device__ bool is_nan(T x) {
  if constexpr (is_float<T>::value) return float(x) != float(x);
  return false;
}
// A double that is not NaN may overflow to an infinite float, but never to NaN.
template <>
__device__ inline bool is_nan<double>(double x) { return x != x; }
template <typename F>
__device__ bool is_nan(complex_t<F> x) { return is_nan(x.re) || is_nan(x.im); }

// Converts between element, accumulator and result; narrowing to float16 rounds to nearest even.
template <typename To, typename From>
__device__ To convert(From x) {
  if constexpr (is_same<To, From>::value) return x;
  else if constexpr (is_same<To, half_t>::value) return half_t::round(double(x));
  else if constexpr (is_same<From, half_t>::value) return To(float(x));
  else return To(x);
}

template <typename To, typename F>
__device__ To convert(complex_t<F> x) {
  using G = decltype(To::re);
  return {G(x.re), G(x.im)};
}

}  // namespace coop
