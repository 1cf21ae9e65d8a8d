// NVFP4 and FP8 layers simulated on expanded weights: the check of the kernels, so it includes nothing of
// them.
//
// Each code times its block scale is exact in FP32. The weights are expanded so once, outputs side by side:
// expanded_[tile][k][lane], 16 outputs a tile. With activations x = code * SF (W4A4) every product and every
// sum of the 16 products of a block is exact too, in any order; block sums are then added in chains of 64 and
// the chains in order. W4A16 and W8A16 add products of unquantised x by sum32. alpha and bias come at the
// end, as in the kernels' contract.
#include <algorithm>
#include <cmath>
#include <span>

#include "backend/context_state.h"
#include "core/highway_targets.h"
#include "format/nvfp4_block.h"
#include "model/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/simulated_linear.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace halfbyte::model::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// a * b + c, rounded once.
template <class D, class V>
HWY_INLINE V fma(D d, V a, V b, V c) {
#if HWY_NATIVE_FMA
    (void)d;
    return hn::MulAdd(a, b, c);
#else
    HWY_ALIGN float x[hn::MaxLanes(d)], y[hn::MaxLanes(d)], z[hn::MaxLanes(d)];
    hn::Store(a, d, x);
    hn::Store(b, d, y);
    hn::Store(c, d, z);
    for (size_t i = 0; i < hn::Lanes(d); i++) z[i] = std::fma(x[i], y[i], z[i]);
    return hn::Load(d, z);
#endif
}

// accumulators[row][lane] for up to 4 rows of x and one tile of 16 outputs: the W4A4 sum over K.
// x: rows of `stride` FP32, k_padded a multiple of 16; w: [k_padded, 16].
template <int kRows>
HWY_NOINLINE void sum_blocks(const float* x, size_t stride, size_t k_padded, const float* w,
                             float* accumulators) {
    const hn::CappedTag<float, 16> d;
    using V = hn::Vec<decltype(d)>;
    const size_t lanes = hn::Lanes(d);
    for (size_t lane = 0; lane < 16; lane += lanes) {
        V total[kRows], chain[kRows];
        for (int r = 0; r < kRows; r++) total[r] = chain[r] = hn::Zero(d);
        for (size_t k = 0; k < k_padded; k += 16) {
            V block[kRows];
            const V first = hn::LoadU(d, w + k * 16 + lane);
            for (int r = 0; r < kRows; r++) block[r] = hn::Mul(hn::Set(d, x[r * stride + k]), first);
            for (size_t i = 1; i < 16; i++) {
                const V weight = hn::LoadU(d, w + (k + i) * 16 + lane);
                for (int r = 0; r < kRows; r++)  // exact, so it does not matter whether this fuses
                    block[r] = hn::MulAdd(hn::Set(d, x[r * stride + k + i]), weight, block[r]);
            }
            for (int r = 0; r < kRows; r++) chain[r] = hn::Add(chain[r], block[r]);
            if ((k + 16) % 1024 == 0 || k + 16 == k_padded) {
                for (int r = 0; r < kRows; r++) {
                    total[r] = hn::Add(total[r], chain[r]);
                    chain[r] = hn::Zero(d);
                }
            }
        }
        for (int r = 0; r < kRows; r++) hn::StoreU(total[r], d, accumulators + r * 16 + lane);
    }
}

// The same for W4A16 and one row: sum32 over the first k elements.
HWY_NOINLINE void sum_interleaved(const float* x, size_t k_count, const float* w, float* accumulators) {
    const hn::CappedTag<float, 16> d;
    using V = hn::Vec<decltype(d)>;
    const size_t lanes = hn::Lanes(d);
    constexpr size_t kGroup = 8;  // sum32 lanes kept in registers at a time
    HWY_ALIGN float sums[32 * 16];
    for (size_t lane = 0; lane < 16; lane += lanes) {
        for (size_t group = 0; group < 32; group += kGroup) {
            V sum[kGroup];
            for (size_t i = 0; i < kGroup; i++) sum[i] = hn::Zero(d);
            size_t k = group;
            for (; k + kGroup <= k_count; k += 32)
                for (size_t i = 0; i < kGroup; i++)
                    sum[i] = fma(d, hn::Set(d, x[k + i]), hn::LoadU(d, w + (k + i) * 16 + lane), sum[i]);
            for (size_t i = 0; i < kGroup && k + i < k_count; i++)
                sum[i] = fma(d, hn::Set(d, x[k + i]), hn::LoadU(d, w + (k + i) * 16 + lane), sum[i]);
            for (size_t i = 0; i < kGroup; i++) hn::Store(sum[i], d, sums + (group + i) * 16 + lane);
        }
    }
    for (size_t distance = 16; distance > 0; distance /= 2)
        for (size_t i = 0; i < distance * 16; i++) sums[i] += sums[i + distance * 16];
    std::copy(sums, sums + 16, accumulators);
}

void sum_w4a4(int64_t rows, const float* x, int64_t k_padded, const float* w, float* accumulators) {
    int64_t row = 0;
    for (; row + 8 <= rows; row += 8)
        sum_blocks<8>(x + row * k_padded, size_t(k_padded), size_t(k_padded), w, accumulators + row * 16);
    for (; row < rows; row++)
        sum_blocks<1>(x + row * k_padded, size_t(k_padded), size_t(k_padded), w, accumulators + row * 16);
}

