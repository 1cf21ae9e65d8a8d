#include "model/linear.h"

#include "model/weights.h"

namespace halfbyte::model {
namespace {

class DenseLinear : public Linear {
  public:
    DenseLinear(DenseWeight weight, std::vector<float> bias)
        : weight_(std::move(weight)), bias_(std::move(bias)) {}

    void apply(const Context& context, LinearInput& input, float* y, int64_t y_stride) const override {
        const ConstMatrix w = weight_.matrix();
        matmul_dense(context, {.x = {input.x, DType::f32, input.rows, input.k, input.k},
                               .w = w,
                               .bias = bias_.empty() ? nullptr : bias_.data(),
                               .d = {y, DType::f32, input.rows, w.rows, y_stride}});
    }

  private:
    DenseWeight weight_;
    std::vector<float> bias_;
};

// Both NVFP4 products through the kernels: W4A4 with an input scale, W4A16 without.
class KernelLinear : public Linear {
  public:
    KernelLinear(PackedWeight weight, float decode, std::optional<EncodeScale> input_scale,
                 std::vector<float> bias)
        : weight_(std::move(weight)),
          column_decode_(size_t(weight_.n), decode),
          input_scale_(input_scale),
          bias_(std::move(bias)) {}

    void apply(const Context& context, LinearInput& input, float* y, int64_t y_stride) const override {
        const Matrix d = {y, DType::f32, input.rows, weight_.n, y_stride};
        const float* bias = bias_.empty() ? nullptr : bias_.data();
        if (!input_scale_) {
            matmul_w4a16(context, {.x = {input.x, DType::f32, input.rows, input.k, input.k},
                                   .w = &weight_,
                                   .column_decode = column_decode_.data(),
                                   .bias = bias,
                                   .d = d});
            return;
        }
        const float row_decode = input_scale_->decode();
        matmul_w4a4(context, {.a = quantized(context, input),
                              .w = &weight_,
                              .row_decode = &row_decode,
                              .column_decode = column_decode_.data(),
                              .bias = bias,
                              .d = d});
    }

  private:
    NvFp4View quantized(const Context& context, LinearInput& input) const {
        const float encode_scale = input_scale_->encode();
        const NvFp4Shape shape = NvFp4Shape::of(input.rows, input.k);
        for (const LinearInput::Quantized& form : input.quantized)
            if (form.encode_scale == encode_scale)
                return {form.codes.data(), form.block_scales.data(), shape};
        LinearInput::Quantized& form = input.quantized.emplace_back();
        form.encode_scale = encode_scale;
        form.codes.resize(size_t(shape.code_bytes()));
        form.block_scales.resize(size_t(shape.scale_bytes()));
        quantize(context, {.x = {input.x, DType::f32, input.rows, input.k, input.k},
                           .encode_scale = &encode_scale,
                           .shape = shape,
                           .codes = form.codes.data(),
                           .block_scales = form.block_scales.data()});
        return {form.codes.data(), form.block_scales.data(), shape};
    }

    PackedWeight weight_;
    std::vector<float> column_decode_;  // Dw of each output
    std::optional<EncodeScale> input_scale_;
    std::vector<float> bias_;
};

std::vector<float> load_bias(const checkpoint::Checkpoint& source, const std::string& module) {
    const std::string name = module + ".bias";
    if (!source.dense().contains(name)) return {};
    const DenseWeight bias(source, name);
    std::vector<float> values(size_t(bias.matrix().cols));
    bias.row_to_float(0, values.data());
    return values;
}

}  // namespace

std::unique_ptr<Linear> load_linear(const Context& context, const checkpoint::Checkpoint& source,
                                    const std::string& module, Arithmetic arithmetic) {
    std::vector<float> bias = load_bias(source, module);
    const auto found = source.nvfp4().find(module);
    if (found == source.nvfp4().end())
        return std::make_unique<DenseLinear>(DenseWeight(source, module + ".weight"), std::move(bias));
    const checkpoint::NvFp4Linear& weight = found->second;
    const std::optional<EncodeScale> input_scale =
        arithmetic == Arithmetic::w4a16 ? std::nullopt : weight.input_scale;
    std::unique_ptr<Linear> linear;
    if (arithmetic == Arithmetic::simulated)
        linear = make_simulated_linear(weight, input_scale, std::move(bias));
    else
        linear = std::make_unique<KernelLinear>(
            pack_weight(context, {weight.codes, weight.block_scales, NvFp4Shape::of(weight.n, weight.k)}),
            weight.weight_scale.decode(), input_scale, std::move(bias));
    source.release(module);  // both have copies of their own
    return linear;
}

}  // namespace halfbyte::model
