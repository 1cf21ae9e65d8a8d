// quantization_config.transform_config of compressed-tensors: block transforms that were folded into the
// weights or are left to run time. docs/formats.md has the schema; a module M and a scheme S with a matrix at
// run time have
//   M.S_LOCATION.weight   F64, F32, BF16 or F16 [n, n], stored once for all modules of one scheme and size
//   M.S_LOCATION.perm     I64 [n], with "randomize": true
// With y = x W^T, the location and what is done there, block after block of n:
//   input         x <- c x T          output         y <- c y T    (behind the bias)
//   q_attn        q <- c q T          k_cache        k <- c k T    (behind RoPE, every head)
//   weight_input  W <- c W T^T        weight_output  W <- c T^T W  (done before the file was written)
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/module_pattern.h"
#include "checkpoint/safetensors.h"
#include "transform/square_matrix.h"

namespace halfbyte::checkpoint {

// What transforms act on. An embedding takes ids in and gives `out` numbers; an attention has both of
// head_dim.
struct TransformModule {
    enum class Kind { linear, embedding, attention } kind = Kind::linear;
    int64_t in = 0, out = 0;
};

class TransformConfig {
  public:
    TransformConfig() = default;  // no transform
    // Error (malformed) for a wrong type or value, (unsupported) for a field, type or location that is not
    // known, by name.
    TransformConfig(const Json& json, const std::filesystem::path& file);
    bool empty() const { return schemes_.empty(); }
    // Whether a tensor is called like the matrix of a transform at run time.
    static bool names_matrix(std::string_view tensor);

    // The tensors of the transforms that are left to run time, taken out of the map.
    std::map<std::string, TensorView> take_tensors(std::map<std::string, TensorView>& tensors) const;

    // The transforms of all modules; `matrices` is what take_tensors gave. Error (malformed) that names
    // module and tensor: a block that does not divide, a matrix that is missing, not square, not finite,
    // without a usable inverse (Inversion), no Hadamard matrix where the scheme says so, or of a module that
    // has no transform; a transform at run time whose targets match no module; and two sides of one scheme
    // that undo each other but cover different modules. Warnings: single targets and ignore patterns that
    // match nothing, folded transforms of nothing, an empty apply, an input that nothing undoes.
    Transforms read(const std::map<std::string, TransformModule>& modules,
                    const std::map<std::string, TensorView>& matrices,
                    std::vector<std::string>& warnings) const;

  private:
    struct Location {
        std::string_view name;
        bool online, attention;
        bool input;  // acts on the width `in`
    };
    static const Location locations[6];

    struct Patterns {
        std::map<std::string, bool, std::less<>> names;  // of modules and classes; whether it has matched
        std::vector<std::pair<ModulePattern, bool>> expressions;
        // Tries every pattern, so that those that match nothing are known at the end.
        bool match(std::string_view module, std::string_view class_name);
        std::vector<std::string> unmatched() const;
    };
    struct Entry {
        std::string where;
        const Location* location = nullptr;
        bool inverse = false;
        Patterns targets, ignore;
    };
    struct Scheme {
        std::string where, name, type;
        std::optional<int64_t> block;
        bool randomize = false, one_per_module = false;
        std::vector<Entry> entries;
    };
    struct Reader;
    // The modules that the entries of one scheme act on, by location and inverse.
    using Coverage = std::map<std::pair<std::string_view, bool>, std::set<std::string>>;

    static void check_sides(const Scheme& scheme, const Coverage& coverage,
                            const std::vector<std::string>& unmatched);
    void warn_of_inputs_not_undone(const std::map<const Scheme*, Coverage>& coverages,
                                   const Transforms& transforms, std::vector<std::string>& warnings) const;
    static const std::string* module_of_other_kind(const std::map<std::string, TransformModule>& modules,
                                                   const std::string& target, const Entry& entry);
    void add_scheme(const std::string& name, const Json& json);
    Patterns patterns(const Json* json, const std::string& where);

    std::filesystem::path file_;
    std::vector<Scheme> schemes_;
    size_t entries_ = 0, expressions_ = 0;
};

// The likely cause of a tensor MODULE.SCHEME_LOCATION.weight that nothing else explains.
inline constexpr const char* stray_matrix =
    "the matrix of a transform that transform_config does not mention?";

// A matrix as a tensor has it. Error (malformed): no [n, n], or not finite in FP32; n > 0.
SquareMatrix matrix_of(const TensorView& tensor, int64_t n);

// How an orthogonal matrix is stored: entries +-1 for c = fl(1 / sqrt(n)), as all newer files have it, or
// rows of norm 1 for c = 1. Decided on the data; `orthogonality_error` is that of c M. Error (malformed) with
// the numbers for any other matrix.
struct Normalisation {
    float c = 1;
    double orthogonality_error = 0;
};
Normalisation normalisation_of(const TensorView& tensor, const SquareMatrix& M);

}  // namespace halfbyte::checkpoint
