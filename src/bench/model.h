// The speed of a whole model: prompt tokens and generated tokens a second, on fixed token ids.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bench/limits.h"
#include "checkpoint/checkpoint.h"
#include "core/progress.h"
#include "halfbyte/context.h"
#include "model/decoder.h"

namespace halfbyte::bench {

struct ModelOptions {
    int64_t prompt = 512;     // tokens, 0: leave it out
    int64_t generated = 128;  // likewise
    int64_t repeats = 5;
    model::Arithmetic arithmetic = model::Arithmetic::kernel;
};

// One test ("pp512", "tg128"), tokens/s.
struct ModelRow {
    std::string test;
    std::vector<double> samples;
    double mean = 0, deviation = 0;  // standard deviation of the samples
    double limit = 0;                // 0: none
    double share = 0;                // mean / limit
    std::string bound;               // what the limit is, see Bound
};

struct ModelResult {
    double load_seconds = 0;         // opening the files, until the weights are ready
    double first_token_seconds = 0;  // the same and the logits behind a prompt of 16 tokens
    // Largest memory of the process until then and until the end, mapped pages included; 0 where the system
    // does not let a process count anew.
    uint64_t first_token_peak_bytes = 0, peak_bytes = 0;
    std::vector<ModelRow> rows;
};

// What one run moves and computes: pp512 its 512 positions at once with the logits of the last, tg128 128
// times one position, from an empty cache. Weights count once for each time that they are walked through,
// attention as multiply-adds.
Work prompt_work(const checkpoint::Checkpoint& source, model::Arithmetic arithmetic, int64_t tokens);
Work generate_work(const checkpoint::Checkpoint& source, model::Arithmetic arithmetic, int64_t tokens);

// What measure_model asks of a model before it loads it, to ask before anything is measured. Error
// (unsupported): the architecture; (usage): a context too short.
void check_model(const checkpoint::Checkpoint& source, const ModelOptions& options);

// Each test once to warm up, then `repeats` times. Errors: those of check_model and of opening.
ModelResult measure_model(const Context& context, const std::filesystem::path& path, const Limits& limits,
                          const ModelOptions& options, const Progress& progress);

}  // namespace halfbyte::bench
