// The decoder on a real checkpoint of llm-compressor cut to two layers, and on the full model where it is
// there.
#include "model/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "checkpoint/json.h"
#include "checkpoint/safetensors.h"
#include "core/word_hash.h"
#include "support/throws.h"

namespace halfbyte::model {
namespace {

namespace fs = std::filesystem;
using checkpoint::open_checkpoint;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool sanitized = true;  // the scalar level takes minutes then, so it runs one case
#else
constexpr bool sanitized = false;
#endif
#if defined(__SANITIZE_THREAD__)
constexpr bool thread_sanitized = true;  // threads meet in the same places at every level, and it is slow
#else
constexpr bool thread_sanitized = false;
#endif

const fs::path two_layers = fs::path(HALFBYTE_TEST_DATA) / "llmc-nvfp4-2layer";

std::vector<CpuLevel> levels() {
    if (thread_sanitized) return {Context(1).level()};
    std::vector<CpuLevel> usable;
    for (const CpuLevelStatus& status : cpu_levels())
        if (status.unsupported_reason.empty())
            usable.push_back(status.level);
        else
            std::cout << "not run on this machine: " << name_of(status.level) << ", "
                      << status.unsupported_reason << "\n";
    return usable;
}

// Ids of the cut vocabulary that repeat nothing for a while.
std::vector<int32_t> some_tokens(int count) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; i++) tokens.push_back((i * 389 + 17) % 1024);
    return tokens;
}

std::vector<float> run(const Context& context, const Decoder& decoder, std::span<const int32_t> tokens,
                       int64_t chunk) {
    const int64_t count = int64_t(tokens.size()), vocab = decoder.config().vocab_size;
    std::vector<float> logits(size_t(count * vocab));
    KvCache cache = decoder.make_cache(count);
    for (int64_t begin = 0; begin < count; begin += chunk) {
        const int64_t rows = std::min(chunk, count - begin);
        decoder.forward(context, cache, tokens.subspan(size_t(begin), size_t(rows)), rows,
                        logits.data() + begin * vocab);
    }
    return logits;
}

uint64_t hash_of(const std::vector<float>& logits) {
    WordHash hash;
    hash.add(logits);
    return hash.value();
}

double rms(std::span<const float> values) {
    double sum = 0;
    for (const float value : values) sum += double(value) * double(value);
    return std::sqrt(sum / double(values.size()));
}

// W4A4 and W4A16, kernels and simulation, every level, 1 and 2 threads, every chunking: one hash for each
// arithmetic.
TEST(Decoder, GivesTheSameBitsAtEveryLevelThreadCountAndChunk) {
    const auto file = open_checkpoint(two_layers);
    const std::vector<int32_t> tokens = some_tokens(128);
    std::optional<uint64_t> w4a4, w4a16;
    for (const CpuLevel level : levels()) {
        for (const int threads : {1, 2}) {
            const Context context(threads, level);
            const auto kernel = load_decoder(context, *file, Arithmetic::kernel);
            const auto simulated = load_decoder(context, *file, Arithmetic::simulated);
            const auto unquantized = load_decoder(context, *file, Arithmetic::w4a16);
            for (const int64_t chunk : {1, 7, 64, 512}) {
                const bool slow = thread_sanitized || (sanitized && level == CpuLevel::scalar);
                if (slow && (threads != 2 || chunk != 64)) continue;
                const uint64_t hash = hash_of(run(context, *kernel, tokens, chunk));
                if (!w4a4) w4a4 = hash;
                EXPECT_EQ(hash, *w4a4) << name_of(level) << ", " << threads << " threads, chunk " << chunk;
                EXPECT_EQ(hash_of(run(context, *simulated, tokens, chunk)), *w4a4)
                    << name_of(level) << ", simulated";
                if (chunk == 1 && level == CpuLevel::scalar) continue;  // said by the other rows, and slow
                const uint64_t hash16 = hash_of(run(context, *unquantized, tokens, chunk));
                if (!w4a16) w4a16 = hash16;
                EXPECT_EQ(hash16, *w4a16) << name_of(level) << ", " << threads << " threads, chunk " << chunk;
            }
        }
    }
    // Not compared with another program: what this version gives, so that a change of a bit anywhere is seen.
    EXPECT_EQ(*w4a4, 0xC76FD6CEE02E2977u);
    EXPECT_EQ(*w4a16, 0xF345E30A79CFB154u);
}

