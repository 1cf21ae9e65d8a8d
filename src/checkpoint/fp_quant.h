// The dialect of FP-Quant (quant_method "fp_quant"), forward_dtype nvfp4. Per quantised module
//   M.qweight                  U8 [N, K/2]    two codes a byte, lower nibble first, of W T^-T blockwise
//   M.scales                   U8 [N, K/16]   the bits of E4M3
//   M.weight_global_scale      F32 [1]        encode word
//   M.act_global_scale         F32 [1]        encode word G: SF = E4M3(G amax / 6), as everywhere here
//   M.forward_hadamard_matrix  BF16 [h, h]    T, already normalised; x T, blockwise, is what is quantised
//   M.backward_hadamard_matrix [h, h]         for training, not read
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"

namespace halfbyte::checkpoint {

class FpQuantConfig {
  public:
    // Error: malformed, or unsupported by name (mxfp4, pseudoquantization, master weights).
    FpQuantConfig(const Json& json, const std::filesystem::path& file);

    // The quantised modules among the tensors, whose tensors are taken out of the map, and their transforms.
    // Checks each against every rule, and with known_architecture also that no dense linear layer should have
    // been quantised.
    std::map<std::string, NvFp4Linear> take_modules(bool known_architecture,
                                                    std::map<std::string, TensorView>& tensors,
                                                    Transforms& transforms) const;
    std::vector<std::string> warnings() const;

  private:
    // The entry of modules_to_not_convert that a module's name ends with, or null.
    const std::string* exclusion(std::string_view module) const;

    std::filesystem::path file_;
    std::string method_, init_;
    int64_t block_ = 0;
    std::vector<std::string> not_converted_;
};

}  // namespace halfbyte::checkpoint
