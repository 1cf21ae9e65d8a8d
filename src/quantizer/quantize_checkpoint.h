// Making an NVFP4 checkpoint by rounding to nearest with amax scales, one tensor after the other.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "core/progress.h"
#include "halfbyte/context.h"
#include "quantizer/calibrate.h"

namespace halfbyte::quantizer {

class RotatedCheckpoint;

struct QuantizeOptions {
    checkpoint::Scheme scheme = checkpoint::Scheme::nvfp4;
    std::vector<std::string> ignore = {"lm_head"};
    // Of lm_head's weights: nvfp4a16 or fp8a16, its inputs stay as they are. One that is tied to the
    // embedding gets weights of its own. Absent: lm_head is like the other layers, but stays dense where it
    // is tied.
    std::optional<checkpoint::Scheme> head = {};
    bool separate_scales = false;  // q, k, v and gate, up each with a weight scale of its own
    // The source with transforms, made with the same `ignore`: its tensors are the ones to quantise.
    const RotatedCheckpoint* rotated = nullptr;
    bool dry_run = false;                      // everything but writing
    bool force = false;                        // replace an existing folder
    uint64_t max_shard_bytes = 5'000'000'000;  // a larger model is written as several files
    std::string command;                       // for the README of the new folder; empty: left out
    std::string calibration_text;              // likewise: the file's name
};

struct LayerReport {
    std::string module;
    int64_t n = 0, k = 0;
    double snr_db = 0;  // 10 log10 of sum w^2 / sum (w - decoded w)^2; infinity if nothing is lost
    QuantizeStats stats;
};

struct QuantizeReport {
    std::vector<LayerReport> layers;  // in file order
    QuantizeStats stats;              // of all of them
    bool head_untied = false;         // lm_head, which shared the embedding, has weights of its own
    int64_t dense_tensors = 0;
    std::set<std::string> source_types;    // "BF16"; block types of a GGUF count as that
    uint64_t source_bytes = 0;             // of the tensors, in the source's types
    uint64_t output_bytes = 0;             // of the tensors, as written
    double bits_per_weight = 0;            // of the whole file
    double quantized_bits_per_weight = 0;  // of the quantised layers, scales included
    std::vector<std::string> weight_files;
    std::vector<std::string> warnings;  // whole sentences
};

// Error (usage) if the source is quantised or has transforms already.
void check_dense(const checkpoint::Checkpoint& source);

// What quantize_checkpoint checks before any work, to ask before a calibration. Error (usage): the source is
// quantised already; `out` exists without `force`, is no model folder, or is the source's folder, holds it or
// lies in it; an ignore pattern does not compile, matches lm_head though `head` is given, or all layers are
// ignored. (unsupported): K of a layer is not a multiple of 16; config.json cannot say the RoPE scaling of a
// GGUF. (failure): the parent of `out` is missing, may not be written or lacks the space.
void check_request(const checkpoint::Checkpoint& source, const std::filesystem::path& out,
                   const QuantizeOptions& options);

// Writes the folder `out`. W4A4 needs the calibration. Memory beside the mapped source, whose pages are
// released piece by piece: the codes of a few rows and the block scales of one tensor. Errors: those of
// check_request; failure (non-finite weights, naming tensor and place; disk).
QuantizeReport quantize_checkpoint(const Context& context, const checkpoint::Checkpoint& source,
                                   const std::optional<Calibration>& calibration,
                                   const std::filesystem::path& out, const QuantizeOptions& options,
                                   const Progress& progress = {});

}  // namespace halfbyte::quantizer
