// The README.md of a folder that quantize writes: source, tool, command, scheme, calibration.
#pragma once

#include "quantizer/quantize_checkpoint.h"

namespace halfbyte::quantizer {

std::string folder_readme(const checkpoint::Checkpoint& source, const QuantizeReport& report,
                          const std::optional<Calibration>& calibration, const QuantizeOptions& options);

}  // namespace halfbyte::quantizer
