// Speed of the GPU's kernels: what a launch takes inside a CUDA graph, beside what the device's memory gives
// in the same run. Every row is first compared with the reference on sampled rows.
//   halfbyte-cuda-bench --filter quantize/linear   (built with -DHALFBYTE_BENCHMARKS=ON)
#include "products.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "format/gpu_weight.h"

namespace halfbyte::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* usage =
    "usage: halfbyte-cuda-bench [--format text|json] [--filter NAME]... [--tune] [--list] [--help]\n"
    "  --filter NAME  rows whose name contains one of the NAMEs, as --list prints it\n"
    "  --tune         only the products; at the end the lines of src/cuda/matmul_choice.h\n"
    "Exit: 0 measured, 1 a difference from the reference or an error, 2 wrong call, 77 no GPU\n";

struct Options {
    std::string format = "text";
    std::vector<std::string> filters;
    bool tune = false, list = false, help = false;

    bool wants(const std::string& name) const {
        return filters.empty() || std::any_of(filters.begin(), filters.end(), [&](const auto& filter) {
                   return name.find(filter) != std::string::npos;
               });
    }
};

struct Yardsticks {
    double copy_kernel, memcpy, read;  // TB/s, read and write counted
    double empty, empty_overlapped;    // us a launch
    double clock;                      // MHz, of a multiprocessor that spins
    double copy() const { return std::max(copy_kernel, memcpy); }
};

double terabytes_per_second(double bytes, double microseconds) {
    return bytes / microseconds * 1e-6;
}

Yardsticks measure_yardsticks(Gpu& gpu) {
    constexpr int64_t bytes = int64_t(1) << 30;
    uint8_t* memory = gpu.memory();
    const cuda::Stream stream = gpu.launch().stream;
    const auto bandwidth = [&](double moved, const auto& enqueue) {
        return terabytes_per_second(moved, gpu.time(10, [&](int64_t) { enqueue(); }));
    };
    Yardsticks found;
    found.copy_kernel = bandwidth(2.0 * bytes, [&] { copy(stream, memory, memory + bytes, bytes); });
    found.memcpy = bandwidth(2.0 * bytes, [&] {
        conformance::check_cuda(
            cudaMemcpyAsync(memory + bytes, memory, size_t(bytes), cudaMemcpyDeviceToDevice, stream),
            "cudaMemcpyAsync");
    });
    found.read = bandwidth(2.0 * bytes, [&] { read(stream, memory, 2 * bytes); });
    found.empty = gpu.time(512, [&](int64_t) { do_nothing(stream, false); });
    found.empty_overlapped = gpu.time(512, [&](int64_t) { do_nothing(stream, true); });
    found.clock = gpu.clock_mhz();
    return found;
}

Json header(const cuda::DeviceInfo& info, const Yardsticks& yardsticks) {
    int cuda_of_driver = 0;
    conformance::check_cuda(cudaDriverGetVersion(&cuda_of_driver), "cudaDriverGetVersion");
    const auto version = [](int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); };
    std::string driver = "unknown", word;  // the kernel module's: the first word with two dots
    std::ifstream file("/proc/driver/nvidia/version");
    while (driver == "unknown" && file >> word)
        if (std::count(word.begin(), word.end(), '.') == 2) driver = word;
    const std::time_t now = std::time(nullptr);
    char date[32];
    std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
    return {{"date", date},
            {"device", info.name},
            {"multiprocessors", info.multiprocessors},
            {"driver", driver},
            {"cuda_of_driver", version(cuda_of_driver)},
            {"cuda", version(CUDART_VERSION)},
            {"clock_mhz", yardsticks.clock},
            {"copy_kernel_tb_s", yardsticks.copy_kernel},
            {"copy_memcpy_tb_s", yardsticks.memcpy},
            {"read_tb_s", yardsticks.read},
            {"empty_kernel_us", yardsticks.empty},
            {"empty_overlapped_kernel_us", yardsticks.empty_overlapped}};
}

Json json_of(const Row& row, const Outcome& outcome, double copy) {
    Json json = {{"kernel", row.name}, {"shape", row.shape()}};
    if (!outcome.note.empty()) json["note"] = outcome.note;
    if (outcome.kernel.empty()) return json;
    json["implementation"] = outcome.kernel;
    if (!outcome.difference.empty()) {
        json["difference"] = outcome.difference;
        return json;
    }
    const double bytes = row.bytes_per_value * double(row.rows * row.k);
    const double bandwidth = terabytes_per_second(bytes, outcome.microseconds);
    const double saving = 100 * (1 - outcome.microseconds / outcome.other_microseconds);
    json["value"] = row.unit == Unit::terabytes      ? bandwidth
                    : row.unit == Unit::microseconds ? outcome.microseconds
                                                     : saving;
    json["unit"] = row.unit == Unit::terabytes ? "TB/s" : row.unit == Unit::microseconds ? "us" : "% saved";
    json["limit"] = row.limit > 0 ? Json(row.limit) : Json();
    if (row.limit > 0)
        json["reached"] =
            row.unit == Unit::microseconds ? json["value"] <= row.limit : json["value"] >= row.limit;
    json["us"] = outcome.microseconds;
    json["bytes"] = bytes;
    json["tb_s"] = bandwidth;
    json["share"] = bandwidth / copy;
    if (outcome.other_microseconds > 0) {
        json["other"] = outcome.other_name;
        json["other_us"] = outcome.other_microseconds;
    }
    return json;
}

