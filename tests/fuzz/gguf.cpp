// A GGUF, byte for byte: the model in it, or if it holds none its tensors and the tokenizer.
#include "checkpoint/gguf.h"

#include "checkpoint/gguf_tokenizer.h"
#include "fuzz/model_files.h"

using namespace halfbyte;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view input = fuzz::text_of(data, size);
    const fuzz::MemoryFile file(input);
    const std::string_view text = input.substr(input.size() - std::min<size_t>(input.size(), 64));
    const bool is_model = fuzz::accepts([&] {
        const auto model = checkpoint::open_checkpoint(file.path());
        fuzz::use(*model);
        fuzz::use_chat_template(model->companions().chat_template);
        if (!model->companions().tokenizer.empty())
            fuzz::use_tokenizer(model->companions().tokenizer, text, "t.gguf");
    });
    fuzz::accepts([&] {
        const checkpoint::GgufFile opened(file.path());
        for (const auto& [name, tensor] : opened.tensors()) {
            fuzz::touch(tensor.bytes);
            int64_t elements = 1;
            for (const int64_t dimension : tensor.shape) elements *= dimension;
            fuzz::require(checkpoint::gguf_bytes(tensor.type, elements) == int64_t(tensor.bytes.size()),
                          "a shape that its bytes do not hold", name);
            std::vector<float> values(elements);
            checkpoint::dequantize_gguf(tensor, 0, elements, values.data());
        }
        if (is_model) return;
        const auto made = checkpoint::tokenizer_from_gguf(opened);
        fuzz::use_tokenizer(made.tokenizer, text, "t.gguf");
        checkpoint::parse_json(made.tokenizer_config, "t.gguf");
    });
    return 0;
}
