#include "quantizer/quantize_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "backend/context_state.h"
#include "checkpoint/compressed_tensors.h"
#include "checkpoint/model_config.h"
#include "checkpoint/nvfp4_tensors.h"
#include "checkpoint/safetensors.h"
#include "core/check.h"
#include "core/element.h"
#include "core/output_folder.h"
#include "cpu/kernels.h"
#include "format/fp8_channel.h"
#include "halfbyte/version.h"
#include "model/decoder.h"
#include "quantizer/folder_readme.h"
#include "quantizer/ignore_patterns.h"
#include "quantizer/rotated_checkpoint.h"

namespace halfbyte::quantizer {
namespace {

using checkpoint::Checkpoint;
using checkpoint::DenseTensor;
using checkpoint::Scheme;

int64_t cols_of(const DenseTensor& tensor) {
    return tensor.shape.empty() ? 1 : tensor.shape.back();
}
// Counts weights, so that the time left can be told and an interrupt is seen inside large tensors.
struct Counter {
    const Progress& progress;
    std::string_view stage;
    int64_t done = 0, total = 0;

    void add(int64_t weights) { report(progress, stage, done += weights, total); }
};

// Calls use(rows, first_row) for pieces of a dense tensor of about 8 MB in FP32, and gives each piece's pages
// back.
template <typename Use>
void for_rows(const Checkpoint& source, const std::string& name, Counter& counter, const Use& use) {
    const DenseTensor& tensor = source.dense().at(name);
    const int64_t rows = tensor.rows(), cols = cols_of(tensor);
    const int64_t piece = std::max<int64_t>(1, (2 << 20) / std::max<int64_t>(1, cols));
    std::vector<uint8_t> buffer;
    for (int64_t first = 0; first < rows; first += piece) {
        const int64_t count = std::min(piece, rows - first);
        const uint8_t* data = source.read(name, first, count, buffer);
        use(ConstMatrix{data, tensor.dtype, count, cols, cols}, first);
        source.release(name);
        counter.add(count * cols);
    }
}

// The largest |w| of each row of a piece. Non-finite weights are an error naming the first place.
std::vector<float> finite_row_amax(const Context& context, const Checkpoint& source, const std::string& name,
                                   const ConstMatrix& w, int64_t first_row) {
    std::vector<float> row_amax(static_cast<size_t>(w.rows));
    context.state().kernels->largest_magnitudes(pool_of(context), w, row_amax.data());
    for (int64_t row = 0; row < w.rows; row++) {
        const auto value = [&](int64_t k) { return load_element(w.data, w.type, row * w.stride + k); };
        if (std::isfinite(row_amax[size_t(row)])) continue;
        int64_t k = 0;
        while (std::isfinite(value(k))) k++;
        const bool vector = source.dense().at(name).shape.size() < 2;
        fail(ErrorKind::failure,
             "{}: {} holds {} at [{}{}]; a checkpoint is not made from non-finite weights",
             source.path().string(), name, value(k), vector ? "" : fmt::format("{}, ", first_row + row), k);
    }
    return row_amax;
}

// That of the whole piece.
float finite_amax(const Context& context, const Checkpoint& source, const std::string& name,
                  const ConstMatrix& w, int64_t first_row) {
    float amax = 0;
    for (const float row : finite_row_amax(context, source, name, w, first_row)) amax = std::max(amax, row);
    return amax;
}

EncodeScale scale_from_amax(float amax, const std::string& where, const char* what) {
    try {
        return EncodeScale::from_amax(amax);
    } catch (const Error& error) {
        fail(ErrorKind::failure, "{}: the largest {} is {:g}, too small for a scale: {}", where, what, amax,
             error.what());
    }
}

// The sum of w^2 and of (w - decoded w)^2, FP64, rows in order.
struct Power {
    double signal = 0, noise = 0;
    Power& operator+=(const Power& other) {
        signal += other.signal;
        noise += other.noise;
        return *this;
    }
};

Power power_of(const Context& context, const ConstMatrix& w, const NvFp4View& quantized, float decode_scale) {
    std::vector<double> signal(static_cast<size_t>(w.rows)), noise(signal);
    context.state().kernels->decode_error(pool_of(context), {.w = w,
                                                             .a = quantized,
                                                             .decode_scale = decode_scale,
                                                             .signal = signal.data(),
                                                             .noise = noise.data()});
    Power total;
    for (size_t row = 0; row < signal.size(); row++) total += {signal[row], noise[row]};
    return total;
}

// E4M3 weights of [rows, K], a scale for each row.
struct Fp8Rows {
    std::vector<uint8_t> weight;
    std::vector<float> scales;
};

// Appends the rows' scales.
Power encode_fp8_rows(const Context& context, const ConstMatrix& w, const std::vector<float>& row_amax,
                      Fp8Rows& out) {
    out.weight.resize(size_t(w.rows * w.cols));
    const size_t first = out.scales.size();
    out.scales.resize(first + size_t(w.rows));
    std::vector<Power> rows(static_cast<size_t>(w.rows));
    pool_of(context).parallel_for(w.rows, 16, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const auto value = [&](int64_t k) { return load_element(w.data, w.type, row * w.stride + k); };
            const float scale = out.scales[first + size_t(row)] = fp8_channel_scale(row_amax[size_t(row)]);
            Power sum;
            for (int64_t k = 0; k < w.cols; k++) {
                const uint8_t byte = out.weight[size_t(row * w.cols + k)] = encode_fp8(value(k), scale);
                const double error = double(value(k)) - double(decode_e4m3(byte)) * double(scale);
                sum.signal += double(value(k)) * double(value(k));
                sum.noise += error * error;
            }
            rows[size_t(row)] = sum;
        }
    });
    Power total;
    for (const Power& row : rows) total += row;
    return total;
}

