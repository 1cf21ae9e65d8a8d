// A tensor of more than 2^31 elements: 32-bit offsets would wrap. The reference would take minutes for all of
// it, so it checks sampled rows, each as a problem of one row; amax is checked over everything.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/element.h"
#include "cuda/device_code.h"
#include "cuda/parallel.h"
#include "cuda/special.h"
#include "cuda/workspace.h"
#include "reference/reference.h"

namespace halfbyte::conformance {
namespace {

constexpr int64_t rows = 65552, k = 32784, blocks = k / 16, guard = 256;  // k = 16 * 2049
static_assert(rows * k > int64_t(1) << 31);
constexpr float G = 500.0f, D = 1.0f / G;
constexpr const char* group = "beyond 2^31 elements";
constexpr uint64_t x_seed = 1, up_seed = 2;

std::vector<uint16_t> row_of(int64_t row, uint64_t seed) {
    std::vector<uint16_t> values(k);
    for (int64_t i = 0; i < k; i++) values[size_t(i)] = hashed_bf16(row * k + i, seed);
    return values;
}

ConstMatrix matrix_of(const void* data, int64_t count) {
    return {data, DType::bf16, count, k, k};
}

float* to_device(const DeviceMemory& memory, float value) {
    check_cuda(cudaMemcpy(memory.data(), &value, 4, cudaMemcpyHostToDevice), "cudaMemcpy of a scale");
    return reinterpret_cast<float*>(memory.data());
}

// The first rows, the last and 4,000 between them.
std::vector<int64_t> sampled_rows(uint64_t seed) {
    test::Random random(seed);
    std::vector<int64_t> sample;
    for (int64_t i = 0; i < 8; i++) sample.push_back(i), sample.push_back(rows - 1 - i);
    for (int i = 0; i < 4000; i++) sample.push_back(random.below(rows));
    return sample;
}

class Large {
  public:
    Large(Report& report, uint64_t seed, unsigned threads, const cuda::DeviceInfo& info)
        : report_(report), threads_(threads), info_(info), sample_(sampled_rows(seed)) {
        check_cuda(fill_hashed(reinterpret_cast<uint16_t*>(x_.data()), rows * k, x_seed), "fill_hashed");
        check_cuda(fill_hashed(reinterpret_cast<uint16_t*>(up_.data()), rows * k, up_seed), "fill_hashed");
        poison();
        check_cuda(cudaMemset(workspace_.data(), 0, size_t(workspace_.bytes())), "cudaMemset");
    }

    ConstMatrix x() const { return matrix_of(x_.data(), rows); }
    ConstMatrix up() const { return matrix_of(up_.data(), rows); }
    float* scale(float value) const { return to_device(scale_, value); }
    const DeviceMemory& weight() const { return weight_; }
    QuantizeArgs result(ScaleLayout layout, DType type) const {
        return {.x = {nullptr, type, rows, k, k},
                .encode_scale = scale(G),
                .shape = NvFp4Shape::of(rows, k, layout),
                .codes = codes_.data(),
                .block_scales = scales_.data()};
    }

    // by_row quantises one row of the host into the result it is given.
    template <typename Args, typename ByRow>
    void quantised(std::string_view operation, cuda::KernelList<Args> kernels, const Args& args,
                   const QuantizeArgs& result, const ByRow& by_row) {
        each_kernel(operation, kernels, args, [&] {
            const NvFp4Shape& shape = result.shape;
            if (!untouched(codes_, shape.code_bytes()) || !untouched(scales_, shape.scale_bytes()))
                return std::string("bytes behind the codes or block scales were written");
            const std::vector<uint8_t> scales = copy(scales_, shape.scale_bytes());
            for (int64_t i = scale_offset(shape.layout, rows - rows % 128, 0, blocks);
                 i < shape.scale_bytes(); i++) {
                const ScalePosition place = scale_position(shape.layout, i, blocks);
                if ((place.row >= rows || place.block >= blocks) && scales[size_t(i)] != 0)
                    return fmt::format("padding of block_scales, byte {}: expected 0, given 0x{:02X}", i,
                                       scales[size_t(i)]);
            }
            return each_row([&](int64_t row) {
                std::vector<uint8_t> codes(k / 2), row_scales(blocks), given(k / 2);
                by_row(row, QuantizeArgs{.x = {nullptr, result.x.type, 1, k, k},
                                         .encode_scale = &G,
                                         .shape = NvFp4Shape::of(1, k),
                                         .codes = codes.data(),
                                         .block_scales = row_scales.data()});
                check_cuda(
                    cudaMemcpy(given.data(), codes_.data() + row * (k / 2), k / 2, cudaMemcpyDeviceToHost),
                    "cudaMemcpy of codes");
                for (int64_t i = 0; i < k / 2; i++)
                    if (given[size_t(i)] != codes[size_t(i)])
                        return fmt::format("codes of row {}, k {}: expected 0x{:02X}, given 0x{:02X}", row,
                                           i * 2, codes[size_t(i)], given[size_t(i)]);
                for (int64_t block = 0; block < blocks; block++) {
                    const uint8_t byte = scales[size_t(scale_offset(shape.layout, row, block, blocks))];
                    if (byte != row_scales[size_t(block)])
                        return fmt::format("block scale of row {}, k {}: expected 0x{:02X}, given 0x{:02X}",
                                           row, block * 16, row_scales[size_t(block)], byte);
                }
                return std::string();
            });
        });
    }

