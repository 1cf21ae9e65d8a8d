#include "cli/model_files.h"

#include <algorithm>

#include "core/check.h"
#include "model/linear.h"

namespace halfbyte::cli {

std::unique_ptr<checkpoint::Checkpoint> open_model(const CommonOptions& options, const std::string& path) {
    auto source = checkpoint::open_checkpoint(path);
    for (const std::string& warning : source->warnings()) warn(options, warning);
    return source;
}

model::Tokenizer load_tokenizer(const checkpoint::Checkpoint& source) {
    const checkpoint::CompanionFiles& files = source.companions();
    check(!files.tokenizer.empty(), ErrorKind::unsupported, "{}", files.tokenizer_problem);
    const bool folder = std::filesystem::is_directory(source.path());
    return model::Tokenizer(files.tokenizer, folder ? source.path() / "tokenizer.json" : source.path());
}

std::vector<int32_t> encode(const checkpoint::Checkpoint& source, const model::Tokenizer& tokenizer,
                            const std::string& text, bool add_special) {
    std::vector<int32_t> ids = tokenizer.encode(text, add_special);
    const int64_t vocabulary =
        source.config().vocab_size;  // 0 for an architecture that is known by name only
    for (const int32_t id : ids)
        check(vocabulary == 0 || id < vocabulary, ErrorKind::malformed,
              "{}: the tokenizer gives the id {}, the model has a vocabulary of {}; they do not belong "
              "together",
              source.path().string(), id, vocabulary);
    return ids;
}

std::string bos_token(const checkpoint::Checkpoint& source) {
    const std::string& text = source.companions().tokenizer_config;
    if (text.empty()) return {};
    const checkpoint::Json config = checkpoint::parse_json(text, source.path() / "tokenizer_config.json");
    auto found = config.is_object() ? config.find("bos_token") : config.end();
    if (!config.is_object() || found == config.end()) return {};
    if (found->is_object() && found->contains("content"))
        return (*found)["content"].is_string() ? (*found)["content"].get<std::string>() : "";
    return found->is_string() ? found->get<std::string>() : "";
}

void check_unit_scale(const checkpoint::Checkpoint& source, const std::string& path) {
    const bool any = std::any_of(source.nvfp4().begin(), source.nvfp4().end(), [&](const auto& layer) {
        return model::takes_unit_scale(source, layer.first);
    });
    check(any, ErrorKind::usage,
          "--arithmetic unit-scale: {} has no W4A4 layer with a transform of 16, 32, 64 or 128 at its input",
          path);
}

}  // namespace halfbyte::cli
