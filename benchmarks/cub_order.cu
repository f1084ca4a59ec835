// CUB's selections as the benchmark calls them, by CUB's protocol: without temp they only tell the bytes of it.
#include <cub/device/device_select.cuh>
#if __has_include(<cub/device/device_topk.cuh>)
#include <cub/device/device_topk.cuh>
#define HAS_TOPK 1
#else
#define HAS_TOPK 0
#endif

using i64 = long long;

extern "C" int has_topk() { return HAS_TOPK; }

extern "C" int select_flagged(void* temp, size_t* bytes, const float* x, const unsigned char* flags,
                              float* out, i64* count, i64 n) {
  return cub::DeviceSelect::Flagged(temp, *bytes, x, flags, out, count, n);
}

#if HAS_TOPK
extern "C" int topk(void* temp, size_t* bytes, const float* x, float* out, i64 n, i64 k) {
  namespace ex = cuda::execution;
  auto needs = ex::require(ex::determinism::not_guaranteed, ex::output_ordering::unsorted);
  auto stream = cuda::stream_ref{cudaStream_t{}};
  auto env = cuda::std::execution::env{stream, needs};
  return cub::DeviceTopK::MaxKeys(temp, *bytes, x, out, n, k, env);
}
#endif
