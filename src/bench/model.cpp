#include "bench/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "bench/timing.h"
#include "core/process_memory.h"

namespace halfbyte::bench {
namespace {

constexpr int64_t first_prompt = 16;

double wall_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Ids all over the vocabulary, the same in every run.
std::vector<int32_t> fixed_tokens(int64_t count, int64_t vocabulary) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; i++) tokens.push_back(int32_t((7919 * i + 1) % vocabulary));
    return tokens;
}

// Of `rows` positions that pass through the linear layers together, `logits` of them through lm_head.
Work linear_work(const checkpoint::Checkpoint& source, model::Arithmetic arithmetic, int64_t rows,
                 int64_t logits) {
    Work work;
    for (const std::vector<std::string>& group : model::linear_groups(source))
        for (const std::string& module : group) {
            const auto positions = double(module == "lm_head" ? logits : rows);
            if (const auto found = source.nvfp4().find(module); found != source.nvfp4().end()) {
                const checkpoint::NvFp4Linear& layer = found->second;
                const double weights = double(layer.n * layer.k);
                work.bytes_read += weights * 0.5625;
                const bool w4a4 = layer.input_scale && arithmetic != model::Arithmetic::w4a16;
                (w4a4 ? work.int8 : work.fp32) += positions * weights;
            } else if (const auto fp8 = source.fp8().find(module); fp8 != source.fp8().end()) {
                const double weights = double(fp8->second.n * fp8->second.k);
                work.bytes_read += weights;
                work.fp32 += positions * weights;
            } else {
                const bool tied = module == "lm_head" && source.config().tie_word_embeddings;
                const auto& tensor =
                    source.dense().at(tied ? "model.embed_tokens.weight" : module + ".weight");
                work.bytes_read += double(tensor.elements()) * double(size_of(tensor.dtype));
                work.fp32 += positions * double(tensor.elements());
            }
        }
    return work;
}

double attention_work(const checkpoint::ModelConfig& config, int64_t tokens) {
    return 0.5 * double(tokens * (tokens + 1)) * double(config.layers * config.heads * config.head_dim * 2);
}

ModelRow row_of(std::string test, int64_t tokens, const std::vector<double>& seconds, const Work& work,
                const Limits& limits) {
    ModelRow row{.test = std::move(test)};
    for (const double s : seconds) row.samples.push_back(double(tokens) / s);
    row.mean = mean_of(row.samples);
    row.deviation = standard_deviation_of(row.samples);
    if (!limits.fp32) return row;
    const Bound bound = bound_of(work, limits);
    row.bound = name_of(bound.kind);
    row.limit = double(tokens) / bound.seconds;
    row.share = row.mean / row.limit;
    return row;
}

}  // namespace

Work prompt_work(const checkpoint::Checkpoint& source, model::Arithmetic arithmetic, int64_t tokens) {
    Work work = linear_work(source, arithmetic, tokens, 1);
    work.fp32 += attention_work(source.config(), tokens);
    return work;
}

Work generate_work(const checkpoint::Checkpoint& source, model::Arithmetic arithmetic, int64_t tokens) {
    Work work = linear_work(source, arithmetic, 1, 1);
    work.bytes_read *= double(tokens);
    work.int8 *= double(tokens);
    work.fp32 = work.fp32 * double(tokens) + attention_work(source.config(), tokens);
    return work;
}

void check_model(const checkpoint::Checkpoint& source, const ModelOptions& options) {
    model::check_architecture(source);
    const checkpoint::ModelConfig& config = source.config();
    const std::string where = source.path().string();
    const auto advice = [&](const char* option) {
        return fmt::format("give {} {} or less; 0 leaves the test out", option, config.max_positions);
    };
    model::check_positions(config, options.prompt, where, advice("-p"));
    model::check_positions(config, options.generated, where, advice("-n"));
    model::check_positions(config, first_prompt, where + ": the first token");
}

ModelResult measure_model(const Context& context, const std::filesystem::path& path, const Limits& limits,
                          const ModelOptions& options, const Progress& progress) {
    ModelResult result;
    const bool peak_is_ours = reset_peak_memory();
    const double start = wall_seconds();
    const auto source = checkpoint::open_checkpoint(path);
    const auto& config = source->config();
    check_model(*source, options);
    const auto decoder = model::load_decoder(context, *source, options.arithmetic, progress);
    result.load_seconds = wall_seconds() - start;

    std::vector<float> logits(size_t(config.vocab_size));
    const std::vector<int32_t> tokens =
        fixed_tokens(std::max({options.prompt, options.generated, first_prompt}), config.vocab_size);
    const auto forward = [&](model::KvCache& cache, int64_t first, int64_t count) {
        decoder->forward(context, cache, std::span(tokens).subspan(size_t(first), size_t(count)), 1,
                         logits.data());
    };
    {
        model::KvCache cache = decoder->make_cache(first_prompt);
        forward(cache, 0, first_prompt);
        result.first_token_seconds = wall_seconds() - start;
        result.first_token_peak_bytes = peak_memory_bytes();
    }
    // `steps` forward passes of `count` tokens each; the seconds of every repeat but the first, which warms
    // up.
    const auto measure = [&](const std::string& test, int64_t steps, int64_t count, const Work& work) {
        std::vector<double> seconds;
        model::KvCache cache = decoder->make_cache(steps * count);
        for (int64_t i = 0; i <= options.repeats; i++) {
            cache.clear();
            const double begin = wall_seconds();
            for (int64_t step = 0; step < steps; step++) {
                report(progress, test, i * steps + step, (options.repeats + 1) * steps);
                forward(cache, step * count, count);
            }
            if (i > 0) seconds.push_back(wall_seconds() - begin);
        }
        report(progress, test, 1, 1);
        result.rows.push_back(row_of(test, steps * count, seconds, work, limits));
    };
    if (options.prompt > 0)
        measure(fmt::format("pp{}", options.prompt), 1, options.prompt,
                prompt_work(*source, options.arithmetic, options.prompt));
    if (options.generated > 0)
        measure(fmt::format("tg{}", options.generated), options.generated, 1,
                generate_work(*source, options.arithmetic, options.generated));
    result.peak_bytes = peak_memory_bytes();
    if (!peak_is_ours) result.first_token_peak_bytes = result.peak_bytes = 0;
    source->check_unchanged();
    return result;
}

}  // namespace halfbyte::bench
