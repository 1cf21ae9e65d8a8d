// halfbyte bench: the speed of a model or of the kernels, each row beside the limit of the machine that holds
// for it, measured in the same run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <iterator>
#include <regex>
#include <set>

#include "bench/limits.h"
#include "bench/model.h"
#include "bench/rows.h"
#include "cli/command.h"
#include "cli/model_files.h"
#include "core/check.h"
#include "core/proc.h"
#include "core/thread_pool.h"
#include "halfbyte/version.h"

namespace halfbyte::cli {
namespace {

constexpr int max_threads = 4096;

struct Options {
    CommonOptions common;
    std::string subject = "model", model, arithmetic = "kernel", filter;
    std::vector<int> threads;
    bench::ModelOptions bench;
    double min_time = 0.5;
};

// ---- values of options

// "1,4": numbers of threads, each once. The option takes the whole text, since CLI11 drops what is empty
// between commas.
std::vector<int> parse_threads(const std::string& text) {
    std::vector<int> numbers;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        const std::string part = text.substr(begin, end - begin);
        int number = 0;
        const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), number);
        if (error != std::errc() || rest != part.data() + part.size() || number < 1 || number > max_threads)
            throw CLI::ConversionError(
                fmt::format("--threads {}: {} stands where a whole number, 1 to {}, is needed", text,
                            part.empty() ? "nothing" : "'" + part + "'", max_threads));
        if (std::ranges::find(numbers, number) != numbers.end())
            throw CLI::ConversionError(
                fmt::format("--threads {}: {} is given twice; give each number once", text, number));
        numbers.push_back(number);
        begin = end + 1;
    }
    return numbers;
}

// Empty, or what is wrong. CLI11's own range takes nan.
std::string seconds_problem(const std::string& text) {
    double seconds = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, seconds);
    const bool right = error == std::errc() && rest == end && seconds >= 0 && seconds <= 3600;
    return right ? "" : fmt::format("{}: a number of seconds, 0 to 3600, is needed", text);
}

// ---- one table in three forms, a row at a time

struct Column {
    const char* name;
    size_t width;
    bool left = false;
};

// What is the same in every row. Text and md say it in lines above the table, csv, where every line is a row,
// in columns behind the others.
struct Constant {
    const char* name;
    std::string value;
};

std::string csv_cell(const std::string& text) {
    if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
    return '"' + CLI::detail::find_and_replace(text, "\"", "\"\"") + '"';
}

class Table {
  public:
    Table(std::string format, std::vector<Column> columns, const std::vector<Constant>& constants)
        : format_(std::move(format)), columns_(std::move(columns)) {
        std::vector<std::string> names;
        for (const Column& column : columns_) names.emplace_back(column.name);
        if (format_ == "csv") {
            for (const Constant& constant : constants) names.emplace_back(constant.name);
            print(names);
            for (const Constant& constant : constants) end_of_row_ += "," + csv_cell(constant.value);
            return;
        }
        print(names);
        if (format_ == "md") {
            for (const Column& column : columns_) fmt::print("|{}", column.left ? " --- " : " ---: ");
            fmt::print("|\n");
        }
    }
    void print(const std::vector<std::string>& cells) const {
        std::string line;
        for (size_t i = 0; i < cells.size(); i++) {
            if (format_ == "csv") {
                line += (i == 0 ? "" : ",") + csv_cell(cells[i]);
                continue;
            }
            const Column& column = columns_[i];
            if (format_ == "md")
                line += "| " + cells[i] + " ";
            else
                line += fmt::format("{}{:{}}", i == 0 ? "" : "  ",
                                    column.left ? cells[i] : fmt::format("{:>{}}", cells[i], column.width),
                                    column.width);
        }
        if (format_ == "md") line += "|";
        while (line.ends_with(' ')) line.pop_back();
        line += end_of_row_;
        fmt::print("{}\n", line);
        flush_results();
    }

  private:
    std::string format_;
    std::vector<Column> columns_;
    std::string end_of_row_;  // of csv
};

std::string number(double value) {
    return fmt::format("{:.{}f}", value, value < 10 ? 3 : value < 100 ? 2 : 1);
}
std::string number_or_none(double value) {
    return value > 0 ? number(value) : "";
}

// ---- the machine

std::string date() {
    const std::time_t now = std::time(nullptr);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
    return text;
}