double snr_db(const Power& power) {
    return power.noise == 0 ? std::numeric_limits<double>::infinity()
                            : 10 * std::log10(power.signal / power.noise);
}

constexpr const char *head_module = "lm_head", *embedding = "model.embed_tokens.weight";

struct Plan {
    std::vector<std::vector<std::string>> groups;  // NVFP4 modules that share a weight scale
    std::map<std::string, Scheme> schemes;         // of every quantised module
    std::vector<std::string> unquantized;          // linear modules that stay as they are
    std::vector<std::string> warnings;
    bool unties = false;  // lm_head is quantised and reads the embedding's weights
};

// The dense tensor that holds the weights of a quantised module.
std::string weight_of(const Plan& plan, const std::string& module) {
    return plan.unties && module == head_module ? embedding : module + ".weight";
}

// A tensor of the source as it goes into the new folder, in the order in which it is written.
struct Item {
    std::string name, read;        // in the source's spelling ("M.weight"); the tensor to read
    std::optional<Scheme> scheme;  // none: stays dense
};

std::vector<Item> items_of(const Checkpoint& tensors, const Plan& plan) {
    std::map<std::string, Item> items;
    for (const auto& [name, tensor] : tensors.dense()) items[name] = {name, name, {}};
    for (const auto& [module, scheme] : plan.schemes) {
        const std::string name = module + ".weight";
        items[name] = {name, weight_of(plan, module), scheme};
    }
    std::vector<Item> list;
    for (auto& [name, item] : items) list.push_back(std::move(item));
    return list;
}

