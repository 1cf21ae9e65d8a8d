// What the benchmark runs on the GPU besides the kernels it measures: data, and the yardsticks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "halfbyte/cuda.h"

namespace halfbyte::bench {

// What a buffer holds before a launch.
enum class Content {
    poison,    // 0xFF: an output
    normal,    // of the given type, standard deviation 1, one in 1024 sixteen times as large
    any_byte,  // two codes
    e4m3,      // 2^-3 to 2^6
    e8m0,      // 2^-7 to 2^7
    value      // one FP32 number
};

// count elements. All calls here throw Error (failure) if the launch fails.
void fill(cuda::Stream stream, void* data, Content content, DType type, int64_t count, uint64_t seed,
          float value);

// 16 bytes a thread; bytes is a multiple of 2^15.
void copy(cuda::Stream stream, const void* from, void* to, int64_t bytes);
void read(cuda::Stream stream, void* from, int64_t bytes);
// `overlapped`: by programmatic dependent launch, as the library's kernels are.
void do_nothing(cuda::Stream stream, bool overlapped);
void spin(cuda::Stream stream, int64_t cycles);

// target [rows, target_bytes] = source [rows, source_bytes], rows in bytes, multiples of 8; the rest of a row
// is written as zero if with_zeros, else left.
void copy_rows(cuda::Stream stream, const uint8_t* source, int64_t source_bytes, uint8_t* target,
               int64_t target_bytes, int64_t rows, bool with_zeros);

}  // namespace halfbyte::bench
