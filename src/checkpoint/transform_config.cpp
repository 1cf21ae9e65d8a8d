#include "checkpoint/transform_config.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <set>
#include <tuple>

#include "checkpoint/nvfp4_tensors.h"
#include "core/check.h"
#include "core/element.h"

namespace halfbyte::checkpoint {
namespace {

using Kind = TransformModule::Kind;

std::string_view class_of(Kind kind) {
    return kind == Kind::linear ? "Linear" : kind == Kind::embedding ? "Embedding" : "LlamaAttention";
}

void refuse_unknown_fields(const Json& object, std::initializer_list<std::string_view> known,
                           const std::string& where) {
    for (const auto& [key, value] : object.items())
        check(std::find(known.begin(), known.end(), key) != known.end(), ErrorKind::unsupported,
              "{}: the field {} is not known; {} are", where, quote(key), fmt::join(known, ", "));
}

void need_object(const Json& json, const std::string& where) {
    if (!json.is_object()) fail(ErrorKind::malformed, "{}: is {}; an object is needed", where, shown(json));
}

// The order of a forward pass, so that a message that names one of many modules names the first.
std::tuple<int, int64_t, int> layer_order(std::string_view module) {
    constexpr std::string_view layers = ".layers.";
    constexpr std::string_view leaves[] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                           "gate_proj", "up_proj", "down_proj"};
    const size_t found = module.find(layers);
    if (found == module.npos) return {class_of_module(module) == "Embedding" ? 0 : 2, 0, 0};
    const std::string_view rest = module.substr(found + layers.size());
    int64_t number = 0;
    std::from_chars(rest.data(), rest.data() + rest.size(), number);
    const auto leaf = std::find_if(std::begin(leaves), std::end(leaves),
                                   [&](std::string_view name) { return module.ends_with(name); });
    return {1, number, int(leaf - std::begin(leaves))};
}

// "Linear (7, first \"model.layers.0.self_attn.q_proj\") and Embedding (1, ...)" of the modules of these
// kinds.
std::string modules_text(const std::map<std::string, TransformModule>& modules,
                         std::initializer_list<Kind> kinds) {
    std::string text;
    for (const Kind kind : kinds) {
        int64_t count = 0;
        const std::string* first = nullptr;
        for (const auto& [name, module] : modules) {
            if (module.kind != kind) continue;
            count++;
            if (first == nullptr || layer_order(name) < layer_order(*first)) first = &name;
        }
        text += fmt::format("{}{} ({})", text.empty() ? "" : " and ", class_of(kind),
                            first == nullptr ? "none" : fmt::format("{}, first {}", count, quote(*first)));
    }
    return text;
}

// "a", "b", "c" and 4 more
std::string first_of(const std::vector<std::string>& texts) {
    std::string text;
    for (size_t i = 0; i < std::min<size_t>(texts.size(), 3); i++)
        text += (i == 0 ? "" : ", ") + quote(texts[i]);
    return texts.size() > 3 ? fmt::format("{} and {} more", text, texts.size() - 3) : text;
}

std::vector<std::string> in_layer_order(std::vector<std::string> modules) {
    std::stable_sort(modules.begin(), modules.end(), [](const std::string& a, const std::string& b) {
        return layer_order(a) < layer_order(b);
    });
    return modules;
}

void check_finite(const SquareMatrix& M, const std::string& what) {
    for (int64_t i = 0; i < M.n * M.n; i++) {
        const double value = M.values[size_t(i)];
        check(std::fabs(value) <= std::numeric_limits<float>::max(), ErrorKind::malformed,
              "{}: {} at [{}, {}]; the entries of a transform must be finite in FP32", what, value, i / M.n,
              i % M.n);
    }
}

// What one rounding to the type changes a number by, relative to it.
double unit_roundoff(DType type) {
    return type == DType::f64   ? 0x1p-53
           : type == DType::f32 ? 0x1p-24
           : type == DType::f16 ? 0x1p-11
                                : 0x1p-8;
}

std::vector<int64_t> permutation_of(const TensorView& tensor, int64_t n) {
    check(tensor.dtype == DType::i64 && tensor.shape == std::vector{n}, ErrorKind::malformed,
          "{}: {} {} given; the permutation of a matrix [{}, {}] is I64 [{}]", label(tensor),
          name_of(tensor.dtype), tensor.shape_text(), n, n, n);
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::memcpy(order.data(), tensor.bytes.data(), tensor.bytes.size());
    std::vector<bool> seen(order.size());
    for (const int64_t i : order) {
        check(i >= 0 && i < n && !seen[size_t(i)], ErrorKind::malformed,
              "{}: holds {} {}; each number from 0 to {} is needed once", label(tensor), i,
              i >= 0 && i < n ? "twice" : "", n - 1);
        seen[size_t(i)] = true;
    }
    return order;
}

// M[order][:, order]
SquareMatrix permuted(const SquareMatrix& M, const std::vector<int64_t>& order) {
    SquareMatrix result{M.n, {}};
    result.values.reserve(M.values.size());
    for (const int64_t i : order)
        for (const int64_t j : order) result.values.push_back(M.at(i, j));
    return result;
}

}  // namespace

