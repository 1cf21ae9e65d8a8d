#include "model/decoder.h"

#include "core/check.h"
#include "model/llama.h"

namespace halfbyte::model {
namespace {

struct Family {
    std::string_view architecture;  // of config.json
    std::unique_ptr<Decoder> (*load)(const Context&, const checkpoint::Checkpoint&, Arithmetic,
                                     const Progress&);
    std::vector<std::vector<std::string>> (*linear_groups)(const checkpoint::ModelConfig&);
};

// To add a family: one file like llama.cpp and one line here.
constexpr Family families[] = {{"LlamaForCausalLM", load_llama, llama_linear_groups}};

const Family& family_of(const checkpoint::Checkpoint& source) {
    std::string known;
    for (const Family& family : families) {
        if (family.architecture == source.config().architecture) return family;
        known += (known.empty() ? "" : ", ") + std::string(family.architecture);
    }
    fail(ErrorKind::unsupported, "{}: architecture {} cannot be run; built in: {}", source.path().string(),
         checkpoint::quote(source.config().architecture), known);
}

}  // namespace

KvCache::KvCache(int64_t layers, int64_t width, int64_t capacity)
    : width_(width),
      capacity_(capacity),
      data_(std::make_unique_for_overwrite<float[]>(size_t(2 * layers * capacity * width))) {}

std::unique_ptr<Decoder> load_decoder(const Context& context, const checkpoint::Checkpoint& source,
                                      Arithmetic arithmetic, const Progress& progress) {
    return family_of(source).load(context, source, arithmetic, progress);
}

void check_architecture(const checkpoint::Checkpoint& source) {
    family_of(source);
}

void check_positions(const checkpoint::ModelConfig& config, int64_t positions, std::string_view where,
                     std::string_view advice) {
    check(positions <= config.max_positions || config.max_positions == 0, ErrorKind::usage,
          "{}{}{} positions are needed, the model's context has {}{}{}", where, where.empty() ? "" : ": ",
          positions, config.max_positions, advice.empty() ? "" : "; ", advice);
}

std::vector<std::vector<std::string>> linear_groups(const checkpoint::Checkpoint& source) {
    return family_of(source).linear_groups(source.config());
}

}  // namespace halfbyte::model