struct NamedLimit {
    const char* name;
    const char* key;
    const char* unit;
    const bench::Limit* limit;  // null: the level has none
};
std::vector<NamedLimit> named(const bench::Limits& limits) {
    return {{"memory read", "memory_read", "GB/s", &limits.memory_read},
            {"memory copy", "memory_copy", "GB/s", &limits.memory_copy},
            {"L2 read", "l2_read", "GB/s", &limits.l2_read},
            {"L2 copy", "l2_copy", "GB/s", &limits.l2_copy},
            {"int8", "int8", "GMAC/s", limits.int8 ? &*limits.int8 : nullptr},
            {"FP32", "fp32", "GMAC/s", limits.fp32 ? &*limits.fp32 : nullptr}};
}

// What can be measured with one number of threads.
struct Machine {
    std::unique_ptr<Context> context;
    std::unique_ptr<bench::LimitMeter> meter;
    bench::Limits limits;
};

std::vector<int> thread_counts(const Options& options) {
    if (!options.threads.empty()) return options.threads;
    const int usable = thread_limits().usable();
    return usable == 1 ? std::vector<int>{1} : std::vector<int>{1, usable};
}

// keep_meters: for limits that are measured again.
std::vector<Machine> measure_machine(const Options& options, bool keep_meters, const Progress& progress) {
    std::vector<Machine> machines;
    for (const int threads : thread_counts(options)) {
        CommonOptions common = options.common;
        common.threads = threads;
        Machine machine{make_context(common), nullptr, {}};
        machine.meter = std::make_unique<bench::LimitMeter>(*machine.context);
        machine.limits = machine.meter->measure(options.min_time, progress);
        for (const std::string& doubt : bench::doubts_about(machine.limits)) warn(options.common, doubt);
        if (!keep_meters) machine.meter.reset();
        machines.push_back(std::move(machine));
    }
    return machines;
}

Json header_json(const std::vector<Machine>& machines) {
    Json limits = Json::array();
    for (const Machine& machine : machines) {
        Json one = {{"threads", machine.limits.threads}};
        for (const NamedLimit& limit : named(machine.limits))
            one[limit.key] = limit.limit == nullptr ? Json(nullptr)
                                                    : Json{{"value", limit.limit->value},
                                                           {"unit", limit.unit},
                                                           {"spread", limit.limit->spread}};
        limits.push_back(one);
    }
    return {{"schema", 1},
            {"version", version},
            {"date", date()},
            {"processor", proc_value("/proc/cpuinfo", "model name")},
            {"processors_allowed", thread_limits().usable()},
            {"l2_bytes", bench::cache_sizes().l2},
            {"largest_cache_bytes", bench::cache_sizes().last_level},
            {"cpu_level", name_of(machines[0].context->level())},
            {"limits", limits}};
}

// Two paragraphs in md.
void print_header(const Options& options, const std::vector<Machine>& machines,
                  const std::string& description = {}) {
    if (options.common.format == "csv") return;
    const bool md = options.common.format == "md";
    const bench::CacheSizes caches = bench::cache_sizes();
    fmt::print("halfbyte {}, {}, {}, CPU level {}, L2 {} KiB, largest cache {} MiB{}\n", version, date(),
               proc_value("/proc/cpuinfo", "model name"), name_of(machines[0].context->level()),
               caches.l2 >> 10, caches.last_level >> 20, md ? ".\n" : "");
    if (!description.empty()) {
        const char* quote = md ? "`" : "";
        fmt::print("{}{}{}: {}, arithmetic {}{}\n", quote, options.model, quote, description,
                   options.arithmetic, md ? ".\n" : "");
    }
    if (!md) fmt::print("\n");
}

std::vector<Constant> constants_of(const std::vector<Machine>& machines) {
    return {{"version", std::string(version)},
            {"date", date()},
            {"processor", proc_value("/proc/cpuinfo", "model name")},
            {"cpu_level", std::string(name_of(machines[0].context->level()))}};
}

// ---- kernels

void check_subject(const Options& options, const CLI::App& command) {
    const auto refuse = [&](std::initializer_list<const char*> names, const char* other) {
        for (const char* name : names)
            check(command.count(name) == 0, ErrorKind::usage,
                  "bench {}: {} is of 'halfbyte bench {}'; leave it out", options.subject, name, other);
    };
    if (options.subject == "kernels")
        refuse({"--model", "--prompt-tokens", "--generated-tokens", "--repeats", "--arithmetic"}, "model");
    else
        refuse({"--filter"}, "kernels");
    check(options.subject == "kernels" || options.bench.prompt + options.bench.generated > 0,
          ErrorKind::usage,
          "bench: -p 0 and -n 0 leave nothing to measure; give one of them a number of tokens");
}