Plan make_plan(const Checkpoint& source, const QuantizeOptions& options) {
    Plan plan;
    const IgnorePatterns ignore(options.ignore);
    std::vector<std::string> all;
    int64_t split_groups = 0;
    for (const std::vector<std::string>& group : model::linear_groups(source)) {
        std::vector<std::string> kept;
        for (const std::string& module : group) {
            all.push_back(module);
            if (options.head && module == head_module) {
                check(!ignore.matches(module), ErrorKind::usage,
                      "--head quantises lm_head, which --ignore leaves as it is; leave one of the two out");
                plan.unties = !source.dense().contains(module + ".weight");
                plan.schemes.emplace(module, *options.head);
                continue;
            }
            const auto weight = source.dense().find(module + ".weight");
            const bool tied = weight == source.dense().end();  // only lm_head can be absent
            if (ignore.matches(module) || tied) {
                plan.unquantized.push_back(module);
                if (tied && !ignore.matches(module))
                    plan.warnings.push_back(
                        module +
                        " shares the embedding's weights and stays unquantised; --head quantises it");
                continue;
            }
            check(cols_of(weight->second) % 16 == 0, ErrorKind::unsupported,
                  "{}: {}.weight has K = {}; the file format needs a multiple of 16; leave it out with "
                  "--ignore {}",
                  source.path().string(), module, cols_of(weight->second), module);
            plan.schemes.emplace(module, options.scheme);
            if (options.separate_scales)
                plan.groups.push_back({module});
            else
                kept.push_back(module);
        }
        const auto ignored = int64_t(std::count_if(
            group.begin(), group.end(), [&](const std::string& module) { return ignore.matches(module); }));
        split_groups += ignored > 0 && ignored < int64_t(group.size());
        if (!kept.empty()) plan.groups.push_back(kept);
    }
    if (split_groups > 0)
        plan.warnings.push_back(
            "--ignore splits " + std::to_string(split_groups) +
            " groups of layers that engines run fused (q/k/v, gate/up); vLLM may refuse that");
    for (const std::string& pattern : ignore.unused(all))
        plan.warnings.push_back("--ignore '" + pattern + "' matches no linear layer of this model");
    // The new folder is one of the scheme, and says so: in its README, its metadata and its config.json.
    check(!plan.groups.empty(), ErrorKind::usage,
          "{}: the --ignore patterns leave no layer{} to quantise; --scheme {} needs one, ignore fewer",
          source.path().string(), options.head ? " but lm_head" : "", name_of(options.scheme));
    if (options.head == Scheme::nvfp4a16) {
        const int64_t k = cols_of(source.dense().at(weight_of(plan, head_module)));
        check(k % 16 == 0, ErrorKind::unsupported,
              "{}: lm_head has K = {}; NVFP4 needs a multiple of 16; use --head fp8, or leave --head out",
              source.path().string(), k);
        plan.groups.push_back({head_module});
    }
    return plan;
}

// What is quantised: the source's tensors, or those with transforms in them.
const Checkpoint& tensors_of(const Checkpoint& source, const QuantizeOptions& options) {
    return options.rotated ? *options.rotated : source;
}

// A tensor that stays dense keeps the source's type.
DType file_type(const Checkpoint& tensors, const QuantizeOptions& options, const std::string& name) {
    return options.rotated ? options.rotated->file_type(name) : tensors.dense().at(name).dtype;
}

uint64_t bytes_of(const MatrixTensor& tensor) {
    return tensor.matrix->values.size() * sizeof(double);
}

// At least what the new folder takes, for the check of free space.
uint64_t bytes_to_write(const Checkpoint& source, const QuantizeOptions& options, const Plan& plan) {
    uint64_t bytes = 0;
    for (const Item& item : items_of(source, plan)) {
        const uint64_t elements = uint64_t(source.dense().at(item.read).elements());
        bytes += item.scheme == Scheme::fp8a16 ? elements
                 : item.scheme                 ? elements * 9 / 16
                                               : elements * size_of(file_type(source, options, item.read));
    }
    if (options.rotated)
        for (const MatrixTensor& tensor : options.rotated->plan().tensors) bytes += bytes_of(tensor);
    const checkpoint::CompanionFiles& files = source.companions();
    for (const std::string* text :
         {&files.generation_config, &files.tokenizer, &files.tokenizer_config, &files.chat_template})
        bytes += text->size();
    return bytes;
}

