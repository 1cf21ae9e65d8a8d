// y = x W^T + b for one linear layer, in the arithmetic that its weights are run in; with transforms y =
// output(input(x) W^T + b).
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "halfbyte/context.h"
#include "model/weights.h"

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

using TransformList = std::vector<std::shared_ptr<const checkpoint::NamedTransform>>;

// Each transform of the list in order, x [rows, K] FP32 in place and never rounded to another type.
// by_definition: by src/reference, else by the context's kernels.
void apply_transforms(const Context& context, const TransformList& list, const Matrix& x, bool by_definition);

// Activations [rows, k] with their quantised and transformed forms, kept for the layers that share the input
// (q/k/v, gate/up). A transformed form has quantised forms of its own.
struct LinearInput {
    struct Quantized {  // for the kernels
        float encode_scale;
        std::vector<uint8_t> codes, block_scales;
    };
    struct Expanded {  // for the simulation: code * SF in FP32, [rows, padded_k]
        float encode_scale;
        std::vector<float> values;
    };

    struct Transformed;

    const float* x = nullptr;
    int64_t rows = 0, k = 0;
    std::list<Quantized> quantized;
    std::list<Expanded> expanded;
    std::list<Transformed> transformed;
};
struct LinearInput::Transformed {
    std::vector<const checkpoint::NamedTransform*> by;
    std::vector<float> values;
    LinearInput input;  // of these values
};

class Linear {
  public:
    virtual ~Linear() = default;
    // y: [input.rows, n], rows y_stride elements apart.
    virtual void apply(const Context& context, LinearInput& input, float* y, int64_t y_stride) const = 0;
    // What the product reads and a quantiser sees: the input behind the input transforms.
    virtual LinearInput& transformed(const Context&, LinearInput& input) const { return input; }
};

// The layer `module` of a checkpoint, quantised or dense, with its bias and transforms if it has them.
std::unique_ptr<Linear> load_linear(const Context& context, const checkpoint::Checkpoint& source,
                                    const std::string& module, Arithmetic arithmetic);

// The same of a tied lm_head, whose weight is the embedding's.
std::unique_ptr<Linear> load_linear(const checkpoint::Checkpoint& source, const std::string& module,
                                    std::shared_ptr<const DenseWeight> weight, Arithmetic arithmetic);

// A simulated layer (simulated_linear.cpp); input_scale absent: W4A16.
std::unique_ptr<Linear> make_simulated_linear(const checkpoint::NvFp4Linear& weight,
                                              std::optional<EncodeScale> input_scale,
                                              std::vector<float> bias);

}  // namespace halfbyte::model
