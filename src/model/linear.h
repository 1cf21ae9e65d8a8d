// y = x W^T + b for one linear layer, in the arithmetic that its weights are run in; with transforms y =
// output(input(x) W^T + b).
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "halfbyte/context.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace halfbyte::model {

// How quantised layers are run; dense layers are always run as sum32 products.
enum class Arithmetic {
    kernel,     // by the file's scheme, through the kernels
    simulated,  // by the file's scheme, on expanded FP32 weights: the check of the kernels
    w4a16,      // activations left unquantised, also where the file has input scales
    // As kernel, but where takes_unit_scale G = 6 in the place of the file's: SF = E4M3(amax), a value code *
    // SF / 6. Source: vLLM runs such layers of compressed-tensors files by QuTLASS on Blackwell, and gives it
    // this constant.
    unit_scale
};

// A W4A4 layer with transforms at its input, all of 16, 32, 64 or 128.
bool takes_unit_scale(const checkpoint::Checkpoint& source, const std::string& module);

// Sees the input of each linear layer: module name, [rows, k].
using InputObserver = std::function<void(const std::string& module, const float* x, int64_t rows, int64_t k)>;

using TransformList = std::vector<std::shared_ptr<const checkpoint::NamedTransform>>;

// Each transform of the list in order, x [rows, K] FP32 in place and never rounded to another type.
// by_definition: by src/reference, else by the context's kernels.
void apply_transforms(const Context& context, const TransformList& list, const Matrix& x, bool by_definition);

// Activations [rows, k] with their quantised and transformed forms, kept for the layers that share the input
// (q/k/v, gate/up). A transformed form has quantised forms of its own. All lies in the workspace.
struct LinearInput {
    struct Quantized {  // for the kernels
        float encode_scale;
        uint8_t *codes, *block_scales;  // linear
    };
    struct Expanded {  // for the simulation: code * SF in FP32, [rows, padded_k]
        float encode_scale;
        float* values;
    };
    struct Transformed;

    LinearInput(Workspace& memory, const float* values, int64_t row_count, int64_t width)
        : workspace(&memory), x(values), rows(row_count), k(width) {}

    NvFp4Shape shape() const { return NvFp4Shape::of(rows, k); }
    // The form of this scale, or null.
    const Quantized* find_quantized(float encode_scale) const;
    // A new one, for the caller to fill: what a quantiser of x needs.
    QuantizeArgs add_quantized(float encode_scale);

    Workspace* workspace;
    const float* x;  // null where a producer has quantised it: the layers then read nothing but that form
    int64_t rows, k;
    std::list<Quantized> quantized;
    std::list<Expanded> expanded;
    std::list<Transformed> transformed;
};
struct LinearInput::Transformed {
    std::vector<const checkpoint::NamedTransform*> by;
    LinearInput input;
};

class Linear {
  public:
    virtual ~Linear() = default;
    // y: [input.rows, n], rows y_stride elements apart.
    virtual void apply(const Context& context, LinearInput& input, float* y, int64_t y_stride) const = 0;
    // What the product reads and a quantiser sees: the input behind the input transforms.
    virtual LinearInput& transformed(const Context&, LinearInput& input) const { return input; }
    // G, if the layer reads nothing of its input but the form quantised with it: a producer may then give
    // that form alone.
    virtual std::optional<float> encode_scale() const { return {}; }
};

// The layers `modules` of a checkpoint that read one input, with their biases and transforms, as few
// products: neighbours with NVFP4 weights, one input scale and the same input transforms are one. No bit
// depends on it.
class LinearGroup {
  public:
    // memory: where packed weights lie.
    LinearGroup(const Context& context, const checkpoint::Checkpoint& source,
                const std::vector<std::string>& modules, Arithmetic arithmetic,
                std::pmr::memory_resource* memory = std::pmr::get_default_resource());
    // A tied lm_head, whose weight is the embedding's.
    LinearGroup(const checkpoint::Checkpoint& source, const std::string& module,
                std::shared_ptr<const DenseWeight> weight, Arithmetic arithmetic);

    // y: [input.rows, n of all layers side by side], rows y_stride elements apart.
    void apply(const Context& context, LinearInput& input, float* y, int64_t y_stride) const;
    // That of Linear, if it holds for every product.
    std::optional<float> encode_scale() const { return encode_scale_; }
    // Shows the observer, by module, what each layer reads.
    void show_input(const Context& context, LinearInput& input, const InputObserver& observer) const;

  private:
    struct Product {
        std::vector<std::string> modules;
        int64_t first_column;
        std::unique_ptr<Linear> linear;
    };
    std::vector<Product> products_;
    std::optional<float> encode_scale_;
};

// A simulated layer (simulated_linear.cpp); input_scale absent: W4A16.
std::unique_ptr<Linear> make_simulated_linear(const checkpoint::NvFp4Linear& weight,
                                              std::optional<EncodeScale> input_scale,
                                              std::vector<float> bias);
std::unique_ptr<Linear> make_simulated_linear(const checkpoint::Fp8Linear& weight, std::vector<float> bias);

}  // namespace halfbyte::model
