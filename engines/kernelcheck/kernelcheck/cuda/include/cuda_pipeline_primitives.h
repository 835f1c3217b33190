// Copies from global to shared memory that run beside the thread which begins them, as the CUDA C++ Programming Guide
// has them under "Pipeline Primitives Interface". Here they arrive at the wait; who looks before has a race.
// On a real GPU the same text is compiled by NVRTC, and there each copy is done at once.
#pragma once
#ifdef __CUDACC_RTC__
__device__ inline void __pipeline_memcpy_async(void* to, const void* from, size_t size, size_t zeros = 0) {
  for (size_t i = 0; i < size; i++) ((char*)to)[i] = i + zeros < size ? ((const char*)from)[i] : 0;
}
__device__ inline void __pipeline_commit() {}
__device__ inline void __pipeline_wait_prior(size_t) {}
#else
extern "C" void kc_copy_later(void* to, const void* from, int size, int zeros, int line);
extern "C" void kc_commit();
extern "C" void kc_wait_prior(size_t batches);
KC_HERE void __pipeline_memcpy_async(void* to, const void* from, size_t size, size_t zeros = 0, int line = __builtin_LINE()) {
  if (size != 4 && size != 8 && size != 16) kc_stop("assert", "size_and_align == 4 || size_and_align == 8 || size_and_align == 16", line);
  if (zeros > size) kc_stop("assert", "zfill <= size_and_align", line);
  kc_copy_later(to, from, int(size), int(zeros), line);
}
KC_HERE void __pipeline_commit() { kc_commit(); }
KC_HERE void __pipeline_wait_prior(size_t batches) { kc_wait_prior(batches); }
#endif
