// y = x W^T + b for one linear layer, in the arithmetic that its weights are run in.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "halfbyte/context.h"

namespace halfbyte::model {

// How quantised layers are run; dense layers are always run as sum32 products.
enum class Arithmetic {
    kernel,     // by the file's scheme, through the kernels
    simulated,  // by the file's scheme, on expanded FP32 weights: the check of the kernels
    w4a16       // activations left unquantised, also where the file has input scales
};

// Activations [rows, k] with their quantised forms, kept for the layers that share the input (q/k/v,
// gate/up).
struct LinearInput {
    struct Quantized {  // for the kernels
        float encode_scale;
        std::vector<uint8_t> codes, block_scales;
    };
    struct Expanded {  // for the simulation: code * SF in FP32, [rows, padded_k]
        float encode_scale;
        std::vector<float> values;
    };

    const float* x = nullptr;
    int64_t rows = 0, k = 0;
    std::list<Quantized> quantized;
    std::list<Expanded> expanded;
};

class Linear {
  public:
    virtual ~Linear() = default;
    // y: [input.rows, n], rows y_stride elements apart.
    virtual void apply(const Context& context, LinearInput& input, float* y, int64_t y_stride) const = 0;
};

// The layer `module` of a checkpoint, quantised or dense, with its bias if it has one.
std::unique_ptr<Linear> load_linear(const Context& context, const checkpoint::Checkpoint& source,
                                    const std::string& module, Arithmetic arithmetic);

// A simulated layer (simulated_linear.cpp); input_scale absent: W4A16.
std::unique_ptr<Linear> make_simulated_linear(const checkpoint::NvFp4Linear& weight,
                                              std::optional<EncodeScale> input_scale,
                                              std::vector<float> bias);

}  // namespace halfbyte::model