// What is not wanted is left out of the last layer, and changes nothing else.
TEST(Decoder, GivesTheLogitsOfTheLastPositionsAlone) {
    const auto file = open_checkpoint(two_layers);
    const Context context(2);
    const auto decoder = load_decoder(context, *file, Arithmetic::kernel);
    const std::vector<int32_t> tokens = some_tokens(20);
    const std::vector<float> all = run(context, *decoder, tokens, 64);
    for (const int64_t wanted : {0, 1, 3, 8}) {
        KvCache cache = decoder->make_cache(20);
        std::vector<float> first(8 * 1024, 7.0f), second(12 * 1024);
        decoder->forward(context, cache, std::span(tokens).first(8), wanted, first.data());
        decoder->forward(context, cache, std::span(tokens).subspan(8), 12, second.data());
        EXPECT_TRUE(
            std::equal(first.begin(), first.begin() + wanted * 1024, all.begin() + (8 - wanted) * 1024));
        EXPECT_EQ(first[size_t(wanted * 1024) % first.size()], wanted == 8 ? all[0] : 7.0f);
        EXPECT_TRUE(std::equal(second.begin(), second.end(), all.begin() + 8 * 1024));
    }
}

// The same file without its input scales is a W4A16 file: simulation and kernels agree there too.
TEST(Decoder, SimulatesW4A16BitForBit) {
    const fs::path folder = fs::path(HALFBYTE_SHARED_DATA) / "checkpoints" / "llmc-nvfp4a16-2layer";
    if (!fs::exists(folder)) GTEST_SKIP() << folder << " is not there";
    const auto file = open_checkpoint(folder);
    for (const CpuLevel level : levels()) {
        const Context context(2, level);
        const auto kernel = load_decoder(context, *file, Arithmetic::kernel);
        const auto simulated = load_decoder(context, *file, Arithmetic::simulated);
        const std::vector<int32_t> tokens = some_tokens(33);
        EXPECT_EQ(hash_of(run(context, *kernel, tokens, 64)), hash_of(run(context, *simulated, tokens, 7)))
            << name_of(level);
    }
}

// The reference logits were computed in FP32 by another program, whose sums have another order. Each of the
// 12 steps of a layer, and the two of the end, may move its result by about u sqrt(K) of its size (u = 2^-24,
// K = 1536 terms at most, rounding errors adding up like a random walk), and these movements add up along the
// residual stream.
//
// W4A4 logits (activations by the contract) meet ties: an input that another order of additions moves over a
// midpoint between two codes changes a row by far more. Rows without such a tie keep the bound, and they are
// most.
// Gives the names of the logits that were there and compared.
std::vector<std::string> compare_with_reference(const fs::path& folder) {
    const auto file = open_checkpoint(folder);
    const checkpoint::SafetensorsFile reference(folder / "reference_logits.safetensors");
    const auto ids = reference.tensors().at("input_ids").bytes;
    std::vector<int64_t> ids64(ids.size() / 8);
    std::memcpy(ids64.data(), ids.data(), ids.size());
    const std::vector<int32_t> tokens(ids64.begin(), ids64.end());
    std::vector<std::string> compared;
    for (const auto& [logits, arithmetic] :
         {std::pair("logits_w4a16", Arithmetic::w4a16), {"logits_w4a4", Arithmetic::kernel}}) {
        const auto found = reference.tensors().find(logits);
        if (found == reference.tensors().end()) continue;
        std::vector<float> expected(found->second.bytes.size() / 4);
        std::memcpy(expected.data(), found->second.bytes.data(), found->second.bytes.size());

        const Context context;
        const auto decoder = load_decoder(context, *file, arithmetic);
        std::vector<float> actual = run(context, *decoder, tokens, 64);
        EXPECT_EQ(actual.size(), expected.size());
        if (actual.size() != expected.size()) continue;
        for (size_t i = 0; i < actual.size(); i++) actual[i] -= expected[i];
        const double tolerance = (12 * 2 + 2) * 0x1p-24 * std::sqrt(1536.0) * rms(expected);
        compared.push_back(logits);
        if (arithmetic == Arithmetic::w4a16) {
            EXPECT_LE(rms(actual), tolerance);
            continue;
        }
        size_t within = 0;
        for (size_t row = 0; row < tokens.size(); row++)
            within += rms(std::span(actual).subspan(row * 1024, 1024)) <= tolerance;
        EXPECT_GE(within, tokens.size() * 3 / 4);
    }
    return compared;
}