void print_row(const Json& row) {
    fmt::print("{:<44} {:>11}  ", row["kernel"].get<std::string>(), row["shape"].get<std::string>());
    const std::string note = row.value("note", "");
    if (!row.contains("implementation")) {
        fmt::print("{}\n", note);
    } else if (row.contains("difference")) {
        fmt::print("{}: NOT RIGHT, not timed: {}\n", row["implementation"].get<std::string>(),
                   row["difference"].get<std::string>());
    } else {
        std::string limit, other;
        if (row.contains("reached"))
            limit =
                fmt::format("{:.2f} {} of {} {}", row["value"].get<double>(), row["unit"].get<std::string>(),
                            row["limit"].get<double>(), row["reached"].get<bool>() ? "yes" : "NO");
        if (row.contains("other"))
            other =
                fmt::format("{:.2f} us: {}", row["other_us"].get<double>(), row["other"].get<std::string>());
        fmt::print("{:9.2f} us {:10.3f} MB {:7.3f} TB/s {:6.1f} %  {:<28} {} {} {}\n",
                   row["us"].get<double>(), row["bytes"].get<double>() * 1e-6, row["tb_s"].get<double>(),
                   100 * row["share"].get<double>(), limit, row["implementation"].get<std::string>(), other,
                   note);
    }
    std::fflush(stdout);
}

Json json_of(const ProductRow& row, const ProductOutcome& outcome) {
    Json json = {{"kernel", row.operation}, {"m", row.m}, {"n", row.n}, {"k", row.k}};
    if (!outcome.note.empty()) json["note"] = outcome.note;
    if (outcome.kernel.empty()) return json;
    json["implementation"] = outcome.kernel;
    if (!outcome.difference.empty()) {
        json["difference"] = outcome.difference;
        return json;
    }
    const double flops = 2.0 * double(row.m) * double(row.n) * double(row.k);
    const double ratio = outcome.cublas_microseconds / outcome.microseconds;
    json["us"] = outcome.microseconds;
    json["tflop_s"] = flops / outcome.microseconds * 1e-6;
    json["weight_tb_s"] = terabytes_per_second(double(gpu_weight_bytes(row.n, row.k)), outcome.microseconds);
    if (outcome.cublas_microseconds > 0) {
        json["cublas_bf16_us"] = outcome.cublas_microseconds;
        json["times_cublas"] = ratio;
    }
    if (outcome.sm_mhz > 0) json["sm_mhz"] = outcome.sm_mhz, json["watts"] = outcome.watts;
    const auto target = [&](const char* name, double wanted, bool reached) {
        if (wanted > 0) json["targets"][name] = {{"limit", wanted}, {"reached", reached}};
    };
    target("us", row.target, outcome.microseconds <= row.target);
    target("times_cublas", row.ratio, ratio >= row.ratio);
    target("tflop_s", row.teraflops, flops / outcome.microseconds * 1e-6 >= row.teraflops);
    return json;
}

void print_product(const Json& row) {
    fmt::print("{:<24} {:>5} x {:>5} x {:>5}  ", row["kernel"].get<std::string>(), row["m"].get<int64_t>(),
               row["n"].get<int64_t>(), row["k"].get<int64_t>());
    const std::string note = row.value("note", "");
    if (!row.contains("implementation")) {
        fmt::print("{}\n", note);
    } else if (row.contains("difference")) {
        fmt::print("{}: NOT RIGHT, not timed: {}\n", row["implementation"].get<std::string>(),
                   row["difference"].get<std::string>());
    } else {
        std::string targets;
        const Json wanted = row.value("targets", Json::object());
        for (const auto& [name, target] : wanted.items())
            targets += fmt::format("{} {} {}  ", name, target["limit"].get<double>(),
                                   target["reached"].get<bool>() ? "yes" : "NO");
        fmt::print(
            "{:9.2f} us {:6.2f} x cuBLAS {:7.1f} TFLOP/s {:6.3f} TB/s {:5.0f} MHz {:4.0f} W  {:<28} {}{}\n",
            row["us"].get<double>(), row.value("times_cublas", 0.0), row["tflop_s"].get<double>(),
            row["weight_tb_s"].get<double>(), row.value("sm_mhz", 0.0), row.value("watts", 0.0),
            row["implementation"].get<std::string>(), targets, note);
    }
    std::fflush(stdout);
}