std::map<std::string, std::string> file_metadata(const QuantizeOptions& options) {
    return {{"format", "pt"},
            {"tool", "halfbyte " + std::string(version)},
            {"scheme", std::string(name_of(options.scheme))}};
}

std::string scalar_bytes(float value) {
    return {reinterpret_cast<const char*>(&value), 4};
}

// generation_config.json where the source has none: the token ids of its config.json.
std::string generation_config(const checkpoint::Json& config) {
    checkpoint::Json json = checkpoint::Json::object();
    for (const char* id : {"bos_token_id", "eos_token_id", "pad_token_id"})
        if (config.contains(id) && !config[id].is_null()) json[id] = config[id];
    return json.dump(2) + "\n";
}

// The type that transformers runs the model in, whatever its tensors are stored in: compressed-tensors
// expands every quantised layer to BF16, and layers of two types are refused. Readers of transformers
// before 4.56 know the second spelling alone.
void set_dtype(checkpoint::Json& config, std::vector<std::string>& warnings) {
    for (const char* key : {"dtype", "torch_dtype"}) {
        if (config.contains(key) && config[key].is_string() && config[key] != "bfloat16")
            warnings.push_back(fmt::format(
                "{} was {} in the source's config.json and is bfloat16 now, in which other engines run it",
                key, checkpoint::quote(config[key].get<std::string>())));
        config[key] = "bfloat16";
    }
}

// The folder that the source's files lie in.
std::filesystem::path folder_of(const Checkpoint& source) {
    const auto path = std::filesystem::absolute(source.path());
    return std::filesystem::is_directory(path) ? path : path.parent_path();
}

// `inner` is `outer` or lies below it; links are followed as far as the names exist.
bool lies_in(const std::filesystem::path& inner, const std::filesystem::path& outer) {
    std::error_code error;
    const auto resolved = [&](const std::filesystem::path& path) {
        const auto whole = std::filesystem::weakly_canonical(std::filesystem::absolute(path), error);
        return whole.has_filename() ? whole : whole.parent_path();  // a slash at the end may stay
    };
    const auto in = resolved(inner), out = resolved(outer);
    return !error && std::mismatch(out.begin(), out.end(), in.begin(), in.end()).first == out.end();
}

// --force is for an earlier result, and not for a home folder or a project: every name in it must be one that
// this program writes.
void check_replaceable(const std::filesystem::path& out) {
    static const std::set<std::string> written = {"README.md",
                                                  "chat_template.jinja",
                                                  "config.json",
                                                  "generation_config.json",
                                                  "tokenizer.json",
                                                  "tokenizer_config.json",
                                                  std::string(checkpoint::index_name)};
    std::error_code error;
    if (!std::filesystem::exists(out, error) || std::filesystem::is_empty(out, error)) return;
    check(std::filesystem::exists(out / "config.json", error) &&
              (std::filesystem::exists(out / "model.safetensors", error) ||
               std::filesystem::exists(out / checkpoint::index_name, error)),
          ErrorKind::usage,
          "{}: is not replaced, since it holds no config.json and model.safetensors and so no model",
          out.string());
    for (std::filesystem::directory_iterator next(out, error), end; !error && next != end;
         next.increment(error)) {
        const std::string name = next->path().filename();
        check(written.contains(name) || (name.starts_with("model") && name.ends_with(".safetensors")),
              ErrorKind::usage, "{}: is not replaced, since it holds {}, which is not of an earlier result",
              out.string(), checkpoint::quote(name));
    }
    check(!error, ErrorKind::failure, "{}: cannot be looked at: {}", out.string(), error.message());
}

void check_output(const Checkpoint& source, const std::filesystem::path& out, bool force) {
    OutputFolder::check_place(out, force);
    const bool is_folder = std::filesystem::is_directory(source.path());
    check(!lies_in(folder_of(source), out) && !(is_folder && lies_in(out, source.path())), ErrorKind::usage,
          "{}: is the source {}, holds it or lies in it; give a folder beside it", out.string(),
          source.path().string());
    check_replaceable(out);
}

}  // namespace