    // Of the codes and scales that lie on the device; y overwrites `up`.
    void dequantised(cuda::KernelList<DequantizeArgs> kernels, ScaleLayout layout) {
        const NvFp4Shape shape = NvFp4Shape::of(rows, k, layout);
        const Matrix y = {up_.data(), DType::bf16, rows, k, k};
        const DequantizeArgs args = {
            .a = {codes_.data(), scales_.data(), shape}, .decode_scale = scale(D), .y = y};
        each_kernel("dequantize", kernels, args, [&] {
            const std::vector<uint8_t> scales = copy(scales_, shape.scale_bytes());
            return each_row([&](int64_t row) {
                std::vector<uint8_t> codes(k / 2), row_scales(blocks);
                std::vector<uint16_t> expected(k), given(k);
                check_cuda(
                    cudaMemcpy(codes.data(), codes_.data() + row * (k / 2), k / 2, cudaMemcpyDeviceToHost),
                    "cudaMemcpy of codes");
                for (int64_t block = 0; block < blocks; block++)
                    row_scales[size_t(block)] = scales[size_t(scale_offset(layout, row, block, blocks))];
                reference::dequantize({.a = {codes.data(), row_scales.data(), NvFp4Shape::of(1, k)},
                                       .decode_scale = &D,
                                       .y = {expected.data(), DType::bf16, 1, k, k}});
                check_cuda(cudaMemcpy(given.data(), up_.data() + row * k * 2, k * 2, cudaMemcpyDeviceToHost),
                           "cudaMemcpy of y");
                for (int64_t i = 0; i < k; i++)
                    if (given[size_t(i)] != expected[size_t(i)])
                        return fmt::format("y of row {}, k {}: expected 0x{:04X}, given 0x{:04X}", row, i,
                                           expected[size_t(i)], given[size_t(i)]);
                return std::string();
            });
        });
    }

    void amax(cuda::KernelList<AmaxArgs> kernels) {
        std::vector<float> expected(rows);
        in_parallel(rows, threads_, [&] {
            return [&](int64_t row) {
                for (const uint16_t bits : row_of(row, x_seed))
                    expected[size_t(row)] =
                        std::max(expected[size_t(row)], std::fabs(to_float(BFloat16{bits})));
            };
        });
        const float whole = *std::max_element(expected.begin(), expected.end());
        for (const bool per_row : {false, true}) {
            const AmaxArgs args = {
                .x = x(), .per_row = per_row, .amax = reinterpret_cast<float*>(amax_.data())};
            each_kernel("amax", kernels, args, [&] {
                const std::vector<uint8_t> bytes = copy(amax_, per_row ? rows * 4 : 4);
                std::vector<float> given(bytes.size() / 4);
                std::memcpy(given.data(), bytes.data(), bytes.size());
                for (size_t i = 0; i < given.size(); i++)
                    if (given[i] != (per_row ? expected[i] : whole))
                        return fmt::format("amax {}: expected {}, given {}", i, per_row ? expected[i] : whole,
                                           given[i]);
                return std::string();
            });
        }
    }

  private:
    template <typename Args, typename Check>
    void each_kernel(std::string_view operation, cuda::KernelList<Args> kernels, const Args& args,
                     const Check& check) {
        for (const cuda::Kernel<Args>& kernel : kernels) {
            if (!report_.wants(operation, kernel.name, group)) continue;
            const std::string reason = kernel.unsupported_reason(args, info_);
            if (!reason.empty()) {
                report_.skip(operation, kernel.name, group, reason);
                continue;
            }
            std::string difference;
            compared_ = 0;
            try {
                if (operation != "dequantize") poison();
                kernel.launch(args,
                              {.kernel = kernel.name,
                               .workspace = workspace_.data(),
                               .workspace_bytes = workspace_.bytes()},
                              info_);
                check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
                difference = check();
            } catch (const std::exception& error) {
                difference = error.what();
            }
            report_.add(operation, kernel.name, group, compared_, difference);
        }
    }

    template <typename Compare>
    std::string each_row(const Compare& compare) {
        std::mutex mutex;
        std::string first;
        in_parallel(int64_t(sample_.size()), threads_, [&] {
            return [&, environment = std::make_shared<FloatEnvironment>()](int64_t i) {
                const std::string difference = compare(sample_[size_t(i)]);
                const std::lock_guard lock(mutex);
                compared_ += k;
                if (first.empty()) first = difference;
            };
        });
        return first;
    }

    void poison() {
        check_cuda(cudaMemset(codes_.data(), 0xA5, size_t(codes_.bytes())), "cudaMemset");
        check_cuda(cudaMemset(scales_.data(), 0xA5, size_t(scales_.bytes())), "cudaMemset");
    }