std::vector<bench::Row> chosen_rows(const Options& options) {
    std::vector<bench::Row> rows = bench::all_rows();
    std::set<std::string> kernels;
    for (const bench::Row& row : rows) kernels.insert(row.kernel);
    try {
        const std::regex pattern(options.filter);
        std::erase_if(rows, [&](const bench::Row& row) { return !std::regex_search(row.name(), pattern); });
    } catch (const std::regex_error& error) {
        fail(ErrorKind::usage, "--filter {}: is not a regular expression: {}", options.filter, error.what());
    }
    check(!rows.empty(), ErrorKind::usage,
          "--filter {}: matches no row; a row is called '{}', and the kernels are {}", options.filter,
          bench::all_rows().front().name(), fmt::join(kernels, ", "));
    return rows;
}

int run_kernels(const Options& options) {
    const std::vector<bench::Row> rows = chosen_rows(options);
    const Progress progress = make_progress(options.common);
    const std::vector<Machine> machines = measure_machine(options, true, progress);
    const std::string level(name_of(machines[0].context->level()));

    const bool csv = options.common.format == "csv";
    std::optional<Table> table;
    if (!options.common.json()) {
        print_header(options, machines);
        std::vector<Column> columns = {
            {"kernel", 26, true}, {"shape", 32, true}, {"from", 6, true},   {"threads", 7}, {"value", 8},
            {"unit", 8, true},    {"limit", 8},        {"bound", 15, true}, {"share", 7},   {"spread", 6}};
        if (csv) columns.push_back({"note", 0, true});
        table.emplace(options.common.format, std::move(columns), constants_of(machines));
        for (const Machine& machine : machines)
            for (const NamedLimit& limit : named(machine.limits))
                if (limit.limit != nullptr) {
                    std::vector<std::string> cells = {"machine",
                                                      limit.name,
                                                      "",
                                                      fmt::to_string(machine.limits.threads),
                                                      number(limit.limit->value),
                                                      limit.unit,
                                                      "",
                                                      "",
                                                      "",
                                                      fmt::format("{:.1f} %", 100 * limit.limit->spread)};
                    if (csv) cells.emplace_back();
                    table->print(cells);
                }
    }
    // csv has a column for the notes; in text and md "[1]" behind the bound stands for one, told below the
    // table.
    std::vector<std::string> notes;
    const auto mark_of = [&](const std::string& note) {
        if (csv || note.empty()) return std::string();
        auto place = std::ranges::find(notes, note);
        if (place == notes.end()) place = notes.insert(place, note);
        return fmt::format(" [{}]", place - notes.begin() + 1);
    };
    Json json_rows = Json::array();
    std::string wrong;
    int64_t done = 0;
    const int64_t total = int64_t(rows.size() * machines.size());
    for (const bench::Row& row : rows) {
        const auto operation = row.make(*machines[0].context, bench::sets_of(row));
        for (const Machine& machine : machines) {
            const bench::Measurement found = bench::measure(
                row, *operation, *machine.context, machine.limits,
                [&](bench::LimitKind kind, double seconds) { return machine.meter->rate_now(kind, seconds); },
                options.min_time, [&] { report(progress, "measure kernels", done, total); });
            report(progress, "measure kernels", ++done, total);
            const int threads = machine.limits.threads;
            if (!found.difference.empty()) {
                wrong = fmt::format("{}, {} threads: {}", row.name(), threads, found.difference);
                print_error_line("halfbyte: not right and not timed: " + wrong);
            }
            if (table) {
                if (!found.difference.empty()) continue;
                const std::string note = found.limit > 0 ? row.note : "";
                std::vector<std::string> cells = {
                    row.kernel,
                    row.shape,
                    row.place(),
                    fmt::to_string(threads),
                    number(found.value),
                    row.unit,
                    number_or_none(found.limit),
                    found.bound + mark_of(note),
                    found.limit > 0 ? fmt::format("{:.1f} %", 100 * found.share) : "",
                    fmt::format("{:.1f} %", 100 * found.timing.spread)};
                if (csv) cells.push_back(note);
                table->print(cells);
                continue;
            }
            const bool bounded = found.limit > 0, right = found.difference.empty();
            Json json = {{"kernel", row.kernel},
                         {"shape", row.shape},
                         {"from", row.place()},
                         {"threads", threads},
                         {"cpu_level", level},
                         {"value", right ? Json(found.value) : Json(nullptr)},
                         {"unit", row.unit},
                         {"limit", bounded ? Json(found.limit) : Json(nullptr)},
                         {"bound", bounded ? Json(found.bound) : Json(nullptr)},
                         {"share", bounded ? Json(found.share) : Json(nullptr)},
                         {"spread", found.timing.spread},
                         {"items", row.items},
                         {"calls", found.timing.calls}};
            if (!row.note.empty()) json["note"] = row.note;
            if (!right) json["difference"] = found.difference;
            json_rows.push_back(std::move(json));
        }
    }
    for (size_t i = 0; i < notes.size(); i++) fmt::print("\n[{}] {}\n", i + 1, notes[i]);
    if (options.common.json()) {
        Json json = header_json(machines);
        json["rows"] = json_rows;
        print_json(json);
    }
    check(wrong.empty(), ErrorKind::difference,
          "bench: {} (a kernel and src/reference give different bytes; this is a defect of halfbyte)", wrong);
    return 0;
}

