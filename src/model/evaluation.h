// Perplexity of several models on one text, side by side.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/decoder.h"

namespace halfbyte::model {

struct PerplexityOptions {
    int64_t windows = 20;
    int64_t window_size = 512;
    bool second_half = false;    // score only the positions from window_size / 2 on, as llama.cpp does
    int64_t chunk = 128;         // positions run at a time
    std::optional<int32_t> bos;  // replaces the first token of each window
};

// A model to run. The first one may be the base that the others are compared with.
struct Contestant {
    const Decoder* decoder = nullptr;
    bool is_base = false;
};

struct Estimate {
    double value = 0, standard_error = 0;
};

struct PerplexityResult {
    int64_t tokens = 0;                     // scored
    int64_t tokens_run = 0;                 // through the model
    double nll = 0;                         // mean over the scored tokens
    Estimate perplexity;                    // exp(nll); perplexity * s / sqrt(n)
    std::optional<Estimate> kl_to_base;     // mean of sum p (log p - log q)
    std::optional<Estimate> ratio_to_base;  // of perplexities; errors of this and the next are those of pairs
    std::optional<Estimate> difference_to_base;
    double seconds = 0;        // in the model alone
    uint64_t logits_hash = 0;  // WordHash of all logits of all positions in order
};

// What perplexity() asks of the options and of a text of that many tokens. Error (usage): fewer windows in
// the text than asked, with both numbers; a window in which nothing is scored.
void check_windows(const PerplexityOptions& options, int64_t tokens, std::string_view where = "perplexity");

// ids: the whole text. Window i is ids[window_size * i ...], run in a fresh cache; position j predicts token
// j + 1. Error (usage): that of check_windows. Error (failure): NaN logits, with the place.
std::vector<PerplexityResult> perplexity(const Context& context, const std::vector<Contestant>& contestants,
                                         std::span<const int32_t> ids, const PerplexityOptions& options,
                                         const Progress& progress = {});

}  // namespace halfbyte::model