const TransformConfig::Location TransformConfig::locations[6] = {
    {"input", true, false, true},         {"output", true, false, false},
    {"q_attn", true, true, false},        {"k_cache", true, true, false},
    {"weight_input", false, false, true}, {"weight_output", false, false, false}};

SquareMatrix matrix_of(const TensorView& tensor, int64_t n) {
    const DType type = tensor.dtype;
    const bool floating =
        type == DType::f64 || type == DType::f32 || type == DType::bf16 || type == DType::f16;
    check(floating && tensor.shape == std::vector{n, n}, ErrorKind::malformed,
          "{}: {} {} given; the matrix of a transform of blocks of {} is F64, F32, BF16 or F16 [{}, {}]",
          label(tensor), name_of(type), tensor.shape_text(), n, n, n);
    SquareMatrix M{n, std::vector<double>(size_t(n * n))};
    if (type == DType::f64) {
        std::memcpy(M.values.data(), tensor.bytes.data(), tensor.bytes.size());
    } else {
        for (int64_t i = 0; i < n * n; i++) M.values[size_t(i)] = load_element(tensor.bytes.data(), type, i);
    }
    check_finite(M, label(tensor));
    tensor.file->release(tensor.bytes);
    return M;
}

Normalisation normalisation_of(const TensorView& tensor, const SquareMatrix& M) {
    const bool signs =
        std::all_of(M.values.begin(), M.values.end(), [](double value) { return std::fabs(value) == 1; });
    const float c = signs ? float(1 / std::sqrt(double(M.n))) : 1.0f;
    int64_t worst = 0;
    const double error = orthogonality_error(M, double(c), &worst);
    // Signs: M M^T is exact, and c^2 n is 1 but for the rounding of c, twice. Rows of norm 1: an entry that
    // was computed in the type has two roundings, of sqrt(n) and of the quotient, so it is (1 + d) times the
    // true one with |d| <= 2u + u^2. A product of two rows then changes by at most (1 + |d|)^2 - 1 (Cauchy
    // and Schwarz), which is (1 + u)^4 - 1, and its sum of n terms in FP64 by n 2^-52.
    const double u = unit_roundoff(tensor.dtype);
    const double bound = signs ? 0x1p-22 : u * (4 + u * (6 + u * (4 + u))) + double(M.n) * 0x1p-52;
    if (!(error <= bound)) {
        double norm = 0;
        for (int64_t j = 0; j < M.n; j++) norm += M.at(worst, j) * M.at(worst, j);
        fail(ErrorKind::malformed,
             "{}: is not orthogonal: max |c^2 M M^T - 1| = {:.3g} with c = {}, at most {:.3g} is due to "
             "rounding; the worst row is {}, of norm {:.6g}. A Hadamard matrix has entries of +-1, or rows "
             "of norm 1 in old files",
             label(tensor), error, signs ? fmt::format("1/sqrt({})", M.n) : "1", bound, worst,
             std::sqrt(norm));
    }
    return {c, error};
}