// ---- a model

int run_model(const Options& options) {
    const Progress progress = make_progress(options.common);
    const auto source = open_model(options.common, options.model);
    check(options.arithmetic == "kernel" || source->scheme(), ErrorKind::usage,
          "--arithmetic {}: {} is not quantised", options.arithmetic, options.model);
    bench::check_model(*source, options.bench);
    bench::ModelOptions bench_options = options.bench;
    if (options.arithmetic == "w4a16") bench_options.arithmetic = model::Arithmetic::w4a16;
    const std::vector<Machine> machines = measure_machine(options, false, progress);

    std::optional<Table> table;
    if (!options.common.json()) {
        print_header(options, machines, source->description());
        std::vector<Constant> constants = {{"model", options.model},
                                           {"description", source->description()},
                                           {"arithmetic", options.arithmetic}};
        std::ranges::copy(constants_of(machines), std::back_inserter(constants));
        table.emplace(options.common.format,
                      std::vector<Column>{{"test", 12, true},
                                          {"threads", 7},
                                          {"value", 9},
                                          {"deviation", 9},
                                          {"unit", 8, true},
                                          {"limit", 9},
                                          {"bound", 11, true},
                                          {"share", 7}},
                      constants);
        for (const Machine& machine : machines)
            for (const NamedLimit& limit : named(machine.limits))
                if (limit.limit != nullptr)
                    table->print({limit.name, fmt::to_string(machine.limits.threads),
                                  number(limit.limit->value), "", limit.unit, "", "", ""});
    }
    Json json_rows = Json::array(), loads = Json::array();
    for (const Machine& machine : machines) {
        const int threads = machine.limits.threads;
        const bench::ModelResult result =
            bench::measure_model(*machine.context, options.model, machine.limits, bench_options, progress);
        if (table) {
            const auto print = [&](const char* name, double value, const char* unit) {
                if (value > 0)
                    table->print({name, fmt::to_string(threads), number(value), "", unit, "", "", ""});
            };
            print("load", result.load_seconds, "s");
            print("first token", result.first_token_seconds, "s");
            print("peak memory", double(result.first_token_peak_bytes) / (1 << 20), "MiB");
            for (const bench::ModelRow& row : result.rows)
                table->print({row.test, fmt::to_string(threads), number(row.mean), number(row.deviation),
                              "tokens/s", number_or_none(row.limit), row.bound,
                              row.limit > 0 ? fmt::format("{:.1f} %", 100 * row.share) : ""});
            continue;
        }
        const auto known = [](uint64_t bytes) { return bytes == 0 ? Json(nullptr) : Json(bytes); };
        loads.push_back({{"threads", threads},
                         {"load_seconds", result.load_seconds},
                         {"first_token_seconds", result.first_token_seconds},
                         {"first_token_peak_memory_bytes", known(result.first_token_peak_bytes)},
                         {"peak_memory_bytes", known(result.peak_bytes)}});
        for (const bench::ModelRow& row : result.rows) {
            const bool bounded = row.limit > 0;
            json_rows.push_back({{"test", row.test},
                                 {"threads", threads},
                                 {"cpu_level", name_of(machine.context->level())},
                                 {"value", row.mean},
                                 {"deviation", row.deviation},
                                 {"samples", row.samples},
                                 {"unit", "tokens/s"},
                                 {"limit", bounded ? Json(row.limit) : Json(nullptr)},
                                 {"bound", bounded ? Json(row.bound) : Json(nullptr)},
                                 {"share", bounded ? Json(row.share) : Json(nullptr)}});
        }
    }
    if (options.common.json()) {
        Json json = header_json(machines);
        json["model"] = options.model;
        json["description"] = source->description();
        json["arithmetic"] = options.arithmetic;
        json["weight_bytes"] = source->weight_bytes();
        json["loads"] = loads;
        json["rows"] = json_rows;
        print_json(json);
    }
    return 0;
}

}  // namespace

