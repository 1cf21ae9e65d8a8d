#include "model/linear.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "backend/context_state.h"
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
    KernelLinear(PackedWeight weight, std::vector<float> column_decode,
                 std::optional<EncodeScale> input_scale, std::vector<float> bias)
        : weight_(std::move(weight)),
          column_decode_(std::move(column_decode)),
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

    std::optional<float> encode_scale() const override {
        if (!input_scale_) return {};
        return input_scale_->encode();
    }

  private:
    NvFp4View quantized(const Context& context, LinearInput& input) const {
        const float G = input_scale_->encode();
        if (input.find_quantized(G) == nullptr) quantize(context, input.add_quantized(G));
        const LinearInput::Quantized& form = *input.find_quantized(G);
        return {form.codes, form.block_scales, input.shape()};
    }

    PackedWeight weight_;
    std::vector<float> column_decode_;  // Dw of each output
    std::optional<EncodeScale> input_scale_;
    std::vector<float> bias_;
};

// FP8 weights, read in the mapped file.
class Fp8KernelLinear : public Linear {
  public:
    Fp8KernelLinear(const checkpoint::Fp8Linear& weight, std::vector<float> bias)
        : weight_(weight), bias_(std::move(bias)) {}

    void apply(const Context& context, LinearInput& input, float* y, int64_t y_stride) const override {
        matmul_w8a16(context, {.x = {input.x, DType::f32, input.rows, input.k, input.k},
                               .w = {weight_.weight, DType::f8_e4m3, weight_.n, weight_.k, weight_.k},
                               .column_decode = weight_.scale.data(),
                               .bias = bias_.empty() ? nullptr : bias_.data(),
                               .d = {y, DType::f32, input.rows, weight_.n, y_stride}});
    }

  private:
    checkpoint::Fp8Linear weight_;
    std::vector<float> bias_;
};

// Layers between their transforms: the same ones at the input of all, at the output those of each.
struct OutputTransforms {
    int64_t first_column, columns;
    TransformList list;
};
class TransformedLinear : public Linear {
  public:
    TransformedLinear(std::unique_ptr<Linear> inner, TransformList input,
                      std::vector<OutputTransforms> outputs, bool by_definition)
        : inner_(std::move(inner)),
          input_(std::move(input)),
          outputs_(std::move(outputs)),
          by_definition_(by_definition) {
        for (const auto& transform : input_) input_names_.push_back(transform.get());
    }

    void apply(const Context& context, LinearInput& input, float* y, int64_t y_stride) const override {
        inner_->apply(context, quantized_or_transformed(context, input), y, y_stride);
        for (const OutputTransforms& output : outputs_)
            apply_transforms(context, output.list,
                             {y + output.first_column, DType::f32, input.rows, output.columns, y_stride},
                             by_definition_);
    }

    LinearInput& transformed(const Context& context, LinearInput& input) const override {
        if (input_.empty()) return input;
        LinearInput& form = form_of(input);
        if (form.x != nullptr) return form;
        auto* const values = input.workspace->take<float>(input.rows * input.k);
        std::copy_n(input.x, input.rows * input.k, values);
        apply_transforms(context, input_, {values, DType::f32, input.rows, input.k, input.k}, by_definition_);
        form.x = values;
        return form;
    }

    std::optional<float> encode_scale() const override {
        if (input_.empty()) return inner_->encode_scale();
        return {};
    }

  private:
    // The form of this input behind the transforms; x is null until someone needs it.
    LinearInput& form_of(LinearInput& input) const {
        for (LinearInput::Transformed& form : input.transformed)
            if (form.by == input_names_) return form.input;
        return input.transformed
            .emplace_back(input_names_, LinearInput(*input.workspace, nullptr, input.rows, input.k))
            .input;
    }

    // What the inner layer reads: if that is the quantised form alone, one operation makes it.
    LinearInput& quantized_or_transformed(const Context& context, LinearInput& input) const {
        const std::optional<float> G = inner_->encode_scale();
        if (input_.size() != 1 || !G) return transformed(context, input);
        LinearInput& form = form_of(input);
        if (form.x == nullptr && form.find_quantized(*G) == nullptr)
            transform_quantize(context, {.x = {input.x, DType::f32, input.rows, input.k, input.k},
                                         .transform = input_[0]->transform.view(),
                                         .quantize = form.add_quantized(*G)});
        return form;
    }

