// CUB as the benchmark calls it: a shared library for one element type, given by -DELEMENT=.
// Every function follows CUB's protocol: without temp it only tells the bytes of temp it needs.
#include <cub/device/device_histogram.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>

using T = ELEMENT;
using i64 = long long;

extern "C" int cub_version() { return CUB_VERSION; }

extern "C" int cub_sum(void* temp, size_t* bytes, const T* x, T* out, int n, cudaStream_t stream) {
  return cub::DeviceReduce::Sum(temp, *bytes, x, out, n, stream);
}

extern "C" int cub_min(void* temp, size_t* bytes, const T* x, T* out, int n, cudaStream_t stream) {
  return cub::DeviceReduce::Min(temp, *bytes, x, out, n, stream);
}

// Writes the index to out[0] and the value behind it.
extern "C" int cub_argmax(void* temp, size_t* bytes, const T* x, i64* out, int n,
                          cudaStream_t stream) {
  return cub::DeviceReduce::ArgMax(temp, *bytes, x, reinterpret_cast<T*>(out + 1), out, n, stream);
}

extern "C" int cub_scan(void* temp, size_t* bytes, const T* x, T* out, int n, cudaStream_t stream) {
  return cub::DeviceScan::InclusiveSum(temp, *bytes, x, out, n, stream);
}

extern "C" int cub_histogram(void* temp, size_t* bytes, const T* x, int* out, int n,
                             cudaStream_t stream, int bins, double low, double high) {
  return cub::DeviceHistogram::HistogramEven(temp, *bytes, x, out, bins + 1, T(low), T(high), n,
                                             stream);
}
