// Static input scales: the source model runs over a text, and the largest |x| that each linear layer sees is
// kept.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "model/decoder.h"

namespace halfbyte::quantizer {

struct Calibration {
    int64_t tokens = 0;
    std::map<std::string, float> input_amax;  // by module
};

// Windows of `window` tokens, fresh cache each; the last window may be shorter.
// Error (failure) naming the module if an input is not finite.
Calibration calibrate(const Context& context, const model::Decoder& decoder, std::span<const int32_t> ids,
                      int64_t window, const Progress& progress);

}  // namespace halfbyte::quantizer