bool TransformConfig::Patterns::match(std::string_view module, std::string_view class_name) {
    bool any = false;
    for (const std::string_view name : {module, class_name}) {
        if (const auto found = names.find(name); found != names.end()) any = found->second = true;
    }
    for (auto& [pattern, matched] : expressions) {
        if (pattern.match(module, class_name) != ModulePattern::Match::none) any = matched = true;
    }
    return any;
}

std::vector<std::string> TransformConfig::Patterns::unmatched() const {
    std::vector<std::string> texts;
    for (const auto& [name, matched] : names)
        if (!matched) texts.push_back(name);
    for (const auto& [pattern, matched] : expressions)
        if (!matched) texts.push_back(pattern.text());
    return texts;
}

TransformConfig::TransformConfig(const Json& json, const std::filesystem::path& file) : file_(file) {
    const std::string where = file.string() + ": transform_config";
    need_object(json, where);
    refuse_unknown_fields(json, {"config_groups"}, where);
    const Json* groups = find(json, "config_groups");
    if (says_nothing(groups)) return;
    need_object(*groups, where + ": config_groups");
    for (const auto& [name, scheme] : groups->items()) add_scheme(name, scheme);
}

void TransformConfig::add_scheme(const std::string& name, const Json& json) {
    Scheme scheme;
    scheme.where = fmt::format("{}: transform_config: scheme {}", file_.string(), quote(name));
    scheme.name = name;
    need_object(json, scheme.where);
    // randomize_modules is of version 0.10.2, block_size of some of 0.12.
    refuse_unknown_fields(json,
                          {"type", "apply", "head_dim", "block_size", "randomize", "randomize_modules",
                           "requires_grad", "precision"},
                          scheme.where);
    check(!name.empty() && name.find('.') == name.npos, ErrorKind::malformed,
          "{}: a name without a dot is needed: it is part of the names of tensors", scheme.where);
    check(find(json, "type") != nullptr, ErrorKind::malformed,
          "{}: needs type, one of hadamard, random-hadamard, random-matrix", scheme.where);
    scheme.type = text_at(json, "type", "", scheme.where);
    check(scheme.type == "hadamard" || scheme.type == "random-hadamard" || scheme.type == "random-matrix",
          ErrorKind::unsupported,
          "{}: the type {} is not supported; hadamard, random-hadamard and random-matrix are", scheme.where,
          quote(scheme.type));
    const auto head_dim = count_at(json, "head_dim", scheme.where),
               block_size = count_at(json, "block_size", scheme.where);
    check(!head_dim || !block_size || head_dim == block_size, ErrorKind::malformed,
          "{}: head_dim is {} and block_size {}; they mean the same", scheme.where, head_dim.value_or(0),
          block_size.value_or(0));
    scheme.block = head_dim ? head_dim : block_size;
    scheme.randomize = flag_at(json, "randomize", false, scheme.where);
    scheme.one_per_module = flag_at(json, "randomize_modules", false, scheme.where);
    flag_at(json, "requires_grad", false, scheme.where);
    const std::string precision = text_at(json, "precision", "torch.float32", scheme.where);
    constexpr std::string_view precisions[] = {"float64", "float32", "bfloat16", "float16"};
    check(std::any_of(std::begin(precisions), std::end(precisions),
                      [&](std::string_view known) {
                          return precision == known || precision == "torch." + std::string(known);
                      }),
          ErrorKind::unsupported, "{}: the precision {} is not supported; torch.{} are", scheme.where,
          quote(precision), fmt::join(precisions, ", torch."));

    const Json* apply = find(json, "apply");
    check(apply != nullptr, ErrorKind::malformed, "{}: needs apply, a list of targets and locations",
          scheme.where);
    if (!apply->is_array())
        fail(ErrorKind::malformed, "{}: apply is {}; a list is needed", scheme.where, shown(*apply));
    constexpr size_t limit = 128;  // each is tried on every module
    entries_ += apply->size();
    check(entries_ <= limit, ErrorKind::unsupported, "{}: more than {} entries of apply", scheme.where,
          limit);
    for (size_t i = 0; i < apply->size(); i++) {
        const Json& given = (*apply)[i];
        Entry entry;
        entry.where = fmt::format("{}: apply[{}]", scheme.where, i);
        need_object(given, entry.where);
        refuse_unknown_fields(given, {"targets", "location", "inverse", "ignore"}, entry.where);
        const std::string location = text_at(given, "location", "", entry.where);
        for (const Location& known : locations)
            if (known.name == location) entry.location = &known;
        check(entry.location != nullptr, ErrorKind::unsupported,
              "{}: the location {} is not known; input, output, weight_input, weight_output, q_attn and "
              "k_cache "
              "are",
              entry.where, quote(location));
        check(!entry.location->attention || scheme.block.has_value(), ErrorKind::malformed,
              "{}: {} needs head_dim", entry.where, location);
        entry.inverse = flag_at(given, "inverse", false, entry.where);
        const Json* targets = find(given, "targets");
        check(targets != nullptr, ErrorKind::malformed, "{}: needs targets", entry.where);
        entry.targets = patterns(targets, entry.where + ": targets");
        entry.ignore = patterns(find(given, "ignore"), entry.where + ": ignore");
        scheme.entries.push_back(std::move(entry));
    }
    schemes_.push_back(std::move(scheme));
}