void sum_w4a16(int64_t rows, const float* x, int64_t k, const float* w, float* accumulators) {
    for (int64_t row = 0; row < rows; row++)
        sum_interleaved(x + row * k, size_t(k), w, accumulators + row * 16);
}

}  // namespace halfbyte::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::model {
namespace {

// x [rows, k], w [k, 16] -> accumulators [rows, 16]
using Sum = void (*)(int64_t rows, const float* x, int64_t k, const float* w, float* accumulators);

struct Level {
    Sum w4a4, w4a16;
};

Level level_of([[maybe_unused]] CpuLevel level) {
#if HWY_ARCH_X86
    if (level == CpuLevel::avx512) return {N_AVX3::sum_w4a4, N_AVX3::sum_w4a16};
    if (level == CpuLevel::avx2) return {N_AVX2::sum_w4a4, N_AVX2::sum_w4a16};
#elif HWY_ARCH_ARM_A64
    if (level != CpuLevel::scalar) return {N_NEON::sum_w4a4, N_NEON::sum_w4a16};
#endif
    return {N_EMU128::sum_w4a4, N_EMU128::sum_w4a16};
}

class SimulatedLinear : public Linear {
  public:
    SimulatedLinear(const checkpoint::NvFp4Linear& weight, std::optional<EncodeScale> input_scale,
                    std::vector<float> bias)
        : n_(weight.n),
          k_(weight.k),
          k_padded_((weight.k + 15) / 16 * 16),
          decode_(size_t(n_), weight.weight_scale.decode()),
          input_scale_(input_scale),
          bias_(std::move(bias)),
          expanded_(size_t((n_ + 15) / 16 * 16 * k_padded_)) {
        for (int64_t n = 0; n < n_; n++) {
            float* column = expanded_.data() + n / 16 * 16 * k_padded_ + n % 16;
            for (int64_t k = 0; k < k_; k++) {
                const uint8_t pair = weight.codes[n * (k_padded_ / 2) + k / 2];
                const float SF = decode_e4m3(weight.block_scales[n * (k_padded_ / 16) + k / 16]);
                column[k * 16] = decode_e2m1(uint8_t(pair >> (k % 2 * 4))) * SF;
            }
        }
    }

    SimulatedLinear(const checkpoint::Fp8Linear& weight, std::vector<float> bias)
        : n_(weight.n),
          k_(weight.k),
          k_padded_(weight.k),
          decode_(weight.scale),
          bias_(std::move(bias)),
          expanded_(size_t((n_ + 15) / 16 * 16 * k_)) {
        for (int64_t n = 0; n < n_; n++)
            for (int64_t k = 0; k < k_; k++)
                expanded_[size_t((n / 16 * k_ + k) * 16 + n % 16)] = decode_e4m3(weight.weight[n * k_ + k]);
    }

    void apply(const Context& context, LinearInput& input, float* y, int64_t y_stride) const override {
        const Level level = level_of(context.level());
        const Sum sum = input_scale_ ? level.w4a4 : level.w4a16;
        const float* x = input_scale_ ? expanded(context, input) : input.x;
        const int64_t k = input_scale_ ? k_padded_ : k_;
        const float row_decode = input_scale_ ? input_scale_->decode() : 1.0f;
        constexpr int64_t rows_at_once = 64;  // x stays in the second-level cache while the tiles pass
        pool_of(context).parallel_for((n_ + 15) / 16, 1, [&](int64_t begin, int64_t end) {
            float accumulators[rows_at_once * 16];
            for (int64_t tile = begin; tile < end; tile++) {
                for (int64_t first = 0; first < input.rows; first += rows_at_once) {
                    const int64_t rows = std::min(rows_at_once, input.rows - first);
                    sum(rows, x + first * k, k, expanded_.data() + tile * 16 * k_padded_, accumulators);
                    for (int64_t row = 0; row < rows; row++) {
                        for (int64_t n = tile * 16; n < std::min(tile * 16 + 16, n_); n++) {
                            float value = accumulators[row * 16 + n % 16] * (row_decode * decode_[size_t(n)]);
                            if (!bias_.empty()) value += bias_[size_t(n)];
                            y[(first + row) * y_stride + n] = value;
                        }
                    }
                }
            }
        });
    }

  private:
    // The input as code * SF, by the rule of one block.
    const float* expanded(const Context& context, LinearInput& input) const {
        const float G = input_scale_->encode();
        for (const LinearInput::Expanded& form : input.expanded)
            if (form.encode_scale == G) return form.values;
        LinearInput::Expanded& form = input.expanded.emplace_back();
        form.encode_scale = G;
        form.values = input.workspace->take<float>(input.rows * k_padded_);
        pool_of(context).parallel_for(input.rows, 4, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; row++) {
                for (int64_t k = 0; k < k_padded_; k += 16) {
                    float values[16] = {};
                    std::copy_n(input.x + row * k_ + k, std::min<int64_t>(16, k_ - k), values);
                    uint8_t codes[16];
                    const float SF = decode_e4m3(quantize_nvfp4_block(values, G, Rounding::contract, codes));
                    for (int i = 0; i < 16; i++)  // elements beyond k are absent
                        form.values[row * k_padded_ + k + i] = k + i < k_ ? decode_e2m1(codes[i]) * SF : 0.0f;
                }
            }
        });
        return form.values;
    }

    int64_t n_, k_, k_padded_;
    std::vector<float> decode_;  // [n]
    std::optional<EncodeScale> input_scale_;
    std::vector<float> bias_;
    std::vector<float> expanded_;
};

}  // namespace

std::unique_ptr<Linear> make_simulated_linear(const checkpoint::NvFp4Linear& weight,
                                              std::optional<EncodeScale> input_scale,
                                              std::vector<float> bias) {
    return std::make_unique<SimulatedLinear>(weight, input_scale, std::move(bias));
}

std::unique_ptr<Linear> make_simulated_linear(const checkpoint::Fp8Linear& weight, std::vector<float> bias) {
    return std::make_unique<SimulatedLinear>(weight, std::move(bias));
}

}  // namespace halfbyte::model
#endif  // HWY_ONCE
