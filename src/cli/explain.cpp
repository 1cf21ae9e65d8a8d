// halfbyte explain: the kernels there are for an operation and a problem, which one runs, and why each other
// does not.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "backend/checks.h"
#include "backend/cuda_library.h"
#include "cli/command.h"
#include "core/check.h"
#include "format/scale_layout.h"
#include "halfbyte/cuda.h"

namespace halfbyte::cli {
namespace {

using cuda::DeviceInfo;
using cuda::KernelStatus;

struct Options {
    CommonOptions common;
    std::string operation;
    int64_t rows = 1, k = 4096;
    std::optional<int64_t> padded_rows, padded_k, transform_n, n;
    std::string type = "bf16", layout = "linear", transform, arithmetic;
    std::optional<std::string> device;
    bool dynamic = false, scale_per_row = false, unaligned = false, quantize_on_the_way = false;

    bool transforms() const { return operation == "transform" || operation == "transform_quantize"; }
    bool mxfp4() const { return operation.starts_with("mxfp4_"); }
    // quantize and its fused forms
    bool quantizes() const {
        return operation == "quantize" || operation == "silu_mul_quantize" ||
               operation == "rms_norm_quantize" || operation == "transform_quantize";
    }
    bool multiplies() const { return operation == "matmul_w4a4" || operation == "matmul_w4a16"; }
    bool block_scales() const {
        return quantizes() || mxfp4() || operation == "dequantize" || operation == "convert_scales" ||
               operation == "pack_weight" || (operation == "matmul_w4a4" && !quantize_on_the_way);
    }
    bool global_scale() const {
        return quantizes() || operation == "fake_quantize" || operation == "dequantize" ||
               operation == "amax" || operation == "matmul_w4a4";
    }
    // A matrix of BF16, FP16 or FP32, read or written.
    bool typed() const {
        return operation != "convert_scales" && operation != "pack_weight" && operation != "unpack_weight";
    }
    std::string arithmetic_or_default() const {
        return !arithmetic.empty() ? arithmetic : operation == "matmul_w4a16" ? "tensor_core" : "contract";
    }
};

template <typename Value>
Value value_of(const std::string& name, std::initializer_list<std::pair<const char*, Value>> values) {
    return std::find_if(values.begin(), values.end(), [&](const auto& one) { return name == one.first; })
        ->second;
}

// Options that the operation has no use for are errors: nothing given is ignored.
void check_options(const Options& options) {
    const auto need = [&](bool used, bool given, const char* option, const char* what) {
        check(used || !given, ErrorKind::usage, "{}: {} has no {}; leave the option out", option,
              options.operation, what);
    };
    need(options.transforms(), !options.transform.empty(), "--transform", "transform");
    need(options.transforms(), options.transform_n.has_value(), "--transform-n", "transform");
    need(options.transforms() || options.multiplies(), !options.arithmetic.empty(), "--arithmetic",
         "choice of arithmetic");
    need(options.multiplies() || options.arithmetic != "library", options.arithmetic == "library",
         "--arithmetic library", "product");
    need(options.multiplies(), options.n.has_value(), "--n", "product");
    need(options.operation == "matmul_w4a4", options.quantize_on_the_way, "--quantize",
         "activations to quantise on the way");
    need(options.quantizes(), options.dynamic, "--dynamic", "dynamic scales");
    need(options.global_scale(), options.scale_per_row, "--scale-per-row", "global scale");
    need(options.block_scales(), options.padded_rows.has_value(), "--padded-rows", "block scales");
    need(options.block_scales(), options.padded_k.has_value(), "--padded-k", "block scales");
    need(options.block_scales(), options.layout != "linear", "--layout", "block scales");
    need(options.typed(), options.type != "bf16", "--type", "matrix of a type");
}

// Addresses stand for memory that is never touched: the choice looks at their alignment alone, the checks at
// whether they overlap, so codes, block scales, a packed weight and the result of a product are far from x
// and from each other.
constexpr uintptr_t matrix_address = 4096, product_address = uintptr_t(1) << 61,
                    weight_address = uintptr_t(1) << 62, code_address = uintptr_t(1) << 63,
                    block_scale_address = code_address + (uintptr_t(1) << 62);

void* address(const Options& options, DType type, uintptr_t base = matrix_address) {
    return reinterpret_cast<void*>(base + (options.unaligned ? size_of(type) : 0));
}
float* scale_address() {
    return static_cast<float*>(address({}, DType::f32));
}
uint8_t* codes(const Options& options) {
    return static_cast<uint8_t*>(address(options, DType::u8, code_address));
}
uint8_t* block_scales(const Options& options) {
    return static_cast<uint8_t*>(address(options, DType::u8, block_scale_address));
}

DType type_of(const Options& options) {
    return value_of<DType>(options.type, {{"bf16", DType::bf16}, {"f16", DType::f16}, {"f32", DType::f32}});
}

ConstMatrix input(const Options& options) {
    const DType type = type_of(options);
    return {address(options, type), type, options.rows, options.k, options.k};
}

// Of x's size and place.
Matrix output(const Options& options) {
    const DType type = type_of(options);
    return {address(options, type), type, options.rows, options.k, options.k};
}

// An NvFp4Shape or MxFp4Shape.
template <typename Shape>
Shape shape_of(const Options& options, int64_t block_size) {
    return {options.rows, options.k, options.padded_rows.value_or(options.rows),
            options.padded_k.value_or(round_up(options.k, block_size)),
            value_of<ScaleLayout>(options.layout, {{"linear", ScaleLayout::linear},
                                                   {"tiled_128x4", ScaleLayout::tiled_128x4},
                                                   {"tiled_8x4", ScaleLayout::tiled_8x4}})};
}
NvFp4Shape nvfp4_shape(const Options& options) {
    return shape_of<NvFp4Shape>(options, 16);
}
MxFp4Shape mxfp4_shape(const Options& options) {
    return shape_of<MxFp4Shape>(options, 32);
}

QuantizeArgs quantize_args(const Options& options, const ConstMatrix& x) {
    return {.x = x,
            .encode_scale = options.dynamic ? nullptr : scale_address(),
            .scale_per_row = options.scale_per_row,
            .dynamic_encode_scale = options.dynamic ? scale_address() : nullptr,
            .shape = nvfp4_shape(options),
            .codes = codes(options),
            .block_scales = block_scales(options)};
}

Accumulation accumulation_of(const Options& options) {
    return value_of<Accumulation>(options.arithmetic_or_default(),
                                  {{"contract", Accumulation::contract},
                                   {"tensor_core", Accumulation::tensor_core},
                                   {"library", Accumulation::library}});
}

cuda::PackedWeight weight_of(int64_t n, int64_t k) {
    return {reinterpret_cast<const uint8_t*>(weight_address), n, k};
}
Matrix product_of(const Options& options) {
    const DType type = type_of(options);
    const int64_t n = options.n.value_or(4096);
    return {address(options, type, product_address), type, options.rows, n, n};
}

cuda::PackWeightArgs pack_args(const Options& options) {
    cuda::PackWeightArgs args = {.part_count = 1, .packed = reinterpret_cast<uint8_t*>(weight_address)};
    args.parts[0] = {codes(options), block_scales(options), nvfp4_shape(options)};
    return args;
}

cuda::MatmulW4A4Args w4a4_args(const Options& options, const ConstMatrix& x) {
    cuda::MatmulW4A4Args args = {.w = weight_of(options.n.value_or(4096), options.k),
                                 .row_decode = scale_address(),
                                 .row_decode_per_row = options.scale_per_row,
                                 .column_decode = scale_address(),
                                 .d = product_of(options),
                                 .accumulation = accumulation_of(options)};
    if (options.quantize_on_the_way)
        args.x = x, args.encode_scale = scale_address(), args.encode_scale_per_row = options.scale_per_row;
    else
        args.a = {codes(options), block_scales(options), nvfp4_shape(options)};
    return args;
}

// A matrix of BF16 for x of BF16, else of FP32.
BlockTransform transform_of(const Options& options) {
    BlockTransform transform = {.n = options.transform_n.value_or(32)};
    transform.accumulation = accumulation_of(options);
    if (options.transform == "matrix") {
        transform.matrix_type = type_of(options) == DType::bf16 ? DType::bf16 : DType::f32;
        transform.matrix = address(options, transform.matrix_type);
    }
    return transform;
}

template <typename Work>
auto with_arguments(const Options& options, const Work& work) {
    const ConstMatrix x = input(options);
    if (options.operation == "transform")
        return work(TransformArgs{x, transform_of(options), output(options)});
    if (options.operation == "transform_quantize")
        return work(
            TransformQuantizeArgs{x, transform_of(options), quantize_args(options, {.type = DType::f32})});
    if (options.operation == "silu_mul_quantize")
        return work(SiluMulQuantizeArgs{x, x, quantize_args(options, {.type = x.type})});
    if (options.operation == "rms_norm_quantize")
        return work(RmsNormQuantizeArgs{.x = x,
                                        .weight = {address(options, x.type), x.type, 1, x.cols, x.cols},
                                        .quantize = quantize_args(options, {.type = x.type})});
    if (options.operation == "fake_quantize")
        return work(FakeQuantizeArgs{x, scale_address(), options.scale_per_row, output(options)});
    if (options.operation == "dequantize")
        return work(DequantizeArgs{{codes(options), block_scales(options), nvfp4_shape(options)},
                                   scale_address(),
                                   options.scale_per_row,
                                   output(options)});
    if (options.operation == "convert_scales")
        return work(ConvertScalesArgs{
            .shape = nvfp4_shape(options), .source = codes(options), .target = block_scales(options)});
    if (options.operation == "amax")
        return work(AmaxArgs{.x = x, .per_row = options.scale_per_row, .amax = scale_address()});
    if (options.operation == "mxfp4_quantize")
        return work(MxFp4QuantizeArgs{x, mxfp4_shape(options), codes(options), block_scales(options)});
    if (options.operation == "mxfp4_dequantize")
        return work(MxFp4DequantizeArgs{codes(options), block_scales(options), mxfp4_shape(options),
                                        output(options)});
    if (options.operation == "pack_weight") return work(pack_args(options));
    if (options.operation == "unpack_weight")
        return work(cuda::UnpackWeightArgs{weight_of(options.rows, options.k), codes(options),
                                           block_scales(options)});
    if (options.operation == "matmul_w4a4") return work(w4a4_args(options, x));
    if (options.operation == "matmul_w4a16")
        return work(cuda::MatmulW4A16Args{.x = x,
                                          .w = weight_of(options.n.value_or(4096), options.k),
                                          .column_decode = scale_address(),
                                          .d = product_of(options),
                                          .accumulation = accumulation_of(options)});
    return work(quantize_args(options, x));
}

std::string problem_text(const Options& options) {
    const bool typed = options.typed();
    const bool quantised = options.operation == "matmul_w4a4" && !options.quantize_on_the_way;
    std::string text = fmt::format("{} of {}[{}, {}]", options.operation,
                                   quantised ? "NVFP4 "
                                   : typed   ? std::string(name_of(type_of(options))) + " "
                                             : "",
                                   options.rows, options.k);
    if (options.multiplies())
        text += fmt::format("{} and a packed weight [{}, {}] to {}, arithmetic {}",
                            options.quantize_on_the_way ? ", quantised on the way," : "",
                            options.n.value_or(4096), options.k, name_of(type_of(options)),
                            options.arithmetic_or_default());
    if (options.transforms())
        text += fmt::format(", {} transform of size {}, arithmetic {}",
                            options.transform == "matrix" ? "matrix" : "Hadamard",
                            options.transform_n.value_or(32), options.arithmetic_or_default());
    if (options.block_scales()) {
        const int64_t padded_k =
            options.mxfp4() ? mxfp4_shape(options).padded_k : nvfp4_shape(options).padded_k;
        text += fmt::format(", block scales {}{}, padded to [{}, {}]", options.layout,
                            options.operation == "convert_scales" ? " to linear" : "",
                            options.padded_rows.value_or(options.rows), padded_k);
    }
    const char* each = options.scale_per_row ? " for each row" : "";
    if (options.operation == "amax")
        text += fmt::format(", one amax{}", each);
    else if (options.global_scale())
        text += fmt::format(", {} global scale{}", options.dynamic ? "dynamic" : "given", each);
    return text + (options.unaligned ? ", memory aligned to elements only" : "");
}

// Why no CPU level can, or nothing.
std::string cpu_reason(const Options& options) {
    if (options.arithmetic == "tensor_core" || options.arithmetic == "library")
        return "the CPU has the contract's arithmetic only";
    if (options.quantize_on_the_way) return "the CPU quantises first, then multiplies";
    if (options.transforms() || options.quantizes() || options.multiplies() ||
        options.operation == "dequantize")
        return "";
    return fmt::format("the CPU has no kernel of {} in this version", options.operation);
}

// Levels as kernels, in the order of the choice: the highest first.
std::vector<KernelStatus> cpu_table(const Options& options) {
    std::vector<KernelStatus> table;
    const std::string reason = cpu_reason(options);
    for (const CpuLevelStatus& status : cpu_levels())
        table.insert(table.begin(), {std::string(name_of(status.level)),
                                     reason.empty() ? status.unsupported_reason : reason});
    return table;
}

// The first that can, or the one that --cpu-level asks for.
std::string chosen_of(const std::vector<KernelStatus>& table, const std::string& asked = "best") {
    for (const KernelStatus& status : table)
        if (status.unsupported_reason.empty() && (asked == "best" || asked == status.name))
            return status.name;
    return "";
}

struct CudaTable {
    std::string unavailable_reason;  // there is no table then
    DeviceInfo device;
    std::string device_reason;
    std::vector<KernelStatus> kernels;
};

// The device that --device names; without it the first one, or sm_90 where there is none.
DeviceInfo device_of(const Options& options, std::string& reason) {
    const std::vector<DeviceInfo> devices = cuda::devices();
    if (!options.device.has_value()) {
        reason = devices.empty() ? "no GPU here, so Hopper's architecture" : "the first one";
        return devices.empty() ? device_of_architecture("sm_90") : devices.front();
    }
    const std::string& name = *options.device;
    if (name.starts_with("sm_")) {
        reason = "asked for with --device";
        return device_of_architecture(name);
    }
    check(!name.empty() && name.size() < 4 && name.find_first_not_of("0123456789") == std::string::npos,
          ErrorKind::usage,
          "--device '{}': a device's number, such as 0, or an architecture, such as sm_90, is needed", name);
    check(!devices.empty(), ErrorKind::unsupported,
          "--device {}: {}; an architecture, such as sm_90, needs no GPU", name, cuda::unavailable_reason());
    const size_t number = std::stoul(name);
    check(number < devices.size(), ErrorKind::usage, "--device {}: the devices 0 to {} are there", name,
          devices.size() - 1);
    reason = "asked for with --device";
    return devices[number];
}

CudaTable cuda_table(const Options& options) {
    CudaTable table;
    table.unavailable_reason = cuda_library().reason;
    table.device = device_of(options, table.device_reason);
    if (table.unavailable_reason.empty())
        table.kernels =
            with_arguments(options, [&](const auto& args) { return cuda::explain(args, table.device); });
    return table;
}

Json json_of(const std::vector<KernelStatus>& table) {
    Json rows = Json::array();
    for (const KernelStatus& status : table)
        rows.push_back(
            {{"name", status.name},
             {"unsupported_reason",
              status.unsupported_reason.empty() ? Json(nullptr) : Json(status.unsupported_reason)}});
    return rows;
}

Json text_or_null(const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
}

void print_table(const std::vector<KernelStatus>& table, const std::string& chosen) {
    size_t width = 0;
    for (const KernelStatus& status : table) width = std::max(width, status.name.size());
    for (const auto& [name, reason] : table)
        fmt::print("  {:<{}}  {}\n", name, width,
                   name == chosen   ? std::string("runs")
                   : reason.empty() ? std::string("can run, when asked for by name")
                                    : "no: " + reason);
    if (table.empty()) fmt::print("  no kernel of this operation in this build\n");
}

int run(const Options& options) {
    check_options(options);
    with_arguments(options, [](const auto& args) { check_gpu_arguments(args); });
    const auto context = make_context(options.common);  // checks --cpu-level
    const std::vector<KernelStatus> cpu = cpu_table(options);
    const std::string cpu_chosen = chosen_of(cpu, options.common.cpu_level);
    const CudaTable gpu = cuda_table(options);
    const std::string gpu_chosen = chosen_of(gpu.kernels);
    const std::string capability = fmt::format("{}.{}", gpu.device.major, gpu.device.minor);
    if (options.common.json()) {
        print_json({{"schema", 1},
                    {"operation", options.operation},
                    {"problem", problem_text(options)},
                    {"cpu", {{"kernels", json_of(cpu)}, {"chosen", text_or_null(cpu_chosen)}}},
                    {"cuda",
                     {{"unavailable_reason", text_or_null(gpu.unavailable_reason)},
                      {"device", gpu.device.name},
                      {"compute_capability", capability},
                      {"kernels", json_of(gpu.kernels)},
                      {"chosen", text_or_null(gpu_chosen)}}}});
        return 0;
    }
    fmt::print("{}\n", problem_text(options));
    fmt::print("CPU\n");
    print_table(cpu, cpu_chosen);
    if (!gpu.unavailable_reason.empty()) {
        fmt::print("GPU: {}\n", gpu.unavailable_reason);
        return 0;
    }
    fmt::print("GPU: {} (compute capability {}), {}\n", gpu.device.name, capability, gpu.device_reason);
    print_table(gpu.kernels, gpu_chosen);
    return 0;
}

}  // namespace

Command add_explain(CLI::App& program) {
    auto options = std::make_shared<Options>();
    CLI::App* command =
        add_command(program, "explain", "Show which kernel an operation runs, and why not the others",
                    "  halfbyte explain quantize --rows 8 --k 4096\n"
                    "  halfbyte explain quantize --rows 100 --k 4096 --layout tiled_128x4 --dynamic "
                    "--device sm_90\n"
                    "  halfbyte explain transform_quantize --k 4096 --transform matrix --transform-n 64 "
                    "--arithmetic tensor_core\n"
                    "  halfbyte explain silu_mul_quantize --k 11008 --unaligned --format json\n"
                    "  halfbyte explain matmul_w4a4 --rows 8 --n 8192 --k 8192 --quantize --device sm_90",
                    options->common);
    const auto size = CLI::Range(int64_t(0), int64_t(1) << 59);
    command->add_option("operation", options->operation, "The operation")
        ->required()
        ->check(CLI::IsMember({"quantize", "silu_mul_quantize", "rms_norm_quantize", "transform_quantize",
                               "transform", "fake_quantize", "dequantize", "convert_scales", "amax",
                               "mxfp4_quantize", "mxfp4_dequantize", "pack_weight", "unpack_weight",
                               "matmul_w4a4", "matmul_w4a16"}));
    command->add_option("--rows", options->rows, "Rows of the matrix, [M, K]")
        ->check(size)
        ->capture_default_str();
    command->add_option("--k", options->k, "Elements of a row")->check(size)->capture_default_str();
    command->add_option("--n", options->n, "Rows of a product's weight, [N, K]; 4096 by default")
        ->check(size);
    command->add_option("--type", options->type, "Type of x; of y when it dequantises; of a product's result")
        ->check(CLI::IsMember({"bf16", "f16", "f32"}))
        ->capture_default_str();
    command
        ->add_option("--layout", options->layout,
                     "Layout of the block scales; convert_scales makes it linear")
        ->check(CLI::IsMember({"linear", "tiled_128x4", "tiled_8x4"}))
        ->capture_default_str();
    command->add_option("--padded-rows", options->padded_rows, "Rows of the codes with padding; M by default")
        ->check(size);
    command
        ->add_option("--padded-k", options->padded_k,
                     "Codes of a row with padding; K rounded up to a block by default")
        ->check(size);
    command->add_option("--transform", options->transform, "Kind of transform; hadamard by default")
        ->check(CLI::IsMember({"hadamard", "matrix"}));
    command->add_option("--transform-n", options->transform_n, "Its size; 32 by default")
        ->check(CLI::IsMember({"16", "32", "64", "128"}));
    command
        ->add_option("--arithmetic", options->arithmetic,
                     "Its arithmetic, or a product's; contract by default, tensor_core of matmul_w4a16")
        ->check(CLI::IsMember({"contract", "tensor_core", "library"}));
    command->add_flag("--quantize", options->quantize_on_the_way,
                      "matmul_w4a4 quantises x on the way; without it the activations are NVFP4");
    command->add_flag("--dynamic", options->dynamic, "The global scale is found from the values");
    command->add_flag("--scale-per-row", options->scale_per_row, "A global scale, or an amax, for each row");
    command->add_flag("--unaligned", options->unaligned,
                      "Memory is aligned to its elements only, not to 16 bytes");
    command->add_option(
        "--device", options->device,
        "A device's number or an architecture, such as sm_90, which needs no GPU; the first device by "
        "default, sm_90 where there is none");
    return {command, [options] { return run(*options); }};
}

}  // namespace halfbyte::cli
