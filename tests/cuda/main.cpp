// halfbyte-cuda-conformance: every kernel of libhalfbyte_cuda.so, called by its name through the table, gives
// the reference's bytes on this machine's GPU. One program that needs nothing but a driver. Exits with 0 if
// all is equal, 1 if something differs, 2 for a wrong call, 77 without a GPU.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <thread>

#include "cuda/parallel.h"
#include "cuda/products.h"
#include "cuda/special.h"
#include "reference/reference.h"

namespace halfbyte::conformance {
namespace {

constexpr const char* usage =
    "Usage: halfbyte-cuda-conformance [--filter TEXT] [--quick] [--seed N] [--format text|json]\n"
    "  --filter TEXT  only lines whose \"operation kernel group\" contains it\n"
    "  --quick        few and small problems, for compute-sanitizer\n"
    "  --seed N       other random problems (default 1)\n"
    "  --format       json: one document instead of lines\n"
    "  --self-test    needs no GPU: the reference against itself, equal and with one word altered\n"
    "  --help         this text\n"
    "Exit codes: 0 all is equal, 1 something differs, 2 a wrong call, 77 no GPU\n";

struct Options {
    std::string filter, format = "text";
    bool quick = false, self_test = false, help = false;
    uint64_t seed = 1;
};

struct Operations {
    Operation<QuantizeArgs> quantize;
    Operation<SiluMulQuantizeArgs> silu_mul_quantize;
    Operation<RmsNormQuantizeArgs> rms_norm_quantize;
    Operation<TransformQuantizeArgs> transform_quantize;
    Operation<TransformArgs> transform;
    Operation<FakeQuantizeArgs> fake_quantize;
    Operation<DequantizeArgs> dequantize;
    Operation<ConvertScalesArgs> convert_scales;
    Operation<AmaxArgs> amax;
    Operation<MxFp4QuantizeArgs> mxfp4_quantize;
    Operation<MxFp4DequantizeArgs> mxfp4_dequantize;
    Operation<cuda::PackWeightArgs> pack_weight;
    Operation<cuda::UnpackWeightArgs> unpack_weight;
    Operation<cuda::MatmulW4A4Args> matmul_w4a4;
    Operation<cuda::MatmulW4A16Args> matmul_w4a16;

