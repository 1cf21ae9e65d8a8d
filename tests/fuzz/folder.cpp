// A Hugging Face folder: model.safetensors.index.json, the shards that it names, config.json and the other
// texts. Of a file .safetensors the first line is the header and the rest the data; its length is put before
// it.
#include "checkpoint/safetensors.h"
#include "fuzz/model_files.h"
#include "support/temporary_folder.h"

using namespace halfbyte;

namespace {

// Only files inside the folder.
bool is_plain(std::string_view name) {
    const auto plain = [](char c) { return (c >= '0' && c <= 'z') || c == '-' || c == '.'; };
    return !name.empty() && name.size() <= 64 && name != "." && name != ".." &&
           std::all_of(name.begin(), name.end(), plain);
}

std::string with_length(std::string_view file) {
    const uint64_t length = std::min(file.find('\n'), file.size());
    return std::string(reinterpret_cast<const char*>(&length), sizeof length)
        .append(file.substr(0, length))
        .append(file.substr(std::min<size_t>(length + 1, file.size())));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const test::TemporaryFolder folder;
    std::vector<std::filesystem::path> written;
    for (const auto& [name, content] : fuzz::files_of(fuzz::text_of(data, size))) {
        if (!is_plain(name) || written.size() == 16) continue;
        written.push_back(folder / name);
        test::write_file(written.back(), name.ends_with(".safetensors") ? with_length(content) : content);
    }
    const bool is_model = fuzz::accepts([&] {
        const auto model = checkpoint::open_checkpoint(folder.path());
        fuzz::use(*model);
        fuzz::use_chat_template(model->companions().chat_template);
        if (!model->companions().tokenizer.empty())
            fuzz::use_tokenizer(model->companions().tokenizer, "It's 1 text.", "tokenizer.json");
    });
    if (!is_model) {
        fuzz::accepts([&] {
            const checkpoint::SafetensorsFolder opened(folder.path());
            for (const auto& [name, tensor] : opened.tensors()) fuzz::touch(tensor.bytes);
        });
    }
    for (const auto& file : written) std::filesystem::remove(file);
    return 0;
}