    // The guard behind the first `bytes` still holds 0xA5.
    bool untouched(const DeviceMemory& memory, int64_t bytes) const {
        std::vector<uint8_t> found(guard);
        check_cuda(cudaMemcpy(found.data(), memory.data() + bytes, guard, cudaMemcpyDeviceToHost),
                   "cudaMemcpy");
        return std::all_of(found.begin(), found.end(), [](uint8_t byte) { return byte == 0xA5; });
    }

    std::vector<uint8_t> copy(const DeviceMemory& memory, int64_t bytes) const {
        std::vector<uint8_t> host(static_cast<size_t>(bytes));
        check_cuda(cudaMemcpy(host.data(), memory.data(), size_t(bytes), cudaMemcpyDeviceToHost),
                   "cudaMemcpy");
        return host;
    }

    Report& report_;
    unsigned threads_;
    cuda::DeviceInfo info_;
    std::vector<int64_t> sample_;
    int64_t compared_ = 0;
    DeviceMemory x_{rows * k * 2}, up_{rows * k * 2}, codes_{rows * (k / 2) + guard};
    DeviceMemory scales_{NvFp4Shape::of(rows, k, ScaleLayout::tiled_128x4).scale_bytes() + guard};
    DeviceMemory weight_{k * 2}, scale_{4}, amax_{rows * 4};
    DeviceMemory workspace_{cuda::dynamic_workspace_bytes(true, rows)};
};

}  // namespace

void check_large(const cuda::Kernels& kernels, Report& report, uint64_t seed, unsigned threads) {
    bool wanted = false;
    const auto look = [&](const char* operation, const auto& list) {
        for (const auto& kernel : list) wanted |= report.wants(operation, kernel.name, group);
    };
    look("quantize", kernels.quantize), look("silu_mul_quantize", kernels.silu_mul_quantize);
    look("rms_norm_quantize", kernels.rms_norm_quantize),
        look("transform_quantize", kernels.transform_quantize);
    look("dequantize", kernels.dequantize), look("amax", kernels.amax);
    if (!wanted) return;
    size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    const int64_t needed = rows * k * 5;  // x, up and codes, and half a byte for everything else
    if (int64_t(free) < needed) {
        report.skip("quantize", "", group,
                    fmt::format("{} bytes of device memory are free, {} needed", free, needed));
        return;
    }
    Large large(report, seed, threads, kernels.current_device());
    const std::vector<uint16_t> weight = row_of(0, 3);
    check_cuda(cudaMemcpy(large.weight().data(), weight.data(), size_t(k * 2), cudaMemcpyHostToDevice),
               "cudaMemcpy");

    large.amax(kernels.amax);
    const BlockTransform hadamard = {.n = 16, .scale = 0.25f};
    const QuantizeArgs tiled = large.result(ScaleLayout::tiled_128x4, DType::bf16);
    QuantizeArgs unrounded = tiled;
    unrounded.x.type = DType::f32;
    large.quantised<TransformQuantizeArgs>(
        "transform_quantize", kernels.transform_quantize,
        {.x = large.x(), .transform = hadamard, .quantize = unrounded}, unrounded,
        [&](int64_t row, const QuantizeArgs& result) {
            const std::vector<uint16_t> x = row_of(row, x_seed);
            reference::transform_quantize(
                {.x = matrix_of(x.data(), 1), .transform = hadamard, .quantize = result});
        });
    large.quantised<RmsNormQuantizeArgs>(
        "rms_norm_quantize", kernels.rms_norm_quantize,
        {.x = large.x(), .weight = matrix_of(large.weight().data(), 1), .epsilon = 1e-5f, .quantize = tiled},
        tiled, [&](int64_t row, const QuantizeArgs& result) {
            const std::vector<uint16_t> x = row_of(row, x_seed);
            reference::rms_norm_quantize({.x = matrix_of(x.data(), 1),
                                          .weight = matrix_of(weight.data(), 1),
                                          .epsilon = 1e-5f,
                                          .quantize = result});
        });
    large.quantised<SiluMulQuantizeArgs>(
        "silu_mul_quantize", kernels.silu_mul_quantize,
        {.gate = large.x(), .up = large.up(), .quantize = tiled}, tiled,
        [&](int64_t row, const QuantizeArgs& result) {
            const std::vector<uint16_t> gate = row_of(row, x_seed), up = row_of(row, up_seed);
            reference::silu_mul_quantize(
                {.gate = matrix_of(gate.data(), 1), .up = matrix_of(up.data(), 1), .quantize = result});
        });
    for (const ScaleLayout layout : {ScaleLayout::linear, ScaleLayout::tiled_128x4}) {
        QuantizeArgs args = large.result(layout, DType::bf16);
        args.x = large.x();
        large.quantised<QuantizeArgs>("quantize", kernels.quantize, args, args,
                                      [&](int64_t row, QuantizeArgs result) {
                                          const std::vector<uint16_t> x = row_of(row, x_seed);
                                          result.x = matrix_of(x.data(), 1);
                                          reference::quantize(result);
                                      });
        large.dequantised(kernels.dequantize, layout);
    }
}

}  // namespace halfbyte::conformance
