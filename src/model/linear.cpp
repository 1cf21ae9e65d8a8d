#include "model/linear.h"

#include <algorithm>

#include "core/float_environment.h"
#include "reference/reference.h"

namespace halfbyte::model {
namespace {

class DenseLinear : public Linear {
  public:
    DenseLinear(std::shared_ptr<const DenseWeight> weight, std::vector<float> bias)
        : weight_(std::move(weight)), bias_(std::move(bias)) {}

    void apply(const Context& context, LinearInput& input, float* y, int64_t y_stride) const override {
        const ConstMatrix w = weight_->matrix();
        matmul_dense(context, {.x = {input.x, DType::f32, input.rows, input.k, input.k},
                               .w = w,
                               .bias = bias_.empty() ? nullptr : bias_.data(),
                               .d = {y, DType::f32, input.rows, w.rows, y_stride}});
    }

  private:
    std::shared_ptr<const DenseWeight> weight_;
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

// A layer between its transforms.
class TransformedLinear : public Linear {
  public:
    TransformedLinear(std::unique_ptr<Linear> inner, int64_t n, checkpoint::LinearTransforms transforms,
                      bool by_definition)
        : inner_(std::move(inner)), n_(n), transforms_(std::move(transforms)), by_definition_(by_definition) {
        for (const auto& transform : transforms_.input) input_.push_back(transform.get());
    }

    void apply(const Context& context, LinearInput& input, float* y, int64_t y_stride) const override {
        inner_->apply(context, transformed(context, input), y, y_stride);
        apply_transforms(context, transforms_.output, {y, DType::f32, input.rows, n_, y_stride},
                         by_definition_);
    }

    LinearInput& transformed(const Context& context, LinearInput& input) const override {
        if (input_.empty()) return input;
        for (LinearInput::Transformed& form : input.transformed)
            if (form.by == input_) return form.input;
        LinearInput::Transformed& form = input.transformed.emplace_back();
        form.by = input_;
        form.values.assign(input.x, input.x + input.rows * input.k);
        apply_transforms(context, transforms_.input,
                         {form.values.data(), DType::f32, input.rows, input.k, input.k}, by_definition_);
        form.input.x = form.values.data();
        form.input.rows = input.rows;
        form.input.k = input.k;
        return form.input;
    }

  private:
    std::unique_ptr<Linear> inner_;
    int64_t n_;
    checkpoint::LinearTransforms transforms_;
    std::vector<const checkpoint::NamedTransform*> input_;
    bool by_definition_;
};

std::unique_ptr<Linear> with_transforms(const checkpoint::Checkpoint& source, const std::string& module,
                                        int64_t n, std::unique_ptr<Linear> linear, Arithmetic arithmetic) {
    const auto found = source.transforms().linear.find(module);
    if (found == source.transforms().linear.end()) return linear;
    return std::make_unique<TransformedLinear>(std::move(linear), n, found->second,
                                               arithmetic == Arithmetic::simulated);
}

std::vector<float> load_bias(const checkpoint::Checkpoint& source, const std::string& module) {
    const std::string name = module + ".bias";
    if (!source.dense().contains(name)) return {};
    const DenseWeight bias(source, name);
    std::vector<float> values(size_t(bias.matrix().cols));
    bias.row_to_float(0, values.data());
    return values;
}

}  // namespace

void apply_transforms(const Context& context, const TransformList& list, const Matrix& x,
                      bool by_definition) {
    const ConstMatrix given = {x.data, x.type, x.rows, x.cols, x.stride};
    for (const auto& named : list) {
        const TransformArgs args = {.x = given, .transform = named->transform.view(), .y = x};
        if (by_definition) {
            const FloatEnvironment environment;
            reference::transform(args);
        } else {
            transform(context, args);
        }
    }
}

bool takes_unit_scale(const checkpoint::Checkpoint& source, const std::string& module) {
    const auto layer = source.nvfp4().find(module);
    const auto found = source.transforms().linear.find(module);
    if (layer == source.nvfp4().end() || !layer->second.input_scale ||
        found == source.transforms().linear.end() || found->second.input.empty())
        return false;
    return std::all_of(found->second.input.begin(), found->second.input.end(), [](const auto& named) {
        const int64_t n = named->transform.n;
        return n == 16 || n == 32 || n == 64 || n == 128;
    });
}

std::unique_ptr<Linear> load_linear(const checkpoint::Checkpoint& source, const std::string& module,
                                    std::shared_ptr<const DenseWeight> weight, Arithmetic arithmetic) {
    const int64_t n = weight->matrix().rows;
    return with_transforms(source, module, n,
                           std::make_unique<DenseLinear>(std::move(weight), load_bias(source, module)),
                           arithmetic);
}

std::unique_ptr<Linear> load_linear(const Context& context, const checkpoint::Checkpoint& source,
                                    const std::string& module, Arithmetic arithmetic) {
    const auto found = source.nvfp4().find(module);
    if (found == source.nvfp4().end())
        return load_linear(source, module, std::make_shared<DenseWeight>(source, module + ".weight"),
                           arithmetic);
    std::vector<float> bias = load_bias(source, module);
    const checkpoint::NvFp4Linear& weight = found->second;
    std::optional<EncodeScale> input_scale = weight.input_scale;
    if (arithmetic == Arithmetic::w4a16) input_scale.reset();
    if (arithmetic == Arithmetic::unit_scale && takes_unit_scale(source, module))
        input_scale = EncodeScale(6.0f);
    std::unique_ptr<Linear> linear;
    if (arithmetic == Arithmetic::simulated)
        linear = make_simulated_linear(weight, input_scale, std::move(bias));
    else
        linear = std::make_unique<KernelLinear>(
            pack_weight(context, {weight.codes, weight.block_scales, NvFp4Shape::of(weight.n, weight.k)}),
            weight.weight_scale.decode(), input_scale, std::move(bias));
    source.release(module);  // both have copies of their own
    return with_transforms(source, module, weight.n, std::move(linear), arithmetic);
}

}  // namespace halfbyte::model