Command add_bench(CLI::App& program) {
    auto options = std::make_shared<Options>();
    CLI::App* command = add_command(
        program, "bench", "Measure a model or the kernels, beside the limits of the machine",
        "  halfbyte bench -m MODEL.gguf -p 128 -n 32 --repeats 3\n"
        "  halfbyte bench -m OUT -p 128 -n 32 --threads 1 --arithmetic w4a16 --format json\n"
        "  halfbyte bench kernels --filter 'w4a4 M=1 .*L2' --threads 1 --format md\n"
        "  halfbyte bench kernels --filter quantize_bf16 --cpu-level scalar --min-time 0.1 --format csv",
        options->common);
    command->add_option("subject", options->subject, "What to measure")
        ->check(CLI::IsMember({"model", "kernels"}))
        ->capture_default_str();
    CLI::Option* model =
        command->add_option("-m,--model", options->model, "Of a model: Hugging Face folder or .gguf file")
            ->type_name(model_type);
    const auto tokens = CLI::Range(int64_t(0), int64_t(1) << 40);
    command
        ->add_option("-p,--prompt-tokens", options->bench.prompt,
                     "Of a model: length of the prompt that is run at once (test pp512); 0 leaves it out")
        ->check(tokens)
        ->capture_default_str();
    command
        ->add_option(
            "-n,--generated-tokens", options->bench.generated,
            "Of a model: tokens that are run one by one from an empty cache (test tg128); 0 leaves it out")
        ->check(tokens)
        ->capture_default_str();
    command
        ->add_option("--repeats", options->bench.repeats,
                     "Of a model: runs of each test, after one to warm up")
        ->check(CLI::Range(int64_t(1), int64_t(1) << 40))
        ->capture_default_str();
    command
        ->add_option(
            "--arithmetic", options->arithmetic,
            "Of a model: how quantised layers run; w4a16 leaves the activations of a W4A4 file unquantised")
        ->check(CLI::IsMember({"kernel", "w4a16"}))
        ->capture_default_str();
    command->add_option("--filter", options->filter,
                        "Of kernels: a regular expression found in 'KERNEL SHAPE L2' or '... memory'");
    command
        ->add_option("--min-time", options->min_time,
                     "Seconds to measure each limit and each kernel; 0: three calls")
        ->check(CLI::Validator([](const std::string& text) { return seconds_problem(text); },
                               "FLOAT in [0 - 3600]"))
        ->capture_default_str();
    // These two take more here than in other commands.
    for (const char* name : {"--threads", "--format"}) command->remove_option(command->get_option(name));
    const std::string group = "Common options";
    command
        ->add_option_function<std::string>(
            "--threads", [options](const std::string& text) { options->threads = parse_threads(text); },
            "Threads to use, with commas between several numbers; 1 and all that the process may use by "
            "default")
        ->type_name(fmt::format("N:N in [1 - {}]", max_threads))
        ->group(group);
    command->add_option("--format", options->common.format, "Form of the result on stdout")
        ->check(CLI::IsMember({"text", "md", "csv", "json"}))
        ->capture_default_str()
        ->group(group);
    command->parse_complete_callback([options, model] {
        if (options->subject == "model" && model->count() == 0) throw CLI::RequiredError("--model");
    });
    return {command, [options, command] {
                check_subject(*options, *command);
                return options->subject == "kernels" ? run_kernels(*options) : run_model(*options);
            }};
}

}  // namespace halfbyte::cli
