// x [2, 20] quantised on a GPU, first with a given global scale, then with one that the kernel finds.
#include <cuda_runtime_api.h>
#include <halfbyte/cuda.h>
#include <halfbyte/error.h>

#include <cstdio>

using namespace halfbyte;

static void check(cudaError_t status) {
    if (status != cudaSuccess) throw Error(ErrorKind::failure, cudaGetErrorString(status));
}

// Device memory; the end of the program frees it.
template <typename T>
static T* allocate(int64_t count) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, size_t(count) * sizeof(T)));
    return static_cast<T*>(memory);
}

static void print(cudaStream_t stream, const QuantizeArgs& args) {
    uint8_t codes[8], scale[1];  // of the first block
    check(cudaMemcpyAsync(codes, args.codes, sizeof codes, cudaMemcpyDeviceToHost, stream));
    check(cudaMemcpyAsync(scale, args.block_scales, sizeof scale, cudaMemcpyDeviceToHost, stream));
    check(cudaStreamSynchronize(stream));
    for (const uint8_t byte : codes) std::printf("%02x ", byte);
    std::printf("scale %02x\n", scale[0]);
}

int main() try {
    if (const std::string reason = cuda::unavailable_reason(); !reason.empty()) {
        std::printf("no GPU: %s\n", reason.c_str());
        return 0;
    }
    constexpr int64_t rows = 2, k = 20;
    float x[rows * k];  // largest value 2
    for (int i = 0; i < rows * k; i++) x[i] = float(i % k % 16) / 4 - 2;
    const float G = EncodeScale::from_amax(2).encode();

    // Memory and stream belong to the device that is current here.
    cudaStream_t stream = nullptr;
    check(cudaStreamCreate(&stream));
    float* device_x = allocate<float>(rows * k);
    float* device_G = allocate<float>(1);
    check(cudaMemcpyAsync(device_x, x, sizeof x, cudaMemcpyHostToDevice, stream));
    check(cudaMemcpyAsync(device_G, &G, sizeof G, cudaMemcpyHostToDevice, stream));

    // K = 20 is padded to 64, four blocks; the kernel writes the padding as zero.
    const NvFp4Shape shape = {
        .rows = rows, .k = k, .padded_rows = rows, .padded_k = 64, .layout = ScaleLayout::tiled_128x4};
    QuantizeArgs args = {.x = {device_x, DType::f32, rows, k, k},
                         .encode_scale = device_G,
                         .shape = shape,
                         .codes = allocate<uint8_t>(shape.code_bytes()),
                         .block_scales = allocate<uint8_t>(shape.scale_bytes())};
    cuda::quantize({.stream = stream}, args);
    print(stream, args);

    // Dynamic: G and D = 1 / G are written to device memory; the workspace is zero before its first use.
    args.encode_scale = nullptr;
    args.dynamic_encode_scale = allocate<float>(1);
    args.dynamic_decode_scale = allocate<float>(1);
    const int64_t bytes = cuda::workspace_bytes_of(args);
    uint8_t* workspace = allocate<uint8_t>(bytes);
    check(cudaMemsetAsync(workspace, 0, size_t(bytes), stream));
    cuda::quantize({.stream = stream, .workspace = workspace, .workspace_bytes = bytes}, args);
    print(stream, args);
} catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return int(error.kind());
}
