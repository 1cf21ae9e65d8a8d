// tokenizer.json and tokenizer_config.json from the metadata of a GGUF.
#pragma once

#include <string>

#include "checkpoint/gguf.h"

namespace halfbyte::checkpoint {

struct GgufTokenizer {
    std::string tokenizer, tokenizer_config;  // the texts of the two files
};

// Byte-level BPE ("gpt2") with tokenizer.ggml.pre smollm, llama-bpe or gpt-2; anything else is an Error
// (unsupported) that names it.
GgufTokenizer tokenizer_from_gguf(const GgufFile& gguf);

}  // namespace halfbyte::checkpoint