TEST(Decoder, GivesTheLogitsOfForeignCheckpoints) {
    const fs::path shared = fs::path(HALFBYTE_SHARED_DATA) / "checkpoints";
    int compared = 0;
    for (const fs::path& root : {fs::path(HALFBYTE_TEST_DATA), shared}) {
        for (const char* name : {"llmc-nvfp4-2layer", "llmc-nvfp4-lmhead-2layer", "llmc-nvfp4a16-2layer",
                                 "llmc-nvfp4-gptq-2layer"}) {
            if (!fs::exists(root / name)) continue;
            SCOPED_TRACE(root / name);
            compared += !compare_with_reference(root / name).empty();
        }
    }
    EXPECT_GE(compared, 2);
    if (!fs::exists(shared)) std::cout << "not compared: " << shared << " is not there\n";
}

TEST(Decoder, GivesTheLogitsOfRotatedCheckpoints) {
    const fs::path shared = fs::path(HALFBYTE_SHARED_DATA) / "checkpoints";
    if (!fs::exists(shared)) GTEST_SKIP() << shared << " is not there";
    for (const char* name : {"quip-v16", "quip-v64-random", "quip-vu64", "spinquant", "spinquant-r124"}) {
        SCOPED_TRACE(name);
        EXPECT_EQ(compare_with_reference(shared / (std::string("llmc-") + name + "-2layer")),
                  (std::vector<std::string>{"logits_w4a16", "logits_w4a4"}));
    }
}

TEST(Decoder, RefusesTokensOutsideTheVocabularyAndTextBeyondTheContext) {
    const auto file = open_checkpoint(two_layers);
    const Context context(1);
    const auto decoder = load_decoder(context, *file, Arithmetic::kernel);
    KvCache cache = decoder->make_cache(4);
    std::vector<float> logits(1024);
    for (const int32_t token : {-1, 1024}) {
        const std::vector<int32_t> tokens = {token};
        EXPECT_TRUE(test::throws(ErrorKind::usage, {std::to_string(token).c_str(), "1023"},
                                 [&] { decoder->forward(context, cache, tokens, 1, logits.data()); }));
    }
    const std::vector<int32_t> five(5, 1);
    EXPECT_TRUE(test::throws(ErrorKind::usage, {"5", "4"},
                             [&] { decoder->forward(context, cache, five, 0, logits.data()); }));
    EXPECT_TRUE(test::throws(ErrorKind::usage, {"8193", "8192"}, [&] { decoder->make_cache(8193); }));
}

// The demo model: greedy continuations by transformers in FP32, up to the first step where the two best
// logits are so close that another order of additions could choose otherwise.
TEST(Decoder, ContinuesAsTransformersDoes) {
    const fs::path model = fs::path(HALFBYTE_BUILD_DIR) / ".." / "model" / "SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!fs::exists(model)) GTEST_SKIP() << "no demo model; scripts/get_model.sh gets it";
    const auto file = open_checkpoint(model);
    const Context context;
    const auto decoder = load_decoder(context, *file, Arithmetic::kernel);
    std::vector<float> logits(size_t(decoder->config().vocab_size));
    const checkpoint::Json golden =
        checkpoint::read_json(fs::path(HALFBYTE_TEST_DATA) / "generation_golden.json");
    ASSERT_EQ(golden["greedy"].size(), 5u);
    for (const auto& item : golden["greedy"]) {
        std::vector<int32_t> next = item["prompt_ids"];
        const std::vector<int32_t> expected = item["new_ids"];
        const std::vector<double> margins = item["margin"];
        KvCache cache = decoder->make_cache(int64_t(next.size() + expected.size()));
        for (size_t i = 0; i < expected.size() && margins[i] >= 0.01; i++) {
            decoder->forward(context, cache, next, 1, logits.data());
            const auto best = std::max_element(logits.begin(), logits.end());
            next = {int32_t(best - logits.begin())};
            ASSERT_EQ(next[0], expected[i]) << item["prompt"] << ", step " << i;
            const float largest = *best;
            *best = -INFINITY;
            const double margin = double(largest) - double(*std::max_element(logits.begin(), logits.end()));
            // Both margins carry the FP32 errors of 30 layers of logits of about 20: some 1e-4.
            EXPECT_NEAR(margin, margins[i], 2e-3) << item["prompt"] << ", step " << i;
        }
    }
}

}  // namespace
}  // namespace halfbyte::model