TransformConfig::Patterns TransformConfig::patterns(const Json* json, const std::string& where) {
    constexpr size_t limit = 128;
    Patterns patterns;
    if (json == nullptr) return patterns;
    for (std::string& text : texts_at(*json, where)) {
        ModulePattern pattern(std::move(text), where);
        if (!pattern.is_expression()) {
            patterns.names.emplace(pattern.text(), false);
            continue;
        }
        check(++expressions_ <= limit, ErrorKind::unsupported, "{}: more than {} regular expressions", where,
              limit);
        patterns.expressions.emplace_back(std::move(pattern), false);
    }
    return patterns;
}

bool TransformConfig::names_matrix(std::string_view tensor) {
    return std::any_of(std::begin(locations), std::end(locations), [&](const Location& location) {
        return location.online && tensor.ends_with(fmt::format("_{}.weight", location.name));
    });
}

std::map<std::string, TensorView> TransformConfig::take_tensors(
    std::map<std::string, TensorView>& tensors) const {
    std::map<std::string, bool, std::less<>> online_of;  // by "SCHEME_LOCATION"
    for (const Scheme& scheme : schemes_) {
        for (const Entry& entry : scheme.entries) {
            bool& online = online_of[fmt::format("{}_{}", scheme.name, entry.location->name)];
            online = online || entry.location->online;
        }
    }
    std::map<std::string, TensorView> taken;
    if (online_of.empty()) return taken;
    for (const auto& [name, tensor] : tensors) {
        const size_t last = name.rfind('.'),
                     before = last == 0 || last == name.npos ? name.npos : name.rfind('.', last - 1);
        if (before == name.npos) continue;
        const std::string_view end = std::string_view(name).substr(last);
        if (end != ".weight" && end != ".perm") continue;
        const auto found = online_of.find(std::string_view(name).substr(before + 1, last - before - 1));
        if (found == online_of.end()) continue;
        check(
            found->second, ErrorKind::malformed,
            "{}: {} says that this transform was folded into the weights, which leaves no tensor. Was it not "
            "folded?",
            label(tensor), file_.filename().string());
        taken.emplace(name, tensor);
    }
    for (const auto& [name, tensor] : taken) tensors.erase(name);
    return taken;
}

// One reading of all schemes.
struct TransformConfig::Reader {
    // A transform at run time of one module, and where its matrix would stand.
    struct Use {
        const Scheme* scheme;
        const Entry* entry;
        std::string module, tensor;  // without ".weight" or ".perm"
        int64_t n;
    };
    // Tensors of one scheme and size, one of each content.
    struct Pool {
        std::set<const TensorView*> matrices, inverses, orders;
    };
    // The matrix that stands in the file, and whether T is its inverse.
    struct Source {
        const TensorView* matrix = nullptr;  // none: Sylvester's
        const TensorView* order = nullptr;
        bool invert = false;
        auto operator<=>(const Source&) const = default;
    };

    const TransformConfig& config;
    const std::map<std::string, TensorView>& tensors;
    std::vector<Use> uses;
    std::map<std::pair<const Scheme*, int64_t>, Pool> pools;
    std::map<std::tuple<const Scheme*, DType, std::string_view>, const TensorView*> contents;
    std::map<std::tuple<const Scheme*, int64_t, Source, bool>, std::shared_ptr<const NamedTransform>> made;

