// Where the time of a model goes: thread CPU time inside each operation of a forward pass, with one thread.
//   halfbyte-model-profile MODEL
// prints the shares for a prompt of 512 tokens (logits of the last one) and for 128 tokens one by one. The
// linker puts the functions below in the place of the operations (--wrap); the program itself counts nothing.
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
HALFBYTE_TIMED(rms_norm, RmsNormArgs, "_ZN8halfbyte8rms_normERKNS_7ContextERKNS_11RmsNormArgsE")
HALFBYTE_TIMED(silu_mul, SiluMulArgs, "_ZN8halfbyte8silu_mulERKNS_7ContextERKNS_11SiluMulArgsE")
HALFBYTE_TIMED(rope, RopeArgs, "_ZN8halfbyte4ropeERKNS_7ContextERKNS_8RopeArgsE")
HALFBYTE_TIMED(attention, AttentionArgs, "_ZN8halfbyte9attentionERKNS_7ContextERKNS_13AttentionArgsE")

namespace {

// `calls` forward passes of `rows` positions each, after one run to warm up.
void profile(const model::Decoder& decoder, const std::string& name, int64_t calls, int64_t rows) {
    const Context context(1);
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < calls * rows; i++)
        tokens.push_back(int32_t((i * 389 + 17) % decoder.config().vocab_size));
    std::vector<float> logits(size_t(decoder.config().vocab_size));
    double total = 0;
    for (int run = 0; run < 4; run++) {
        model::KvCache cache = decoder.make_cache(calls * rows);
        if (run == 1) seconds_of.clear();
        const double start = now();
        for (int64_t i = 0; i < calls; i++)
            decoder.forward(context, cache, std::span(tokens).subspan(size_t(i * rows), size_t(rows)), 1,
                            logits.data());
        if (run > 0) total += now() - start;
    }
    fmt::print("{}, {}: {:.1f} tokens/s\n", name, name_of(context.level()), 3 * double(calls * rows) / total);
    std::vector<std::pair<double, std::string>> shares;
    double rest = total;
    for (const auto& [operation, seconds] : seconds_of) {
        shares.emplace_back(seconds, operation);
        rest -= seconds;
    }
    shares.emplace_back(rest, "everything else");
    std::sort(shares.rbegin(), shares.rend());
    for (const auto& [seconds, operation] : shares)
        fmt::print("  {:20} {:5.1f} %\n", operation, 100 * seconds / total);
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
        const halfbyte::Context context;
        const auto decoder =
            halfbyte::model::load_decoder(context, *source, halfbyte::model::Arithmetic::kernel);
        halfbyte::profile(*decoder, "pp512", 1, 512);
        halfbyte::profile(*decoder, "tg128", 128, 1);
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}: {}\n", argv[0], error.what());
        return 1;
    }
}
