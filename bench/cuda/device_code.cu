#include "device_code.h"

#include "cuda/launch.h"
#include "cuda/ptx/launch.cuh"

namespace halfbyte::bench {
namespace {

constexpr int threads = 256;
constexpr int reads = 8;  // 16-byte words in flight of a thread that only reads

unsigned ctas_for(int64_t items) {
    return unsigned((items + threads - 1) / threads);
}
cuda::Launch on(cuda::Stream stream) {
    return {.stream = stream};
}
void check_launch() {
    cuda::check_cuda(cudaGetLastError(), "launch");
}

__device__ uint64_t hash(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

template <typename T>
__global__ void __launch_bounds__(threads) fill_normal(T* data, int64_t count, uint64_t seed) {
    for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < count;
         i += int64_t(gridDim.x) * threads) {
        const uint64_t bits = hash((seed << 40) + uint64_t(i) + 1);
        const float radius = sqrtf(-2.0f * logf((float(bits >> 44) + 1.0f) * 0x1p-20f));
        const float angle = float(bits >> 20 & 0xFFFFFF) * 0x1p-23f;  // in units of pi
        data[i] = T(radius * cospif(angle) * (bits % 1024 == 0 ? 16.0f : 1.0f));
    }
}

__global__ void __launch_bounds__(threads)
    fill_bytes(uint8_t* data, int64_t count, uint64_t seed, uint32_t first, uint32_t values) {
    for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < count;
         i += int64_t(gridDim.x) * threads)
        data[i] = uint8_t(first + uint32_t(hash((seed << 40) + uint64_t(i) + 1) >> 32) % values);
}

__global__ void fill_value(float* data, float value) {
    *data = value;
}

__global__ void __launch_bounds__(threads) copy_kernel(const uint4* from, uint4* to) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    to[i] = from[i];
}

// The store keeps the loads from being removed; it happens by chance only and harms nothing.
__global__ void __launch_bounds__(threads) read_kernel(uint4* from) {
    uint4* word = from + int64_t(blockIdx.x) * threads * reads + threadIdx.x;
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < reads; i++) {
        const uint4 value = word[i * threads];
        bits += (value.x ^ value.y) * 3 + (value.z ^ value.w);
    }
    if (bits == 0x9E3779B9) word->x = bits;
}

__global__ void empty_kernel() {
    cuda::ptx::wait_for_previous_kernel();
}

__global__ void spin_kernel(int64_t cycles) {
    for (const int64_t start = clock64(); clock64() - start < cycles;) {
    }
}

// A row has source_words words with data, and zeros up to `words`.
template <typename Word>
__global__ void __launch_bounds__(threads)
    copy_rows_kernel(const Word* source, uint32_t source_words, Word* target, uint32_t target_words,
                     uint32_t words, uint32_t count) {
    cuda::ptx::wait_for_previous_kernel();
    const uint32_t i = blockIdx.x * threads + threadIdx.x;
    if (i >= count) return;
    const uint32_t row = i / words, word = i % words;
    Word value = {};
    if (word < source_words) value = source[int64_t(row) * source_words + word];
    target[int64_t(row) * target_words + word] = value;
}

template <typename Word>
void launch_copy_rows(cuda::Stream stream, const uint8_t* source, int64_t source_bytes, uint8_t* target,
                      int64_t target_bytes, int64_t rows, bool with_zeros) {
    const int64_t size = sizeof(Word), words = (with_zeros ? target_bytes : source_bytes) / size;
    cuda::launch_grid(copy_rows_kernel<Word>, dim3(ctas_for(rows * words)), threads, 0, on(stream),
                      reinterpret_cast<const Word*>(source), uint32_t(source_bytes / size),
                      reinterpret_cast<Word*>(target), uint32_t(target_bytes / size), uint32_t(words),
                      uint32_t(rows * words));
}

}  // namespace

void fill(cuda::Stream stream, void* data, Content content, DType type, int64_t count, uint64_t seed,
          float value) {
    if (count == 0) return;
    const unsigned ctas = std::min(ctas_for(count), 132u * 16);
    const auto bytes = [&](uint32_t first, uint32_t values) {
        fill_bytes<<<ctas, threads, 0, stream>>>(static_cast<uint8_t*>(data), count, seed, first, values);
    };
    switch (content) {
        case Content::poison:
            cuda::check_cuda(cudaMemsetAsync(data, 0xFF, size_t(count) * size_of(type), stream), "memset");
            return;
        case Content::normal:
            cuda::with_type(type, [&](auto element) {
                using T = decltype(element);
                fill_normal<<<ctas, threads, 0, stream>>>(static_cast<T*>(data), count, seed);
            });
            break;
        case Content::any_byte:
            bytes(0, 256);
            break;
        case Content::e4m3:
            bytes(0x20, 0x48);
            break;
        case Content::e8m0:
            bytes(120, 15);
            break;
        case Content::value:
            fill_value<<<1, 1, 0, stream>>>(static_cast<float*>(data), value);
            break;
    }
    check_launch();
}

void copy(cuda::Stream stream, const void* from, void* to, int64_t bytes) {
    copy_kernel<<<ctas_for(bytes / 16), threads, 0, stream>>>(static_cast<const uint4*>(from),
                                                              static_cast<uint4*>(to));
    check_launch();
}

void read(cuda::Stream stream, void* from, int64_t bytes) {
    read_kernel<<<ctas_for(bytes / 16 / reads), threads, 0, stream>>>(static_cast<uint4*>(from));
    check_launch();
}

void do_nothing(cuda::Stream stream, bool overlapped) {
    if (overlapped)
        cuda::launch_grid(empty_kernel, dim3(1), 32, 0, on(stream));
    else
        empty_kernel<<<1, 32, 0, stream>>>();
    check_launch();
}

void spin(cuda::Stream stream, int64_t cycles) {
    spin_kernel<<<1, 1, 0, stream>>>(cycles);
    check_launch();
}

void copy_rows(cuda::Stream stream, const uint8_t* source, int64_t source_bytes, uint8_t* target,
               int64_t target_bytes, int64_t rows, bool with_zeros) {
    const bool wide = source_bytes % 16 == 0 && target_bytes % 16 == 0;
    (wide ? launch_copy_rows<uint4> : launch_copy_rows<uint2>)(stream, source, source_bytes, target,
                                                               target_bytes, rows, with_zeros);
}

}  // namespace halfbyte::bench
