#include "model/evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "backend/context_state.h"
#include "core/check.h"
#include "core/word_hash.h"
#include "model/log_probabilities.h"

namespace halfbyte::model {
namespace {

Estimate mean_of(const std::vector<double>& values) {
    const double n = double(values.size());
    double sum = 0, squares = 0;
    for (const double value : values) sum += value;
    const double mean = sum / n;
    for (const double value : values) squares += (value - mean) * (value - mean);
    return {mean, values.size() > 1 ? std::sqrt(squares / (n - 1) / n) : 0.0};
}

// One model on its way through the windows.
struct Run {
    const Decoder* decoder;
    KvCache cache;
    std::vector<float> logits;  // [chunk, vocab] of the current chunk
    std::vector<double> norms;  // log_sum_exp of each of its positions
    std::vector<double> nll, kl;
    WordHash hash;
    double seconds = 0;
};

int64_t first_scored_position(const PerplexityOptions& options) {
    return options.second_half ? options.window_size / 2 : 0;
}

}  // namespace

void check_windows(const PerplexityOptions& options, int64_t tokens, std::string_view where) {
    const int64_t W = options.window_size, available = W > 0 ? tokens / W : 0;
    check(W >= 2 && options.windows >= 1 && options.chunk >= 1, ErrorKind::usage,
          "perplexity: window size {}, {} windows, chunk {}; at least 2, 1 and 1 are needed", W,
          options.windows, options.chunk);
    check(available >= options.windows, ErrorKind::usage,
          "{}: the text has {} tokens, {} windows of {}, and --windows is {}; {}", where, tokens, available,
          W, options.windows,
          available > 0 ? fmt::format("give --windows {} or a longer text", available)
                        : "give a longer text or a smaller --window-size");
    check(first_scored_position(options) < W - 1, ErrorKind::usage,
          "perplexity: the second half of a window of {} predicts no token; 3 or more are needed", W);
}

std::vector<PerplexityResult> perplexity(const Context& context, const std::vector<Contestant>& contestants,
                                         std::span<const int32_t> ids, const PerplexityOptions& options,
                                         const Progress& progress) {
    check_windows(options, int64_t(ids.size()));
    const int64_t W = options.window_size, first_scored = first_scored_position(options);
    const int64_t vocab = contestants.at(0).decoder->config().vocab_size;
    std::vector<Run> runs;
    for (const Contestant& contestant : contestants) {
        check(contestant.decoder->config().vocab_size == vocab, ErrorKind::usage,
              "perplexity: vocabularies of {} and {} tokens cannot be compared", vocab,
              contestant.decoder->config().vocab_size);
        runs.push_back({contestant.decoder,
                        contestant.decoder->make_cache(W),
                        std::vector<float>(size_t(std::min(options.chunk, W) * vocab)),
                        {},
                        {},
                        {},
                        {},
                        0});
    }
    const bool has_base = contestants[0].is_base;

    for (int64_t window = 0; window < options.windows; window++) {
        std::vector<int32_t> tokens(ids.begin() + window * W, ids.begin() + (window + 1) * W);
        if (options.bos) tokens[0] = *options.bos;
        for (Run& run : runs) run.cache.clear();
        for (int64_t begin = 0; begin < W; begin += options.chunk) {
            const int64_t rows = std::min(options.chunk, W - begin);
            for (Run& run : runs) {
                report(progress, "perplexity",
                       (window * W + begin) * int64_t(runs.size()) + (&run - runs.data()) * rows,
                       options.windows * W * int64_t(runs.size()));
                const auto start = std::chrono::steady_clock::now();
                run.decoder->forward(context, run.cache,
                                     std::span(tokens).subspan(size_t(begin), size_t(rows)), rows,
                                     run.logits.data());
                run.seconds +=
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
                // Position j of the window predicts token j + 1; the last one predicts nothing.
                const int64_t from = std::max<int64_t>(0, first_scored - begin),
                              to = std::min(rows, W - 1 - begin);
                run.norms.assign(size_t(rows), 0);
                std::vector<double> kl(size_t(rows), 0);
                const Run& base = runs[0];
                // The hash is one chain of multiplications: a piece of its own, beside those of the rows.
                pool_of(context).parallel_for(1 + rows, 1, [&](int64_t first, int64_t) {
                    if (first == 0) return run.hash.add(std::span(run.logits).first(size_t(rows * vocab)));
                    const int64_t row = first - 1;
                    const float* logits = run.logits.data() + row * vocab;
                    const double norm = run.norms[size_t(row)] = log_sum_exp(context.level(), logits, vocab);
                    if (has_base && &run != &base && row >= from && row < to)
                        kl[size_t(row)] = kl_divergence(context.level(), base.logits.data() + row * vocab,
                                                        base.norms[size_t(row)], logits, norm, vocab);
                });
                for (int64_t row = 0; row < rows; row++)
                    check(
                        std::isfinite(run.norms[size_t(row)]), ErrorKind::failure,
                        "{}: NaN or infinite logits in window {} at position {}: the model or its scales are "
                        "broken",
                        run.decoder->path().string(), window, begin + row);
                for (int64_t row = from; row < to; row++) {
                    const int32_t next = tokens[size_t(begin + row + 1)];
                    run.nll.push_back(run.norms[size_t(row)] -
                                      double(run.logits[size_t(row * vocab + next)]));
                    if (has_base) run.kl.push_back(kl[size_t(row)]);
                }
            }
        }
    }
    report(progress, "perplexity", 1, 1);

    std::vector<PerplexityResult> results;
    for (const Run& run : runs) {
        PerplexityResult result;
        const Estimate nll = mean_of(run.nll);
        result.tokens = int64_t(run.nll.size());
        result.tokens_run = options.windows * W;
        result.nll = nll.value;
        result.perplexity = {std::exp(nll.value), std::exp(nll.value) * nll.standard_error};
        result.seconds = run.seconds;
        result.logits_hash = run.hash.value();
        if (has_base && &run != &runs[0]) {
            result.kl_to_base = mean_of(run.kl);
            // Per token: of log perplexities, and of perplexities to first order.
            const double own = result.perplexity.value, base = results[0].perplexity.value;
            std::vector<double> logs(run.nll.size()), values(run.nll.size());
            for (size_t i = 0; i < logs.size(); i++) {
                logs[i] = run.nll[i] - runs[0].nll[i];
                values[i] = own * run.nll[i] - base * runs[0].nll[i];
            }
            const Estimate difference = mean_of(logs);
            const double ratio = std::exp(difference.value);
            result.ratio_to_base = Estimate{ratio, ratio * difference.standard_error};
            result.difference_to_base = Estimate{own - base, mean_of(values).standard_error};
        }
        results.push_back(result);
    }
    return results;
}

}  // namespace halfbyte::model