void check_dense(const Checkpoint& source) {
    check(!source.scheme(), ErrorKind::usage, "{}: is quantised already ({}); a dense source is needed",
          source.path().string(), source.description());
    check(source.transforms().linear.empty() && source.transforms().attention.empty(), ErrorKind::usage,
          "{}: has transforms of its own already; a source without is needed", source.path().string());
}

void check_request(const Checkpoint& source, const std::filesystem::path& out,
                   const QuantizeOptions& options) {
    check_dense(source);
    check(source.config().rope_scaling.kind != reference::RopeScaling::Kind::divisors, ErrorKind::unsupported,
          "{}: rope_freqs.weight divides the RoPE frequencies by numbers that are not those of Llama 3.1's "
          "scaling, so that "
          "a config.json cannot say them; quantise the model's Hugging Face folder instead",
          source.path().string());
    if (!options.dry_run) check_output(source, out, options.force);
    const Checkpoint& tensors = tensors_of(source, options);
    const Plan plan = make_plan(tensors, options);
    if (!options.dry_run) check_free_space(out, bytes_to_write(tensors, options, plan));
}

QuantizeReport quantize_checkpoint(const Context& context, const Checkpoint& source,
                                   const std::optional<Calibration>& calibration,
                                   const std::filesystem::path& out, const QuantizeOptions& options,
                                   const Progress& progress) {
    check_request(source, out, options);
    check(options.scheme == Scheme::nvfp4a16 || calibration, ErrorKind::usage,
          "quantize: NVFP4 needs static input scales, and so a calibration text");
    const Checkpoint& tensors = tensors_of(source, options);
    const Plan plan = make_plan(tensors, options);
    std::optional<OutputFolder> folder;
    if (!options.dry_run) folder.emplace(out, options.force);

    // Weight scales first: a group's scale comes from the largest |w| of all its members.
    std::map<std::string, EncodeScale> weight_scales;
    Counter measured{progress, "measure"}, quantized{progress, "quantize"};
    for (const std::vector<std::string>& group : plan.groups)
        for (const std::string& module : group)
            measured.total += tensors.dense().at(weight_of(plan, module)).elements();
    const std::vector<Item> items = items_of(tensors, plan);
    for (const Item& item : items) quantized.total += tensors.dense().at(item.read).elements();
    for (const std::vector<std::string>& group : plan.groups) {
        float amax = 0;
        for (const std::string& module : group) {
            const std::string name = weight_of(plan, module);
            for_rows(tensors, name, measured, [&](const ConstMatrix& w, int64_t first_row) {
                amax = std::max(amax, finite_amax(context, tensors, name, w, first_row));
            });
        }
        const EncodeScale scale =
            scale_from_amax(amax, source.path().string() + ": " + weight_of(plan, group.front()), "weight");
        check(scale.word() >= checkpoint::least_weight_scale, ErrorKind::failure,
              "{}: the largest weight of {} is {:g}; at most {:g} can be written, since readers take the "
              "global "
              "scale of a larger one for a decode scale; leave the layers out with --ignore",
              source.path().string(), fmt::join(group, ", "), amax, 2688 / checkpoint::least_weight_scale);
        for (const std::string& module : group) weight_scales.emplace(module, scale);
    }

    QuantizeReport result;
    result.warnings = plan.warnings;
    if (const auto& folded = source.transforms().folded; !folded.empty())
        result.warnings.push_back(fmt::format(
            "{}: what its transform_config says was folded into the weights ({}) is left out of the new one",
            source.path().string(), fmt::join(folded, "; ")));
    result.head_untied = plan.unties;
    std::vector<checkpoint::TensorDeclaration> declarations;
    for (const auto& [name, tensor] : source.dense()) {
        result.source_bytes += uint64_t(tensor.elements()) * size_of(tensor.dtype);
        result.source_types.emplace(name_of(tensor.dtype));
    }
    static const std::vector<MatrixTensor> none;
    const std::vector<MatrixTensor>& matrices = options.rotated ? options.rotated->plan().tensors : none;
    for (const MatrixTensor& tensor : matrices)
        declarations.push_back({tensor.name, DType::f64, {tensor.matrix->n, tensor.matrix->n}});
    int64_t parameters = 0;
    for (const auto& [name, read, scheme] : items) {
        const DenseTensor& tensor = tensors.dense().at(read);
        const std::string module = name.substr(0, name.rfind('.'));
        parameters += tensor.elements();
        if (!scheme) {
            declarations.push_back({name, file_type(tensors, options, read), tensor.shape});
            result.dense_tensors++;
            continue;
        }
        const int64_t n = tensor.rows(), k = cols_of(tensor);
        if (scheme == Scheme::fp8a16) {
            declarations.push_back({module + ".weight", DType::f8_e4m3, {n, k}});
            declarations.push_back({module + ".weight_scale", DType::bf16, {n, 1}});
            continue;
        }
        if (scheme == Scheme::nvfp4)
            declarations.push_back({module + ".input_global_scale", DType::f32, {1}});
        declarations.push_back({module + ".weight_global_scale", DType::f32, {1}});
        declarations.push_back({module + ".weight_packed", DType::u8, {n, k / 2}});
        declarations.push_back({module + ".weight_scale", DType::f8_e4m3, {n, k / 16}});
    }

    auto files = checkpoint::split_into_files(declarations, file_metadata(options), options.max_shard_bytes);
    result.weight_files = checkpoint::weight_file_names(files.size());
    std::optional<checkpoint::SafetensorsFolderWriter> writer;
    if (folder) writer.emplace(folder->path(), std::move(files), file_metadata(options));
    const auto write = [&](const std::string& name, const void* data, size_t bytes) {
        if (writer) writer->write(name, {static_cast<const uint8_t*>(data), bytes});
    };

    uint64_t quantized_bits = 0, payload_bytes = 0;
    for (const MatrixTensor& tensor : matrices) {
        write(tensor.name, tensor.matrix->values.data(), bytes_of(tensor));
        payload_bytes += bytes_of(tensor);
    }
    int64_t quantized_weights = 0;
    std::vector<uint8_t> codes, scales, rounded;
    for (const auto& [item, name, scheme] : items) {
        const DenseTensor& tensor = tensors.dense().at(name);
        const std::string module = item.substr(0, item.rfind('.'));
        if (!scheme) {
            const DType type = file_type(tensors, options, name);
            for_rows(tensors, name, quantized, [&](const ConstMatrix& w, int64_t first_row) {
                const float amax = finite_amax(context, tensors, name, w, first_row);
                const size_t bytes = size_t(w.rows * w.cols) * size_of(type);
                if (type == w.type) {
                    write(name, w.data, bytes);
                    return;
                }
                check(std::isfinite(round_to_type(amax, type)), ErrorKind::failure,
                      "{}: {} holds {:g} behind the transform, too large for the source's {}",
                      source.path().string(), name, amax, name_of(type));
                rounded.resize(bytes);
                for (int64_t i = 0; i < w.rows * w.cols; i++)
                    store_element(rounded.data(), type, i, load_element(w.data, w.type, i));
                write(name, rounded.data(), bytes);
            });
            payload_bytes += uint64_t(tensor.elements()) * size_of(type);
            continue;
        }
        LayerReport layer = {module, tensor.rows(), cols_of(tensor), 0, {}};
        Power power;
        if (scheme == Scheme::fp8a16) {
            Fp8Rows rows;
            for_rows(tensors, name, quantized, [&](const ConstMatrix& w, int64_t first_row) {
                power +=
                    encode_fp8_rows(context, w, finite_row_amax(context, tensors, name, w, first_row), rows);
                write(module + ".weight", rows.weight.data(), rows.weight.size());
            });
            rounded.resize(size_t(layer.n) * 2);
            for (int64_t n = 0; n < layer.n; n++)
                store_element(rounded.data(), DType::bf16, n, rows.scales[size_t(n)]);
            write(module + ".weight_scale", rounded.data(), rounded.size());
            layer.snr_db = snr_db(power);
            quantized_weights += layer.n * layer.k;
            quantized_bits += uint64_t(layer.n) * uint64_t(layer.k * 8 + 16);
            result.layers.push_back(std::move(layer));
            continue;
        }
        const EncodeScale weight_scale = weight_scales.at(module);
        if (scheme == Scheme::nvfp4) {
            const auto amax = calibration->input_amax.find(module);
            check(amax != calibration->input_amax.end(), ErrorKind::failure,
                  "quantize: the calibration has not seen the input of {}", module);
            const EncodeScale input =
                scale_from_amax(amax->second, source.path().string() + ": " + module, "calibration input");
            write(module + ".input_global_scale", scalar_bytes(input.word()).data(), 4);
        }
        write(module + ".weight_global_scale", scalar_bytes(weight_scale.word()).data(), 4);

        scales.resize(size_t(layer.n * layer.k / 16));
        const float G = weight_scale.encode();
        for_rows(tensors, name, quantized, [&](const ConstMatrix& w, int64_t first_row) {
            const NvFp4Shape shape = NvFp4Shape::of(w.rows, w.cols);
            uint8_t* piece_scales = scales.data() + first_row * (layer.k / 16);
            codes.resize(size_t(shape.code_bytes()));
            quantize(context, {.x = w,
                               .encode_scale = &G,
                               .shape = shape,
                               .codes = codes.data(),
                               .block_scales = piece_scales,
                               .stats = &layer.stats});
            power += power_of(context, w, {codes.data(), piece_scales, shape}, weight_scale.decode());
            write(module + ".weight_packed", codes.data(), codes.size());
        });
        write(module + ".weight_scale", scales.data(), scales.size());
        layer.snr_db = snr_db(power);
        quantized_weights += layer.n * layer.k;
        quantized_bits += uint64_t(layer.n * layer.k) * 9 / 2 + (scheme == Scheme::nvfp4 ? 64 : 32);
        result.stats += layer.stats;
        result.layers.push_back(std::move(layer));
    }
    payload_bytes += quantized_bits / 8;
    result.bits_per_weight = 8.0 * double(payload_bytes) / double(parameters);
    result.quantized_bits_per_weight = double(quantized_bits) / double(quantized_weights);
    result.output_bytes = payload_bytes;
    source.check_unchanged();
    if (!folder) return result;

    report(progress, "finish", 0, 1);
    writer->finish();
    if (const std::string index = writer->index(); !index.empty())
        folder->write_text(checkpoint::index_name, index);
    checkpoint::Json config = tensors.config().json;
    set_dtype(config, result.warnings);
    if (plan.unties) config["tie_word_embeddings"] = false;
    config["quantization_config"] =
        checkpoint::quantization_config(options.scheme, plan.unquantized, options.head);
    if (options.rotated)
        config["quantization_config"]["transform_config"] = options.rotated->plan().transform_config;
    folder->write_text("config.json", config.dump(2) + "\n");
    const checkpoint::CompanionFiles& companions = source.companions();
    const auto write_file = [&](const char* name, const std::string& content) {
        if (content.empty())
            result.warnings.push_back(std::string(name) +
                                      " is not in the source and so not in the new folder");
        else
            folder->write_text(name, content);
    };
    write_file("generation_config.json", companions.generation_config.empty() ? generation_config(config)
                                                                              : companions.generation_config);
    write_file("tokenizer.json", companions.tokenizer);
    write_file("tokenizer_config.json", companions.tokenizer_config);
    write_file("chat_template.jinja", companions.chat_template);
    folder->write_text("README.md", folder_readme(source, result, calibration, options));
    if (options.force) check_replaceable(out);  // it may have changed since
    folder->commit(progress);
    return result;
}

}  // namespace halfbyte::quantizer