    // All but the products, whose problems have a size more.
    template <typename Function>
    void for_each(const Function& f) const {
        f(quantize), f(silu_mul_quantize), f(rms_norm_quantize), f(transform_quantize), f(transform);
        f(fake_quantize), f(dequantize), f(convert_scales), f(amax), f(mxfp4_quantize), f(mxfp4_dequantize);
        f(pack_weight), f(unpack_weight);
    }
};

// kernels null: the reference itself is the one kernel.
template <auto reference_function, typename Args>
Operation<Args> make_operation(std::string_view name, const cuda::Kernels* kernels,
                               cuda::KernelList<Args> cuda::Kernels::* list,
                               Problem<Args> (*make)(const Case&)) {
    static const cuda::Kernel<Args> itself[] = {
        {"reference", [](const Args&, const cuda::DeviceInfo&) { return std::string(); },
         [](const Args& args, const cuda::Launch&, const cuda::DeviceInfo&) { reference_function(args); }}};
    return {name, kernels != nullptr ? kernels->*list : itself, reference_function, make};
}

Operations make_operations(const cuda::Kernels* kernels) {
    using cuda::Kernels;
    return {
        make_operation<reference::quantize>("quantize", kernels, &Kernels::quantize, make_quantize),
        make_operation<reference::silu_mul_quantize>("silu_mul_quantize", kernels,
                                                     &Kernels::silu_mul_quantize, make_silu_mul_quantize),
        make_operation<reference::rms_norm_quantize>("rms_norm_quantize", kernels,
                                                     &Kernels::rms_norm_quantize, make_rms_norm_quantize),
        make_operation<reference::transform_quantize>("transform_quantize", kernels,
                                                      &Kernels::transform_quantize, make_transform_quantize),
        make_operation<reference::transform>("transform", kernels, &Kernels::transform, make_transform),
        make_operation<reference::fake_quantize>("fake_quantize", kernels, &Kernels::fake_quantize,
                                                 make_fake_quantize),
        make_operation<reference::dequantize>("dequantize", kernels, &Kernels::dequantize, make_dequantize),
        make_operation<reference::convert_scales>("convert_scales", kernels, &Kernels::convert_scales,
                                                  make_convert_scales),
        make_operation<reference::amax>("amax", kernels, &Kernels::amax, make_amax),
        make_operation<reference::mxfp4_quantize>("mxfp4_quantize", kernels, &Kernels::mxfp4_quantize,
                                                  make_mxfp4_quantize),
        make_operation<reference::mxfp4_dequantize>("mxfp4_dequantize", kernels, &Kernels::mxfp4_dequantize,
                                                    make_mxfp4_dequantize),
        make_operation<reference::pack_weight>("pack_weight", kernels, &Kernels::pack_weight,
                                               make_pack_weight),
        make_operation<reference::unpack_weight>("unpack_weight", kernels, &Kernels::unpack_weight,
                                                 make_unpack_weight),
        make_operation<reference::matmul_w4a4_packed>("matmul_w4a4", kernels, &Kernels::matmul_w4a4,
                                                      make_matmul_w4a4),
        make_operation<host_matmul_w4a16>("matmul_w4a16", kernels, &Kernels::matmul_w4a16,
                                          make_matmul_w4a16)};
}

template <typename Args>
constexpr bool knows_rounding(const Operation<Args>&) {
    return std::is_same_v<Args, QuantizeArgs> || requires(Args args) { args.quantize; };
}

// All cases through all operations, then the proofs of a kind of their own.
void run(const Operations& operations, const Options& options, unsigned threads, Report& report,
         const std::function<std::unique_ptr<Device>()>& make_device) {
    const std::vector<Case> cases = make_cases(options.quick, options.seed);
    const std::vector<Case> silu_cases = make_silu_cases(options.quick, options.seed);
    const std::vector<Case> rms_norm_cases = make_rms_norm_cases(options.quick, options.seed);
    const std::vector<Case> product_cases = make_product_cases(options.quick, options.seed);
    const std::vector<Case> tensor_core_cases =
        make_product_cases(options.quick, options.seed, Accumulation::tensor_core);
    const std::vector<Case> library_cases =
        make_product_cases(options.quick, options.seed, Accumulation::library);
    std::vector<std::function<void(Device&)>> work;
    const auto add = [&](const auto& operation, const Case& c) {
        work.push_back([&operation, &c, &report](Device& device) {
            compare_with_reference(operation, c, device, report);
        });
    };
    for (const Case& c : silu_cases) add(operations.silu_mul_quantize, c);
    for (const Case& c : rms_norm_cases) add(operations.rms_norm_quantize, c);
    operations.for_each([&](const auto& operation) {
        for (const Case& c : cases)
            if (c.rounding == Rounding::contract || knows_rounding(operation)) add(operation, c);
    });
    for (const Case& c : product_cases) {
        add(operations.matmul_w4a4, c);
        work.push_back([&operations, &c, &report](Device& device) {
            compare_with_bound(operations.matmul_w4a16, c, device, report);
        });
    }
    for (const Case& c : tensor_core_cases)
        work.push_back([&operations, &c, &report](Device& device) {
            compare_with_bound(operations.matmul_w4a4, c, device, report);
        });
    for (const Case& c : library_cases)
        work.push_back([&operations, &c, &report](Device& device) {
            compare_with_bound(operations.matmul_w4a16, c, device, report);
        });
    in_parallel(int64_t(work.size()), threads, [&] {
        return [&, device = std::shared_ptr<Device>(make_device())](int64_t i) { work[size_t(i)](*device); };
    });
    const std::unique_ptr<Device> device = make_device();
    check_graph(operations.quantize, *device, report, options.seed, options.quick);
    check_graph(operations.silu_mul_quantize, *device, report, options.seed, options.quick);
    check_graph(operations.rms_norm_quantize, *device, report, options.seed, options.quick);
    check_graph(operations.transform_quantize, *device, report, options.seed, options.quick);
    check_tensor_core(operations.transform, *device, report, options.seed, options.quick);
    check_tensor_core(operations.transform_quantize, *device, report, options.seed, options.quick);
    check_batches(operations.matmul_w4a4, *device, report, options.seed, options.quick);
    check_batches(operations.matmul_w4a16, *device, report, options.seed, options.quick);
    check_product_graph(operations.matmul_w4a4, *device, report, options.seed, options.quick);
    check_product_graph(operations.matmul_w4a16, *device, report, options.seed, options.quick);
    check_repeats(operations.matmul_w4a4, *device, report, options.seed, options.quick);
    check_repeats(operations.matmul_w4a16, *device, report, options.seed, options.quick);
    check_chain(operations.pack_weight, operations.matmul_w4a4, *device, report, options.seed, options.quick);
    check_chain(operations.pack_weight, operations.matmul_w4a16, *device, report, options.seed,
                options.quick);
    check_range(operations.matmul_w4a16, *device, report);
}

// Without a GPU: the reference is a kernel that is right, and one that is wrong in one word of every problem.
int self_test(const Options& options, unsigned threads) {
    const Operations operations = make_operations(nullptr);
    Report right(options.filter), wrong(options.filter);
    run(operations, options, threads, right, [] { return make_host(false); });
    std::fputs(right.text().c_str(), stdout);
    const std::unique_ptr<Device> spoiling = make_host(true);
    const std::vector<Case> cases = make_cases(options.quick, options.seed);
    operations.for_each([&](const auto& operation) {
        for (const Case& c : cases) compare_with_reference(operation, c, *spoiling, wrong);
    });
    check_tensor_core(operations.transform, *spoiling, wrong, options.seed, options.quick);
    check_tensor_core(operations.transform_quantize, *spoiling, wrong, options.seed, options.quick);
    for (const Case& c : make_product_cases(options.quick, options.seed)) {
        compare_with_reference(operations.matmul_w4a4, c, *spoiling, wrong);
        compare_with_bound(operations.matmul_w4a16, c, *spoiling, wrong);
    }
    for (const Case& c : make_product_cases(options.quick, options.seed, Accumulation::tensor_core))
        compare_with_bound(operations.matmul_w4a4, c, *spoiling, wrong);
    for (const Case& c : make_product_cases(options.quick, options.seed, Accumulation::library))
        compare_with_bound(operations.matmul_w4a16, c, *spoiling, wrong);
    check_batches(operations.matmul_w4a4, *spoiling, wrong, options.seed, options.quick);
    check_batches(operations.matmul_w4a16, *spoiling, wrong, options.seed, options.quick);
    check_repeats(operations.matmul_w4a4, *spoiling, wrong, options.seed, options.quick);
    check_repeats(operations.matmul_w4a16, *spoiling, wrong, options.seed, options.quick);
    check_product_graph(operations.matmul_w4a4, *spoiling, wrong, options.seed, options.quick);
    check_product_graph(operations.matmul_w4a16, *spoiling, wrong, options.seed, options.quick);
    check_chain(operations.pack_weight, operations.matmul_w4a4, *spoiling, wrong, options.seed,
                options.quick);
    check_chain(operations.pack_weight, operations.matmul_w4a16, *spoiling, wrong, options.seed,
                options.quick);
    check_range(operations.matmul_w4a16, *spoiling, wrong);
    fmt::print("With one word altered in each of {} problems, {} were reported.\n", wrong.problems(),
               wrong.differences());
    return right.problems() > 0 && right.differences() == 0 && wrong.differences() == wrong.problems() ? 0
                                                                                                       : 1;
}

int conform(const Options& options, unsigned threads) {
    const cuda::Kernels& kernels = *cuda::halfbyte_cuda_kernels();
    const std::string reason = kernels.unavailable_reason();
    if (!reason.empty()) {
        const std::string skipped = fmt::format("no CUDA device ({})", reason);
        if (options.format == "json") {
            Report nothing(options.filter);
            nothing.skip("", "", "", skipped);
            std::fputs(nothing.json("none").c_str(), stdout);
        } else {
            fmt::print("skipped: {}\n", skipped);
        }
        return 77;
    }
    const cuda::DeviceInfo info = kernels.current_device();
    const std::string device = fmt::format("{}, compute capability {}.{}, {} multiprocessors", info.name,
                                           info.major, info.minor, info.multiprocessors);
    Report report(options.filter);
    try {
        const Operations operations = make_operations(&kernels);
        run(operations, options, threads, report, [&] { return make_gpu(info); });
        const std::unique_ptr<Device> gpu = make_gpu(info);
        check_bad_scales(operations.quantize, *gpu, report, options.seed);
        check_count_bad_scales(kernels.count_bad_scales, *gpu, report);
        if (options.quick) {
            report.skip("quantize", "", "beyond 2^31 elements", "--quick leaves it out");
            report.skip("device code", "", "all bit patterns", "--quick leaves it out");
        } else {
            check_device_code(report);
            check_large(kernels, report, options.seed, threads);
        }
    } catch (const std::exception& error) {  // the device is lost: say what was found until then
        report.add("(ended early)", "", "", 0, error.what());
    }
    if (options.format == "json") {
        std::fputs(report.json(device).c_str(), stdout);
    } else {
        fmt::print("{}\n{}", device, report.text());
    }
    if (report.problems() == 0) {
        fmt::print(stderr, "no problem ran: no line contains the filter '{}'\n", options.filter);
        return 2;
    }
    return report.differences() == 0 ? 0 : 1;
}

Options parse(int count, char** words) {
    Options options;
    for (int i = 1; i < count; i++) {
        const std::string_view word = words[i];
        const auto value = [&]() -> std::string {
            if (i + 1 == count) throw std::runtime_error(fmt::format("{} needs a value", word));
            return words[++i];
        };
        if (word == "--help") {
            options.help = true;
        } else if (word == "--quick") {
            options.quick = true;
        } else if (word == "--self-test") {
            options.self_test = true;
        } else if (word == "--filter") {
            options.filter = value();
        } else if (word == "--format") {
            options.format = value();
            if (options.format != "text" && options.format != "json")
                throw std::runtime_error(
                    fmt::format("--format is {}; text and json are possible", options.format));
        } else if (word == "--seed") {
            const std::string text = value();
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), options.seed);
            if (error != std::errc() || end != text.data() + text.size())
                throw std::runtime_error(fmt::format("--seed is {}; a whole number is needed", text));
        } else {
            throw std::runtime_error(fmt::format("{} is no option", word));
        }
    }
    return options;
}

}  // namespace
}  // namespace halfbyte::conformance

int main(int count, char** words) {
    using namespace halfbyte::conformance;
    Options options;
    try {
        options = parse(count, words);
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n{}", error.what(), usage);
        return 2;
    }
    if (options.help) {
        std::fputs(usage, stdout);
        return 0;
    }
    try {
        const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
        return options.self_test ? self_test(options, threads) : conform(options, threads);
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}
