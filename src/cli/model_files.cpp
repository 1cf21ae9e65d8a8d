#include "cli/model_files.h"

#include "core/check.h"

namespace halfbyte::cli {

model::Tokenizer load_tokenizer(const checkpoint::Checkpoint& source) {
    const checkpoint::CompanionFiles& files = source.companions();
    check(!files.tokenizer.empty(), ErrorKind::unsupported, "{}: no tokenizer: {}", source.path().string(),
          files.tokenizer_problem.empty() ? "the folder has no tokenizer.json" : files.tokenizer_problem);
    const bool folder = std::filesystem::is_directory(source.path());
    return model::Tokenizer(files.tokenizer, folder ? source.path() / "tokenizer.json" : source.path());
}

}  // namespace halfbyte::cli