    std::unique_ptr<Linear> inner_;
    TransformList input_;
    std::vector<OutputTransforms> outputs_;
    std::vector<const checkpoint::NamedTransform*> input_names_;
    bool by_definition_;
};

const checkpoint::LinearTransforms& transforms_of(const checkpoint::Checkpoint& source,
                                                  const std::string& module) {
    static const checkpoint::LinearTransforms none;
    const auto found = source.transforms().linear.find(module);
    return found == source.transforms().linear.end() ? none : found->second;
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
    const auto args = [&](const checkpoint::NamedTransform& named, int64_t first, int64_t rows) {
        float* const data = static_cast<float*>(x.data) + first * x.stride;
        return TransformArgs{.x = {data, DType::f32, rows, x.cols, x.stride},
                             .transform = named.transform.view(),
                             .y = {data, DType::f32, rows, x.cols, x.stride}};
    };
    for (const auto& named : list) {
        if (!by_definition) {
            transform(context, args(*named, 0, x.rows));
            continue;
        }
        pool_of(context).parallel_for(x.rows, 1, [&](int64_t begin, int64_t end) {
            const FloatEnvironment environment;
            reference::transform(args(*named, begin, end - begin));
        });
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

LinearInput::Quantized const* LinearInput::find_quantized(float encode_scale) const {
    for (const Quantized& form : quantized)
        if (form.encode_scale == encode_scale) return &form;
    return nullptr;
}

QuantizeArgs LinearInput::add_quantized(float encode_scale) {
    const NvFp4Shape form = shape();
    quantized.push_back({encode_scale, workspace->take<uint8_t>(form.code_bytes()),
                         workspace->take<uint8_t>(form.scale_bytes())});
    return {.x = {x, DType::f32, rows, k, k},
            .encode_scale = &quantized.back().encode_scale,
            .shape = form,
            .codes = quantized.back().codes,
            .block_scales = quantized.back().block_scales};
}

namespace {

int64_t outputs_of(const checkpoint::Checkpoint& source, const std::string& module) {
    if (const auto found = source.nvfp4().find(module); found != source.nvfp4().end()) return found->second.n;
    if (const auto found = source.fp8().find(module); found != source.fp8().end()) return found->second.n;
    return source.dense().at(module + ".weight").rows();
}

// What the layer quantises its input with.
std::optional<EncodeScale> input_scale_of(const checkpoint::Checkpoint& source, const std::string& module,
                                          Arithmetic arithmetic) {
    if (arithmetic == Arithmetic::w4a16) return {};
    if (arithmetic == Arithmetic::unit_scale && takes_unit_scale(source, module)) return EncodeScale(6.0f);
    return source.nvfp4().at(module).input_scale;
}

// Whether two layers that read one input can be one product of the kernels. The simulation has every layer by
// itself, and dense and FP8 weights stay where they are mapped.
bool fit_together(const checkpoint::Checkpoint& source, const std::string& a, const std::string& b,
                  Arithmetic arithmetic) {
    if (arithmetic == Arithmetic::simulated || !source.nvfp4().contains(a) || !source.nvfp4().contains(b))
        return false;
    const auto scale_a = input_scale_of(source, a, arithmetic),
               scale_b = input_scale_of(source, b, arithmetic);
    return scale_a.has_value() == scale_b.has_value() && (!scale_a || scale_a->word() == scale_b->word()) &&
           transforms_of(source, a).input == transforms_of(source, b).input;
}

std::unique_ptr<Linear> load_kernel_product(const Context& context, const checkpoint::Checkpoint& source,
                                            std::span<const std::string> modules, Arithmetic arithmetic,
                                            std::pmr::memory_resource* memory) {
    std::vector<NvFp4View> parts;
    std::vector<float> column_decode, biases;
    bool biased = false;
    for (const std::string& module : modules) {
        const checkpoint::NvFp4Linear& weight = source.nvfp4().at(module);
        parts.push_back({weight.codes, weight.block_scales, NvFp4Shape::of(weight.n, weight.k)});
        column_decode.resize(column_decode.size() + size_t(weight.n), weight.weight_scale.decode());
        std::vector<float> bias = load_bias(source, module);
        biased |= !bias.empty();
        // A layer without a bias beside one that has it: -0 changes no sum, not even the sign of a zero.
        bias.resize(size_t(weight.n), -0.0f);
        biases.insert(biases.end(), bias.begin(), bias.end());
    }
    if (!biased) biases.clear();
    auto linear =
        std::make_unique<KernelLinear>(pack_weight(context, parts, memory), std::move(column_decode),
                                       input_scale_of(source, modules[0], arithmetic), std::move(biases));
    for (const std::string& module : modules) source.release(module);  // packed, they are not read again
    return linear;
}

// columns: the outputs of each module.
std::unique_ptr<Linear> with_transforms(const checkpoint::Checkpoint& source,
                                        std::span<const std::string> modules,
                                        std::span<const int64_t> columns, std::unique_ptr<Linear> linear,
                                        Arithmetic arithmetic) {
    std::vector<OutputTransforms> outputs;
    int64_t first = 0;
    for (size_t i = 0; i < modules.size(); first += columns[i++])
        if (const TransformList& list = transforms_of(source, modules[i]).output; !list.empty())
            outputs.push_back({first, columns[i], list});
    const TransformList& input = transforms_of(source, modules[0]).input;
    if (input.empty() && outputs.empty()) return linear;
    return std::make_unique<TransformedLinear>(std::move(linear), input, std::move(outputs),
                                               arithmetic == Arithmetic::simulated);
}

// Modules that fit together, as one product.
std::unique_ptr<Linear> load_product(const Context& context, const checkpoint::Checkpoint& source,
                                     std::span<const std::string> modules, std::span<const int64_t> columns,
                                     Arithmetic arithmetic, std::pmr::memory_resource* memory) {
    std::unique_ptr<Linear> linear;
    const auto found = source.nvfp4().find(modules[0]);
    if (const auto fp8 = source.fp8().find(modules[0]); fp8 != source.fp8().end()) {
        std::vector<float> bias = load_bias(source, modules[0]);
        if (arithmetic == Arithmetic::simulated)
            linear = make_simulated_linear(fp8->second, std::move(bias));
        else
            linear = std::make_unique<Fp8KernelLinear>(fp8->second, std::move(bias));
    } else if (found == source.nvfp4().end()) {
        linear = std::make_unique<DenseLinear>(std::make_shared<DenseWeight>(source, modules[0] + ".weight"),
                                               load_bias(source, modules[0]));
    } else if (arithmetic == Arithmetic::simulated) {
        linear =
            make_simulated_linear(found->second, found->second.input_scale, load_bias(source, modules[0]));
        source.release(modules[0]);  // it has a copy of its own
    } else {
        linear = load_kernel_product(context, source, modules, arithmetic, memory);
    }
    return with_transforms(source, modules, columns, std::move(linear), arithmetic);
}

}  // namespace

LinearGroup::LinearGroup(const Context& context, const checkpoint::Checkpoint& source,
                         const std::vector<std::string>& modules, Arithmetic arithmetic,
                         std::pmr::memory_resource* memory) {
    int64_t first_column = 0;
    for (size_t first = 0, end; first < modules.size(); first = end) {
        end = first + 1;
        while (end < modules.size() && fit_together(source, modules[first], modules[end], arithmetic)) end++;
        const std::span part = std::span(modules).subspan(first, end - first);
        std::vector<int64_t> columns;
        for (const std::string& module : part) columns.push_back(outputs_of(source, module));
        products_.push_back({{part.begin(), part.end()},
                             first_column,
                             load_product(context, source, part, columns, arithmetic, memory)});
        first_column += std::accumulate(columns.begin(), columns.end(), int64_t(0));
    }
    encode_scale_ = products_[0].linear->encode_scale();
    for (const Product& product : products_)
        if (product.linear->encode_scale() != encode_scale_) encode_scale_.reset();
}

LinearGroup::LinearGroup(const checkpoint::Checkpoint& source, const std::string& module,
                         std::shared_ptr<const DenseWeight> weight, Arithmetic arithmetic) {
    const int64_t n = weight->matrix().rows;
    auto linear = std::make_unique<DenseLinear>(std::move(weight), load_bias(source, module));
    products_.push_back(
        {{module}, 0, with_transforms(source, {&module, 1}, {&n, 1}, std::move(linear), arithmetic)});
}

void LinearGroup::apply(const Context& context, LinearInput& input, float* y, int64_t y_stride) const {
    for (const Product& product : products_)
        product.linear->apply(context, input, y + product.first_column, y_stride);
}

void LinearGroup::show_input(const Context& context, LinearInput& input,
                             const InputObserver& observer) const {
    for (const Product& product : products_)
        for (const std::string& module : product.modules)
            observer(module, product.linear->transformed(context, input).x, input.rows, input.k);
}

}  // namespace halfbyte::model
