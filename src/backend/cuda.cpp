// The door to the GPU: the arguments are checked once, a kernel is chosen, it is launched. The choice: the
// first kernel of the operation's list without a reason against it, of a product's in the order of
// cuda/matmul_choice.h; one asked for by name runs or fails.
#include <fmt/ranges.h>

#include <algorithm>

#include "backend/checks.h"
#include "backend/cuda_library.h"
#include "core/check.h"
#include "cuda/matmul_choice.h"
#include "cuda/matmul_scratch.h"
#include "cuda/workspace.h"

namespace halfbyte::cuda {
namespace {

const Kernels& loaded(const char* operation) {
    const CudaLibrary& library = cuda_library();
    check(library.kernels != nullptr, ErrorKind::unsupported, "{}: no GPU: {}", operation, library.reason);
    return *library.kernels;
}

DeviceInfo current_device(const char* operation, const Kernels& kernels) {
    const std::string reason = kernels.unavailable_reason();
    check(reason.empty(), ErrorKind::unsupported, "{}: no GPU: {}", operation, reason);
    return kernels.current_device();
}

// Empty if code of this library runs on the device. Code for 8.0 runs on 8.6 and 8.9; from 9.0 on it is
// compiled for one architecture alone (the "a" of 90a).
std::string architecture_reason(const Kernels& kernels, const DeviceInfo& device) {
    const std::vector<int> compiled = kernels.architectures();
    const int wanted = device.major * 10 + device.minor;
    const bool runs = std::any_of(compiled.begin(), compiled.end(), [&](int one) {
        return one == wanted || (device.major == 8 && one / 10 == 8 && one < wanted);
    });
    if (runs) return "";
    return fmt::format("not compiled for sm_{}: this build has sm_{} (HALFBYTE_CUDA_ARCHITECTURES)", wanted,
                       fmt::join(compiled, ", sm_"));
}

// architecture: architecture_reason of the device
template <typename Args>
std::string reason_against(const Kernel<Args>& kernel, const std::string& architecture, const Args& args,
                           const DeviceInfo& device) {
    const std::string own = kernel.unsupported_reason(args, device);
    const char* between = architecture.empty() || own.empty() ? "" : "; ";
    return fmt::format("{}{}{}", architecture, between, own);
}

template <typename Args>
std::vector<KernelStatus> table_of(const Kernels& kernels, KernelList<Args> list, const Args& args,
                                   const DeviceInfo& device) {
    const std::string architecture = architecture_reason(kernels, device);
    std::vector<KernelStatus> table;
    for (const Kernel<Args>* kernel : in_order(list, args, device))
        table.push_back({std::string(kernel->name), reason_against(*kernel, architecture, args, device)});
    return table;
}

std::string text_of(const DeviceInfo& device) {
    return fmt::format("{} ({}.{})", device.name, device.major, device.minor);
}

// None of the table has the name that was asked for, or none can run.
[[noreturn]] void fail_without_kernel(const char* operation, const std::vector<KernelStatus>& table,
                                      std::string_view asked, const DeviceInfo& device) {
    std::vector<std::string> names, rows;
    for (const auto& [name, reason] : table) {
        names.push_back(name);
        rows.push_back(fmt::format("  {}: {}", name, reason));
    }
    if (!asked.empty())
        fail(ErrorKind::usage, "{}: there is no kernel {}; {}", operation, asked,
             names.empty() ? std::string("the operation has none in this build")
                           : fmt::format("the kernels are {}", fmt::join(names, ", ")));
    fail(ErrorKind::unsupported, "{}: no kernel can run on {}:\n{}", operation, text_of(device),
         rows.empty() ? std::string("  the operation has none in this build")
                      : fmt::format("{}", fmt::join(rows, "\n")));
}

// The kernel that runs. The table of all is made for an error only: this is on the way of every launch.
template <typename Args>
const Kernel<Args>& choose(const char* operation, const Kernels& kernels, KernelList<Args> list,
                           const Args& args, std::string_view asked, const DeviceInfo& device) {
    const std::string architecture = architecture_reason(kernels, device);
    for (const Kernel<Args>* kernel : in_order(list, args, device)) {
        if (!asked.empty() && kernel->name != asked) continue;
        const std::string reason = reason_against(*kernel, architecture, args, device);
        if (reason.empty()) return *kernel;
        check(asked.empty(), ErrorKind::unsupported,
              "{}: the kernel {} was asked for and cannot run on {}: {}", operation, kernel->name,
              text_of(device), reason);
    }
    fail_without_kernel(operation, table_of(kernels, list, args, device), asked, device);
}

// The workspace that a launch brings along; what: who needs it.
void check_workspace(const char* operation, const char* what, const Launch& launch, int64_t needed) {
    if (needed == 0) return;
    check(launch.workspace != nullptr, ErrorKind::usage,
          "{}: {} a workspace of {} bytes of device memory, zero before its first use; null is given",
          operation, what, needed);
    check(launch.workspace_bytes >= needed, ErrorKind::usage, "{}: {} a workspace of {} bytes; {} are given",
          operation, what, needed, launch.workspace_bytes);
    check(reinterpret_cast<uintptr_t>(launch.workspace) % 4 == 0, ErrorKind::usage,
          "{}: the workspace is at an address that is {} modulo 4; a multiple of 4 is needed", operation,
          reinterpret_cast<uintptr_t>(launch.workspace) % 4);
}

void check_scratch(const char* operation, const Launch& launch, int64_t needed) {
    if (needed == 0) return;
    check(launch.scratch != nullptr, ErrorKind::usage,
          "{}: the product needs {} bytes of device memory as scratch; null is given", operation, needed);
    check(launch.scratch_bytes >= needed, ErrorKind::usage,
          "{}: the product needs a scratch of {} bytes; {} are given", operation, needed,
          launch.scratch_bytes);
    check(reinterpret_cast<uintptr_t>(launch.scratch) % 16 == 0, ErrorKind::usage,
          "{}: the scratch is at an address that is {} modulo 16; a multiple of 16 is needed", operation,
          reinterpret_cast<uintptr_t>(launch.scratch) % 16);
}

// launch(), whose Error says only what CUDA said. who: the operation and its kernel.
template <typename Work>
void launch_on(const DeviceInfo& device, const std::string& who, const Work& launch) {
    try {
        launch();
    } catch (const Error& error) {
        fail(error.kind(), "{} on {}: {}; stream and pointers must belong to the current device {}", who,
             text_of(device), error.what(), device.ordinal);
    }
}

template <typename Args>
void run(const char* operation, KernelList<Args> Kernels::* list, const Launch& launch, const Args& args) {
    check_gpu_arguments(args);
    if constexpr (std::is_same_v<Args, QuantizeArgs>)
        check_workspace(operation, "dynamic scales need", launch, workspace_bytes_of(args));
    else if constexpr (std::is_same_v<Args, AmaxArgs>)
        check_workspace(operation, "one amax of all rows needs", launch, workspace_bytes_of(args));
    else if constexpr (requires { args.quantize; })
        check_workspace(operation, "dynamic scales need", launch, workspace_bytes_of(args.quantize));
    else if constexpr (requires { scratch_bytes_of(args); }) {
        const int64_t needed = scratch_bytes_of(args);
        check_scratch(operation, launch, needed);
        check_scratch_is_apart(operation, args, launch.scratch, needed);
    }
    const Kernels& kernels = loaded(operation);
    const DeviceInfo device = current_device(operation, kernels);
    const Kernel<Args>& kernel = choose(operation, kernels, kernels.*list, args, launch.kernel, device);
    launch_on(device, fmt::format("{}, kernel {}", operation, kernel.name),
              [&] { kernel.launch(args, launch, device); });
}

template <typename Args>
std::vector<KernelStatus> explained(const char* operation, KernelList<Args> Kernels::* list, const Args& args,
                                    const DeviceInfo& device) {
    check_gpu_arguments(args);
    const Kernels& kernels = loaded(operation);
    return table_of(kernels, kernels.*list, args, device);
}

}  // namespace

std::string unavailable_reason() {
    const CudaLibrary& library = cuda_library();
    return library.kernels == nullptr ? library.reason : library.kernels->unavailable_reason();
}

std::vector<DeviceInfo> devices() {
    const CudaLibrary& library = cuda_library();
    return library.kernels == nullptr ? std::vector<DeviceInfo>() : library.kernels->devices();
}

int64_t workspace_bytes_of(const QuantizeArgs& args) {
    if (args.dynamic_encode_scale == nullptr) return 0;
    return dynamic_workspace_bytes(args.scale_per_row, args.shape.rows);
}

int64_t workspace_bytes_of(const AmaxArgs& args) {
    return amax_workspace_bytes(args.per_row);
}

int64_t packed_weight_bytes(int64_t n, int64_t k) {
    check(n >= 0 && k >= 0, ErrorKind::usage, "packed_weight_bytes: n = {}, k = {}; 0 or more is needed", n,
          k);
    return gpu_weight_bytes(n, k);
}

int64_t scratch_bytes_of(const MatmulW4A4Args& args) {
    return matmul_scratch_bytes(args);
}

int64_t scratch_bytes_of(const MatmulW4A16Args& args) {
    return matmul_scratch_bytes(args);
}

std::vector<KernelStatus> explain(const QuantizeArgs& args, const DeviceInfo& device) {
    return explained("quantize", &Kernels::quantize, args, device);
}

std::vector<KernelStatus> explain(const SiluMulQuantizeArgs& args, const DeviceInfo& device) {
    return explained("silu_mul_quantize", &Kernels::silu_mul_quantize, args, device);
}

std::vector<KernelStatus> explain(const RmsNormQuantizeArgs& args, const DeviceInfo& device) {
    return explained("rms_norm_quantize", &Kernels::rms_norm_quantize, args, device);
}

std::vector<KernelStatus> explain(const TransformQuantizeArgs& args, const DeviceInfo& device) {
    return explained("transform_quantize", &Kernels::transform_quantize, args, device);
}

std::vector<KernelStatus> explain(const TransformArgs& args, const DeviceInfo& device) {
    return explained("transform", &Kernels::transform, args, device);
}

std::vector<KernelStatus> explain(const FakeQuantizeArgs& args, const DeviceInfo& device) {
    return explained("fake_quantize", &Kernels::fake_quantize, args, device);
}

std::vector<KernelStatus> explain(const DequantizeArgs& args, const DeviceInfo& device) {
    return explained("dequantize", &Kernels::dequantize, args, device);
}

std::vector<KernelStatus> explain(const ConvertScalesArgs& args, const DeviceInfo& device) {
    return explained("convert_scales", &Kernels::convert_scales, args, device);
}

std::vector<KernelStatus> explain(const AmaxArgs& args, const DeviceInfo& device) {
    return explained("amax", &Kernels::amax, args, device);
}

std::vector<KernelStatus> explain(const MxFp4QuantizeArgs& args, const DeviceInfo& device) {
    return explained("mxfp4_quantize", &Kernels::mxfp4_quantize, args, device);
}

std::vector<KernelStatus> explain(const MxFp4DequantizeArgs& args, const DeviceInfo& device) {
    return explained("mxfp4_dequantize", &Kernels::mxfp4_dequantize, args, device);
}

std::vector<KernelStatus> explain(const PackWeightArgs& args, const DeviceInfo& device) {
    return explained("pack_weight", &Kernels::pack_weight, args, device);
}

std::vector<KernelStatus> explain(const UnpackWeightArgs& args, const DeviceInfo& device) {
    return explained("unpack_weight", &Kernels::unpack_weight, args, device);
}

std::vector<KernelStatus> explain(const MatmulW4A4Args& args, const DeviceInfo& device) {
    return explained("matmul_w4a4", &Kernels::matmul_w4a4, args, device);
}

std::vector<KernelStatus> explain(const MatmulW4A16Args& args, const DeviceInfo& device) {
    return explained("matmul_w4a16", &Kernels::matmul_w4a16, args, device);
}

void quantize(const Launch& launch, const QuantizeArgs& args) {
    run("quantize", &Kernels::quantize, launch, args);
}

void silu_mul_quantize(const Launch& launch, const SiluMulQuantizeArgs& args) {
    run("silu_mul_quantize", &Kernels::silu_mul_quantize, launch, args);
}

void rms_norm_quantize(const Launch& launch, const RmsNormQuantizeArgs& args) {
    run("rms_norm_quantize", &Kernels::rms_norm_quantize, launch, args);
}

void transform_quantize(const Launch& launch, const TransformQuantizeArgs& args) {
    run("transform_quantize", &Kernels::transform_quantize, launch, args);
}

void transform(const Launch& launch, const TransformArgs& args) {
    run("transform", &Kernels::transform, launch, args);
}

void fake_quantize(const Launch& launch, const FakeQuantizeArgs& args) {
    run("fake_quantize", &Kernels::fake_quantize, launch, args);
}

void dequantize(const Launch& launch, const DequantizeArgs& args) {
    run("dequantize", &Kernels::dequantize, launch, args);
}

void convert_scales(const Launch& launch, const ConvertScalesArgs& args) {
    run("convert_scales", &Kernels::convert_scales, launch, args);
}

void amax(const Launch& launch, const AmaxArgs& args) {
    run("amax", &Kernels::amax, launch, args);
}

void mxfp4_quantize(const Launch& launch, const MxFp4QuantizeArgs& args) {
    run("mxfp4_quantize", &Kernels::mxfp4_quantize, launch, args);
}

void mxfp4_dequantize(const Launch& launch, const MxFp4DequantizeArgs& args) {
    run("mxfp4_dequantize", &Kernels::mxfp4_dequantize, launch, args);
}

void pack_weight(const Launch& launch, const PackWeightArgs& args) {
    run("pack_weight", &Kernels::pack_weight, launch, args);
}

void unpack_weight(const Launch& launch, const UnpackWeightArgs& args) {
    run("unpack_weight", &Kernels::unpack_weight, launch, args);
}

void matmul_w4a4(const Launch& launch, const MatmulW4A4Args& args) {
    run("matmul_w4a4", &Kernels::matmul_w4a4, launch, args);
}

void matmul_w4a16(const Launch& launch, const MatmulW4A16Args& args) {
    run("matmul_w4a16", &Kernels::matmul_w4a16, launch, args);
}

void count_bad_scales(const Launch& launch, const float* scales, int64_t count, int32_t* bad) {
    const char* operation = "count_bad_scales";
    check(count >= 0, ErrorKind::usage, "{}: count = {}; 0 or more is needed", operation, count);
    check(scales != nullptr || count == 0, ErrorKind::usage, "{}: scales is null; {} numbers are needed",
          operation, count);
    check(bad != nullptr, ErrorKind::usage, "{}: bad is null; device memory for one 32-bit number is needed",
          operation);
    check(reinterpret_cast<uintptr_t>(scales) % 4 == 0 && reinterpret_cast<uintptr_t>(bad) % 4 == 0,
          ErrorKind::usage,
          "{}: scales is at an address that is {} modulo 4, bad at {}; multiples of 4 are needed", operation,
          reinterpret_cast<uintptr_t>(scales) % 4, reinterpret_cast<uintptr_t>(bad) % 4);
    check(launch.kernel.empty(), ErrorKind::usage,
          "{}: there is no kernel {}; the operation has one, without a name", operation, launch.kernel);
    const Kernels& kernels = loaded(operation);
    const DeviceInfo device = current_device(operation, kernels);
    const std::string reason = architecture_reason(kernels, device);
    check(reason.empty(), ErrorKind::unsupported, "{}: {}", operation, reason);
    launch_on(device, operation, [&] { kernels.count_bad_scales(launch.stream, scales, count, bad); });
}

}  // namespace halfbyte::cuda