    const TensorView* find_tensor(const std::string& name) const {
        const auto found = tensors.find(name);
        return found == tensors.end() ? nullptr : &found->second;
    }
    // The first tensor of the scheme with these bytes.
    const TensorView* first_like(const Scheme& scheme, const TensorView& tensor) {
        const std::string_view bytes(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
        return contents.try_emplace({&scheme, tensor.dtype, bytes}, &tensor).first->second;
    }
    // An inverse that is stored as it is: random-matrix alone, whose inverse is not the transpose.
    static bool stores_inverse(const Use& use) {
        return use.entry->inverse && use.scheme->type == "random-matrix";
    }

    void collect_tensors() {
        std::set<std::string> known;
        for (const Use& use : uses) {
            Pool& pool = pools[{use.scheme, use.n}];
            if (const TensorView* matrix = find_tensor(use.tensor + ".weight")) {
                const std::vector<int64_t> wanted = {use.n, use.n};
                check(matrix->shape == wanted, ErrorKind::malformed,
                      "{}: shape {}; {} {} of {} has blocks of {}, so [{}, {}] is needed", label(*matrix),
                      matrix->shape_text(), use.scheme->name, use.entry->location->name, quote(use.module),
                      use.n, use.n, use.n);
                known.insert(matrix->name);
                (stores_inverse(use) ? pool.inverses : pool.matrices)
                    .insert(first_like(*use.scheme, *matrix));
            }
            const TensorView* order = find_tensor(use.tensor + ".perm");
            if (order != nullptr && use.scheme->randomize && use.scheme->type != "random-matrix") {
                known.insert(order->name);
                pool.orders.insert(first_like(*use.scheme, *order));
            }
        }
        for (const auto& [name, tensor] : tensors)
            check(known.contains(name), ErrorKind::malformed,
                  "{}: belongs to no transform: by transform_config of {} this module has none with such a "
                  "tensor",
                  label(tensor), config.file_.filename().string());
        // Under an inverse's name the matrix itself: then T is still its inverse.
        for (auto& [key, pool] : pools)
            std::erase_if(pool.inverses,
                          [&](const TensorView* tensor) { return pool.matrices.contains(tensor); });
    }

    // A module's own tensor, else the only one that other modules of the scheme and size have; null if there
    // is none.
    const TensorView* own_or_only(const Use& use, const char* leaf,
                                  const std::set<const TensorView*>& others) {
        if (const TensorView* own = find_tensor(use.tensor + leaf)) return first_like(*use.scheme, *own);
        if (others.empty()) return nullptr;
        check(others.size() == 1 && !use.scheme->one_per_module, ErrorKind::malformed,
              "{}: {} has no {} of its own, and other modules have {}; which one is meant?", use.entry->where,
              quote(use.module), quote(use.tensor + leaf),
              use.scheme->one_per_module
                  ? "one each (randomize_modules)"
                  : fmt::format("{} different ones of [{}, {}]", others.size(), use.n, use.n));
        return *others.begin();
    }

    Source source_of(const Use& use) {
        const Scheme& scheme = *use.scheme;
        const Pool& pool = pools.at({&scheme, use.n});
        const bool hadamard = scheme.type != "random-matrix";
        Source source;
        source.invert = use.entry->inverse;
        source.matrix = own_or_only(use, ".weight", stores_inverse(use) ? pool.inverses : pool.matrices);
        if (!hadamard) {
            if (source.matrix == nullptr) {  // only the other of the two is there
                source.matrix =
                    own_or_only(use, ".weight", stores_inverse(use) ? pool.matrices : pool.inverses);
                source.invert = source.matrix != nullptr &&
                                (!stores_inverse(use) || pool.matrices.contains(source.matrix));
            } else {
                source.invert = stores_inverse(use) && pool.matrices.contains(source.matrix);
            }
        }
        const bool sylvester =
            scheme.type == "hadamard" && !scheme.randomize && std::has_single_bit(uint64_t(use.n));
        check(source.matrix != nullptr || sylvester, ErrorKind::malformed,
              "{}: {} needs the matrix {} [{}, {}], and no module of this scheme has one of that size{}. Is "
              "a file "
              "missing?",
              use.entry->where, quote(use.module), quote(use.tensor + ".weight"), use.n, use.n,
              scheme.type == "hadamard"
                  ? "; without it only a hadamard of a power of two that is not randomized can be made"
                  : "");
        if (hadamard && scheme.randomize) {
            source.order = own_or_only(use, ".perm", pool.orders);
            check(source.order != nullptr, ErrorKind::malformed,
                  "{}: {} needs the permutation {} [{}], since randomize is true. Is a file missing?",
                  use.entry->where, quote(use.module), quote(use.tensor + ".perm"), use.n);
        }
        return source;
    }

    std::shared_ptr<const NamedTransform> transform_of(const Use& use) {
        const Scheme& scheme = *use.scheme;
        const Source source = source_of(use);
        auto& transform = made[{&scheme, use.n, source, use.entry->inverse}];
        if (transform != nullptr) return transform;
        auto named = std::make_shared<NamedTransform>();
        named->scheme = scheme.name;
        named->type = scheme.type;
        named->inverse = use.entry->inverse;
        if (source.matrix == nullptr) {
            named->transform = {
                .n = use.n, .matrix = {}, .signs = {}, .scale = float(1 / std::sqrt(double(use.n)))};
            const double c = double(named->transform.scale);
            named->orthogonality_error = std::fabs(c * c * double(use.n) - 1);
            return transform = named;
        }
        SquareMatrix M = matrix_of(*source.matrix, use.n);
        double c = 1;
        if (scheme.type == "random-matrix") {
            Inversion inverted = invert(M);
            check(inverted.fault().empty(), ErrorKind::malformed, "{}: {} {} of {} has a matrix that {}",
                  label(*source.matrix), scheme.name, use.entry->location->name, quote(use.module),
                  inverted.fault());
            if (source.invert) {
                M = std::move(*inverted.inverse);
                check_finite(M, label(*source.matrix) + ": its inverse");
            }
            named->orthogonality_error = orthogonality_error(M, 1);
        } else {
            const Normalisation normalisation = normalisation_of(*source.matrix, M);
            c = double(normalisation.c);
            named->orthogonality_error = normalisation.orthogonality_error;
            if (normalisation.c == 1 && use.n > 1) named->type = "normalised " + scheme.type;
            if (source.order != nullptr) M = permuted(M, permutation_of(*source.order, use.n));
            if (source.invert) M = transpose(M);
        }
        named->transform = make_transform(M.values, use.n, c);
        return transform = named;
    }
};

// The first module that a target means although the entry's location is of another kind of module; else null.
// Without this a transform that belongs to the numbers would be left out in silence.
const std::string* TransformConfig::module_of_other_kind(
    const std::map<std::string, TransformModule>& modules, const std::string& target, const Entry& entry) {
    const ModulePattern pattern(target, entry.where);
    if (!pattern.is_expression() && !modules.contains(target) && target != class_of(Kind::linear) &&
        target != class_of(Kind::embedding) && target != class_of(Kind::attention))
        return nullptr;
    for (const auto& [name, module] : modules)
        if (pattern.match(name, class_of(module.kind)) != ModulePattern::Match::none) return &name;
    return nullptr;
}

// Sides of one scheme that cancel each other: input and weight_input, output and weight_output, with the
// other value of `inverse`; q_attn and k_cache. A module that only one of them covers gives wrong logits, and
// nothing else shows it.
void TransformConfig::check_sides(const Scheme& scheme, const Coverage& coverage,
                                  const std::vector<std::string>& unmatched) {
    struct Side {
        std::string name;
        std::set<std::string> modules;
    };
    const auto compare = [&](const Side& a, const Side& b) {
        std::string text;
        for (const auto& [one, other] : {std::pair(&a, &b), {&b, &a}}) {
            std::vector<std::string> only;
            std::set_difference(one->modules.begin(), one->modules.end(), other->modules.begin(),
                                other->modules.end(), std::back_inserter(only));
            if (!only.empty())
                text += fmt::format("; only {} has {}", one->name, first_of(in_layer_order(only)));
        }
        if (!text.empty() && !unmatched.empty()) text += "; targets match no module: " + first_of(unmatched);
        check(text.empty(), ErrorKind::malformed,
              "{}: {} and {} cancel each other, so they must cover the same modules{}", scheme.where, a.name,
              b.name, text);
    };
    for (const bool inverse : {false, true}) {
        for (const auto& [online, folded] :
             {std::pair("input", "weight_input"), {"output", "weight_output"}}) {
            const auto a = coverage.find({online, inverse}), b = coverage.find({folded, !inverse});
            if (a != coverage.end() && b != coverage.end())
                compare({fmt::format("{}{}", online, inverse ? "^-1" : ""), a->second},
                        {fmt::format("{}{}", folded, inverse ? "" : "^-1"), b->second});
        }
    }
    Side q{"q_attn", {}}, k{"k_cache", {}};
    for (const auto& [place, modules] : coverage) {
        if (place.first == q.name) q.modules.insert(modules.begin(), modules.end());
        if (place.first == k.name) k.modules.insert(modules.begin(), modules.end());
    }
    compare(q, k);
}

// An input whose scheme has the same T in the weights and not its inverse, or that no scheme has in the
// weights; unless its scheme turns outputs, which may be what it undoes. No errors: T may be its own inverse,
// and the weights may have been folded without a record.
void TransformConfig::warn_of_inputs_not_undone(const std::map<const Scheme*, Coverage>& coverages,
                                                const Transforms& transforms,
                                                std::vector<std::string>& warnings) const {
    std::set<std::string> folded;
    for (const auto& [scheme, coverage] : coverages)
        for (const auto& [place, modules] : coverage)
            if (place.first == "weight_input") folded.insert(modules.begin(), modules.end());
    for (const Scheme& scheme : schemes_) {
        const Coverage& coverage = coverages.at(&scheme);
        const bool turns_outputs =
            std::any_of(scheme.entries.begin(), scheme.entries.end(), [](const Entry& entry) {
                return entry.location->name == "output" || entry.location->name == "weight_output";
            });
        std::vector<std::string> same, alone;
        for (const auto& [module, linear] : transforms.linear) {
            for (const auto& named : linear.input) {
                if (named->scheme != scheme.name) continue;
                const auto weights = coverage.find({"weight_input", named->inverse});
                const bool sylvester =  // its own inverse
                    named->transform.matrix.empty() && named->transform.signs.empty();
                if (weights != coverage.end() && weights->second.contains(module) && !sylvester)
                    same.push_back(module);
                if (!folded.contains(module) && !turns_outputs) alone.push_back(module);
            }
        }
        if (!same.empty())
            warnings.push_back(fmt::format(
                "{}: input and weight_input of {} are both {}; the one should be the inverse of the other",
                scheme.where, first_of(in_layer_order(same)),
                coverage.contains({"input", true}) ? "inverse" : "not inverse"));
        if (!alone.empty())
            warnings.push_back(
                fmt::format("{}: the input of {} is transformed at run time, and no weight_input undoes it",
                            scheme.where, first_of(in_layer_order(alone))));
    }
}

Transforms TransformConfig::read(const std::map<std::string, TransformModule>& modules,
                                 const std::map<std::string, TensorView>& matrices,
                                 std::vector<std::string>& warnings) const {
    Transforms result;
    Reader reader{*this, matrices, {}, {}, {}, {}};
    std::map<const Scheme*, Coverage> coverages;
    for (const Scheme& scheme : schemes_) {
        std::set<std::string> tensors;
        std::vector<std::string> unmatched_targets;
        Coverage& coverage = coverages[&scheme];
        if (scheme.entries.empty())
            warnings.push_back(scheme.where + ": apply is empty, so that nothing is transformed");
        for (const Entry& entry : scheme.entries) {
            const Location& location = *entry.location;
            Patterns targets = entry.targets, ignore = entry.ignore;
            std::set<std::string>& covered = coverage[{location.name, entry.inverse}];
            int64_t targeted = 0, matched = 0;
            for (const auto& [name, module] : modules) {
                const std::string_view class_name = class_of(module.kind);
                const bool ignored = ignore.match(name, class_name);
                if (location.attention != (module.kind == Kind::attention)) continue;
                if (!targets.match(name, class_name)) continue;
                targeted++;
                if (ignored) continue;
                matched++;
                covered.insert(name);
                check(module.kind != Kind::embedding || location.name != "input", ErrorKind::unsupported,
                      "{}: {} is an embedding, whose input are ids; they cannot be transformed", entry.where,
                      quote(name));
                const int64_t width = location.input ? module.in : module.out,
                              n = scheme.block.value_or(width);
                if (n <= 0 || width % n != 0)
                    fail(ErrorKind::malformed,
                         "{}: blocks of {} do not divide the {} of {} at {}; possible: {}", entry.where, n,
                         width, quote(name), location.name,
                         possible_block_sizes(width, scheme.type != "random-matrix"));
                if (!location.online) continue;
                const std::string tensor = fmt::format("{}.{}_{}", name, scheme.name, location.name);
                check(tensors.insert(tensor).second, ErrorKind::unsupported,
                      "{}: {} has this location twice in one scheme", entry.where, quote(name));
                reader.uses.push_back({&scheme, &entry, name, tensor, n});
            }
            const std::vector<std::string> unmatched = targets.unmatched();
            for (const std::string& text : unmatched) {
                const std::string* other = module_of_other_kind(modules, text, entry);
                check(other == nullptr, ErrorKind::unsupported,
                      "{}: the target {} means {}, which has no {}; {} have", entry.where, quote(text),
                      other == nullptr ? "" : quote(*other), location.name,
                      location.attention ? "attentions (\"re:.*self_attn$\")" : "linear layers");
            }
            const std::string given = unmatched.empty()
                                          ? std::string("targets are empty")
                                          : fmt::format("targets match no module: {}", first_of(unmatched));
            if (targeted == 0 && location.online)
                fail(ErrorKind::malformed,
                     "{}: {} is to be done at run time, but its {}. Modules that can be named, by class or "
                     "name: {}",
                     entry.where, location.name, given,
                     location.attention ? modules_text(modules, {Kind::attention})
                     : location.input   ? modules_text(modules, {Kind::linear})
                                        : modules_text(modules, {Kind::linear, Kind::embedding}));
            unmatched_targets.insert(unmatched_targets.end(), unmatched.begin(), unmatched.end());
            if (targeted == 0 || !unmatched.empty())
                warnings.push_back(fmt::format("{}: of {}, {}", entry.where, location.name, given));
            if (targeted > 0 && matched == 0)
                warnings.push_back(fmt::format("{}: {} of nothing, since ignore has every module of targets",
                                               entry.where, location.name));
            if (const auto unused = ignore.unmatched(); !unused.empty())
                warnings.push_back(
                    fmt::format("{}: ignore matches no module: {}", entry.where, first_of(unused)));
            if (!location.online && matched > 0)
                result.folded.push_back(fmt::format("{} {}{} ({}{}): {} module{}", scheme.name, location.name,
                                                    entry.inverse ? "^-1" : "", scheme.type,
                                                    scheme.block ? fmt::format(" {}", *scheme.block) : "",
                                                    matched, matched == 1 ? "" : "s"));
        }
        check_sides(scheme, coverage, unmatched_targets);
    }
    std::stable_sort(reader.uses.begin(), reader.uses.end(), [](const auto& a, const auto& b) {
        return layer_order(a.module) < layer_order(b.module);
    });
    reader.collect_tensors();
    for (const Reader::Use& use : reader.uses) {
        const std::string_view location = use.entry->location->name;
        auto transform = reader.transform_of(use);
        if (location == "input")
            result.linear[use.module].input.push_back(std::move(transform));
        else if (location == "output")
            result.linear[use.module].output.push_back(std::move(transform));
        else if (location == "q_attn")
            result.attention[use.module].q.push_back(std::move(transform));
        else
            result.attention[use.module].k.push_back(std::move(transform));
    }
    warn_of_inputs_not_undone(coverages, result, warnings);
    return result;
}

}  // namespace halfbyte::checkpoint