int measure(const Options& options, const std::vector<Row>& rows, const std::vector<ProductRow>& products) {
    const cuda::Kernels& kernels = *cuda::halfbyte_cuda_kernels();
    const bool text = options.format == "text";
    const std::string reason = kernels.unavailable_reason();
    if (!reason.empty()) {
        if (text)
            fmt::print("skipped: no CUDA device ({})\n", reason);
        else
            fmt::print("{}\n", Json{{"skipped", "no CUDA device"}, {"reason", reason}}.dump(2));
        return 77;
    }
    Gpu gpu(kernels.current_device());
    const Yardsticks yardsticks = measure_yardsticks(gpu);
    Json report = header(gpu.info(), yardsticks);
    if (text) {
        for (const auto& [name, value] : report.items()) fmt::print("{}: {}\n", name, value.dump());
        fmt::print(
            "\nShares are of the faster copy, {:.3f} TB/s; bytes are algorithmic ones.\n{:<44} {:>11} "
            "{:>13} {:>13} {:>12} {:>8}  {:<28} kernel\n",
            yardsticks.copy(), "row", "shape", "a launch", "bytes", "bandwidth", "share", "limit");
    }
    report["rows"] = Json::array();
    bool right = true;
    const auto add = [&](const Row& row, const Outcome& outcome) {
        right &= outcome.difference.empty();
        report["rows"].push_back(json_of(row, outcome, yardsticks.copy()));
        if (text) print_row(report["rows"].back());
    };
    for (const Row& row : rows) {
        try {
            for (const Outcome& outcome : row.run({gpu, kernels})) add(row, outcome);
        } catch (const std::exception& error) {  // the device may be lost: what was measured until then
            add(row, {.kernel = "(ended here)", .difference = error.what()});
            break;
        }
    }
    std::vector<std::pair<ProductRow, std::vector<ProductOutcome>>> results;
    report["products"] = Json::array();
    const auto add_product = [&](const ProductRow& row, const std::vector<ProductOutcome>& outcomes) {
        results.emplace_back(row, outcomes);
        for (const ProductOutcome& outcome : outcomes) {
            right &= outcome.difference.empty();
            report["products"].push_back(json_of(row, outcome));
            if (text) print_product(report["products"].back());
        }
    };
    try {
        run_products({gpu, kernels}, products, add_product);
    } catch (const std::exception& error) {
        add_product({.operation = "(ended here)"}, {{.kernel = "(none)", .difference = error.what()}});
    }
    if (options.tune)
        for (const char* operation : {"matmul_w4a4", "matmul_w4a16"}) {
            report["tuning"][operation] = tuning_lines(operation, results);
            if (text) fmt::print("{}\n{}", operation, report["tuning"][operation].get<std::string>());
        }
    if (right) report["clock_mhz_after"] = gpu.clock_mhz();
    if (!text)
        fmt::print("{}\n", report.dump(2));
    else if (right)
        fmt::print("clock_mhz_after: {}\n", report["clock_mhz_after"].dump());
    return right ? 0 : 1;
}

Options parse(int count, char** words) {
    Options options;
    for (int i = 1; i < count; i++) {
        const std::string word = words[i];
        if (word == "--tune") {
            options.tune = true;
        } else if (word == "--list") {
            options.list = true;
        } else if (word == "--help" || word == "-h") {
            options.help = true;
        } else if (word == "--filter" || word == "--format") {
            if (i + 1 == count) throw std::runtime_error(fmt::format("{} needs a value", word));
            if (word == "--filter")
                options.filters.emplace_back(words[++i]);
            else
                options.format = words[++i];
        } else {
            throw std::runtime_error(fmt::format("{} is no option", word));
        }
    }
    if (options.format != "text" && options.format != "json")
        throw std::runtime_error(fmt::format("--format is {}; text and json are possible", options.format));
    return options;
}

}  // namespace
}  // namespace halfbyte::bench

int main(int count, char** words) {
    using namespace halfbyte::bench;
    Options options;
    std::vector<Row> rows = make_rows();
    std::vector<ProductRow> products = make_product_rows();
    try {
        options = parse(count, words);
        std::erase_if(rows, [&](const Row& row) { return options.tune || !options.wants(row.full_name()); });
        std::erase_if(products, [&](const ProductRow& row) { return !options.wants(row.full_name()); });
        if (rows.empty() && products.empty())
            throw std::runtime_error("no row's name contains a filter; --list prints the names");
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n{}", error.what(), usage);
        return 2;
    }
    if (options.help) {
        fmt::print("{}", usage);
        return 0;
    }
    if (options.list) {
        for (const Row& row : rows) fmt::print("{}\n", row.full_name());
        for (const ProductRow& row : products) fmt::print("{}\n", row.full_name());
        return 0;
    }
    try {
        return measure(options, rows, products);
    } catch (const std::exception& error) {  // the device is lost, or its memory is too small
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}
