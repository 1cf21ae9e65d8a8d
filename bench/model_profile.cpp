// Where the time of a model goes: thread CPU time inside each operation of a forward pass, with one thread.
//   halfbyte-model-profile MODEL
// prints the shares, as Markdown, for a prompt of 512 tokens (logits of the last one) and for 128 tokens one
// by one. The linker puts the functions below in the place of the operations (--wrap); the library itself
// counts nothing. "Everything else" holds the clock too, some 0.3 us twice for each operation.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/decoder.h"

namespace halfbyte {
namespace {

double now() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

std::map<std::string, double> seconds_of;

template <typename Args>
void timed(const char* name, void (*operation)(const Context&, const Args&), const Context& context,
           const Args& args) {
    const double start = now();
    operation(context, args);
    seconds_of[name] += now() - start;
}

}  // namespace

// --wrap=S sends calls of the symbol S to __wrap_S, and those of __real_S to the operation.
#define HALFBYTE_TIMED(name, Args, symbol)                                    \
    void real_##name(const Context&, const Args&) __asm__("__real_" symbol);  \
    void timed_##name(const Context&, const Args&) __asm__("__wrap_" symbol); \
    void timed_##name(const Context& context, const Args& args) {             \
        timed(#name, real_##name, context, args);                             \
    }
HALFBYTE_TIMED(quantize, QuantizeArgs, "_ZN8halfbyte8quantizeERKNS_7ContextERKNS_12QuantizeArgsE")
HALFBYTE_TIMED(transform, TransformArgs, "_ZN8halfbyte9transformERKNS_7ContextERKNS_13TransformArgsE")
HALFBYTE_TIMED(rms_norm_quantize, RmsNormQuantizeArgs,
               "_ZN8halfbyte17rms_norm_quantizeERKNS_7ContextERKNS_19RmsNormQuantizeArgsE")
HALFBYTE_TIMED(silu_mul_quantize, SiluMulQuantizeArgs,
               "_ZN8halfbyte17silu_mul_quantizeERKNS_7ContextERKNS_19SiluMulQuantizeArgsE")
HALFBYTE_TIMED(matmul_w4a4, MatmulW4A4Args, "_ZN8halfbyte11matmul_w4a4ERKNS_7ContextERKNS_14MatmulW4A4ArgsE")
HALFBYTE_TIMED(matmul_w4a16, MatmulW4A16Args,
               "_ZN8halfbyte12matmul_w4a16ERKNS_7ContextERKNS_15MatmulW4A16ArgsE")
HALFBYTE_TIMED(matmul_dense, MatmulDenseArgs,
               "_ZN8halfbyte12matmul_denseERKNS_7ContextERKNS_15MatmulDenseArgsE")
HALFBYTE_TIMED(matmul_w8a16, MatmulW8A16Args,
               "_ZN8halfbyte12matmul_w8a16ERKNS_7ContextERKNS_15MatmulW8A16ArgsE")
HALFBYTE_TIMED(rms_norm, RmsNormArgs, "_ZN8halfbyte8rms_normERKNS_7ContextERKNS_11RmsNormArgsE")
HALFBYTE_TIMED(silu_mul, SiluMulArgs, "_ZN8halfbyte8silu_mulERKNS_7ContextERKNS_11SiluMulArgsE")
HALFBYTE_TIMED(rope, RopeArgs, "_ZN8halfbyte4ropeERKNS_7ContextERKNS_8RopeArgsE")
HALFBYTE_TIMED(attention, AttentionArgs, "_ZN8halfbyte9attentionERKNS_7ContextERKNS_13AttentionArgsE")

namespace {

struct Profile {
    std::string name;
    double tokens_per_second = 0;
    std::map<std::string, double> shares;
};

// `calls` forward passes of `rows` positions each, three times after one run to warm up.
Profile profile(const model::Decoder& decoder, const Context& context, const std::string& name, int64_t calls,
                int64_t rows) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < calls * rows; i++)
        tokens.push_back(int32_t((i * 389 + 17) % decoder.config().vocab_size));
    std::vector<float> logits(size_t(decoder.config().vocab_size));
    constexpr int runs = 3;
    double total = 0;
    for (int run = 0; run <= runs; run++) {
        model::KvCache cache = decoder.make_cache(calls * rows);
        if (run == 1) seconds_of.clear();
        const double start = now();
        for (int64_t i = 0; i < calls; i++)
            decoder.forward(context, cache, std::span(tokens).subspan(size_t(i * rows), size_t(rows)), 1,
                            logits.data());
        if (run > 0) total += now() - start;
    }
    Profile result = {name, double(runs * calls * rows) / total, {}};
    double rest = 1;
    for (const auto& [operation, seconds] : seconds_of) {
        result.shares["`" + operation + "`"] = seconds / total;
        rest -= seconds / total;
    }
    result.shares["everything else"] = rest;
    return result;
}

void print(const std::vector<Profile>& profiles, CpuLevel level) {
    std::map<std::string, double> largest;
    std::string heads, line, speeds;
    for (const Profile& one : profiles) {
        for (const auto& [operation, share] : one.shares)
            largest[operation] = std::max(largest[operation], share);
        heads += fmt::format(" {} |", one.name);
        line += " ---: |";
        speeds += fmt::format(" {:.0f} |", one.tokens_per_second);
    }
    std::vector<std::pair<double, std::string>> order;
    for (const auto& [operation, share] : largest) order.emplace_back(share, operation);
    std::sort(order.rbegin(), order.rend());
    fmt::print("| share of the time, {} |{}\n| --- |{}\n", name_of(level), heads, line);
    for (const auto& [share, operation] : order) {
        fmt::print("| {} |", operation);
        for (const Profile& one : profiles) {
            const auto found = one.shares.find(operation);
            fmt::print(" {:.1f} % |", found == one.shares.end() ? 0 : 100 * found->second);
        }
        fmt::print("\n");
    }
    fmt::print("| tokens/s |{}\n", speeds);
}

}  // namespace
}  // namespace halfbyte

int main(int argc, char** argv) {
    if (argc != 2) {
        fmt::print(stderr, "{} MODEL: {} arguments given, a model is needed: a folder or a .gguf file\n",
                   argv[0], argc - 1);
        return 2;
    }
    try {
        const auto source = halfbyte::checkpoint::open_checkpoint(argv[1]);
        const halfbyte::Context context(1);
        const auto decoder =
            halfbyte::model::load_decoder(context, *source, halfbyte::model::Arithmetic::kernel);
        halfbyte::print({halfbyte::profile(*decoder, context, "pp512", 1, 512),
                         halfbyte::profile(*decoder, context, "tg128", 128, 1)},
                        context.level());
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}: {}\n", argv[0], error.what());
        return 1;
    }
}
