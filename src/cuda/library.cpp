// The one symbol of libhalfbyte_cuda.so: what it holds, and what the driver and the devices are.
#include <cuda_runtime_api.h>

#include "core/check.h"
#include "cuda/operations.h"
#include "halfbyte/version.h"

namespace halfbyte::cuda {
namespace {

// "13.0" of 13000
std::string version_text(int number) {
    return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

void check_call(cudaError_t error, const char* call) {
    check(error == cudaSuccess, ErrorKind::failure, "{}: {} ({})", call, cudaGetErrorString(error),
          cudaGetErrorName(error));
}

std::string find_reason() {
    int driver = 0, count = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return "no NVIDIA driver: libcuda.so.1 cannot be loaded; install the driver of the GPU";
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver)
        return fmt::format(
            "the NVIDIA driver is too old: it is for CUDA {}, this build needs CUDA {}; update the driver",
            version_text(driver), version_text(CUDART_VERSION));
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0))
        return "no device: the NVIDIA driver is there and finds no GPU that this process may use; nvidia-smi "
               "lists "
               "them, CUDA_VISIBLE_DEVICES hides some";
    if (error != cudaSuccess)
        return fmt::format("the NVIDIA driver fails: {} ({})", cudaGetErrorString(error),
                           cudaGetErrorName(error));
    return "";
}

// Asked once: neither comes nor goes while a process runs.
std::string driver_reason() {
    static const std::string reason = find_reason();
    return reason;
}

DeviceInfo device_info(int ordinal) {
    cudaDeviceProp properties = {};
    check_call(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
    return {.ordinal = ordinal,
            .name = properties.name,
            .major = properties.major,
            .minor = properties.minor,
            .multiprocessors = properties.multiProcessorCount,
            .shared_memory_per_block = int64_t(properties.sharedMemPerBlockOptin),
            .memory = int64_t(properties.totalGlobalMem)};
}

std::vector<DeviceInfo> find_devices() {
    if (!driver_reason().empty()) return {};
    int count = 0;
    check_call(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    std::vector<DeviceInfo> all;
    for (int i = 0; i < count; i++) all.push_back(device_info(i));
    return all;
}

const std::vector<DeviceInfo>& all_devices() {
    static const std::vector<DeviceInfo> all = find_devices();
    return all;
}

std::vector<DeviceInfo> list_devices() {
    return all_devices();
}

DeviceInfo current_device() {
    int ordinal = 0;
    check_call(cudaGetDevice(&ordinal), "cudaGetDevice");
    return all_devices().at(size_t(ordinal));
}

std::vector<int> architectures() {
    return {HALFBYTE_CUDA_ARCHITECTURES};
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const Kernels* halfbyte_cuda_kernels() {
    // In the order of the choice.
    static const Kernel<QuantizeArgs> quantize[] = {kernel::quantize, kernel::quantize_dynamic};
    static const Kernel<SiluMulQuantizeArgs> silu_mul_quantize[] = {kernel::silu_mul_quantize,
                                                                    kernel::silu_mul_quantize_dynamic};
    static const Kernel<RmsNormQuantizeArgs> rms_norm_quantize[] = {kernel::rms_norm_quantize,
                                                                    kernel::rms_norm_quantize_dynamic};
    static const Kernel<TransformQuantizeArgs> transform_quantize[] = {
        kernel::hadamard_quantize,
        kernel::hadamard_quantize_dynamic,
        kernel::matrix_quantize,
        kernel::matrix_quantize_dynamic,
        kernel::matrix_quantize_tensor_core,
        kernel::matrix_quantize_tensor_core_dynamic};
    static const Kernel<TransformArgs> transform[] = {kernel::hadamard, kernel::matrix,
                                                      kernel::matrix_tensor_core};
    static const Kernel<FakeQuantizeArgs> fake_quantize[] = {kernel::fake_quantize};
    static const Kernel<DequantizeArgs> dequantize[] = {kernel::dequantize};
    static const Kernel<ConvertScalesArgs> convert_scales[] = {kernel::convert_scales};
    static const Kernel<AmaxArgs> amax[] = {kernel::amax};
    static const Kernel<MxFp4QuantizeArgs> mxfp4_quantize[] = {kernel::mxfp4_quantize};
    static const Kernel<MxFp4DequantizeArgs> mxfp4_dequantize[] = {kernel::mxfp4_dequantize};
    static const Kernel<PackWeightArgs> pack_weight[] = {kernel::pack_weight};
    static const Kernel<UnpackWeightArgs> unpack_weight[] = {kernel::unpack_weight};
    static const Kernel<MatmulW4A4Args> matmul_w4a4[] = {
        kernel::matmul_w4a4_prefill, kernel::matmul_w4a4_prefill_expanded, kernel::matmul_w4a4_decode,
        kernel::cublaslt_nvfp4, kernel::matmul_w4a4_prefill_tensor_core};
    static const Kernel<MatmulW4A16Args> matmul_w4a16[] = {
        kernel::matmul_w4a16_prefill, kernel::matmul_w4a16_decode, kernel::cublaslt_dequantised};
    static const Kernels all = {
        .version = version,
        .unavailable_reason = driver_reason,
        .devices = list_devices,
        .current_device = current_device,
        .architectures = architectures,
        .quantize = quantize,
        .silu_mul_quantize = silu_mul_quantize,
        .rms_norm_quantize = rms_norm_quantize,
        .transform_quantize = transform_quantize,
        .transform = transform,
        .fake_quantize = fake_quantize,
        .dequantize = dequantize,
        .convert_scales = convert_scales,
        .amax = amax,
        .mxfp4_quantize = mxfp4_quantize,
        .mxfp4_dequantize = mxfp4_dequantize,
        .pack_weight = pack_weight,
        .unpack_weight = unpack_weight,
        .matmul_w4a4 = matmul_w4a4,
        .matmul_w4a16 = matmul_w4a16,
        .count_bad_scales = launch_count_bad_scales,
    };
    return &all;
}

}  // namespace halfbyte::cuda
