// A tokenizer.json, with the text that it encodes behind "@@@@ text".
#include "fuzz/model_files.h"

using namespace halfbyte;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const auto files = fuzz::files_of(fuzz::text_of(data, size));
    fuzz::use_tokenizer(files[0].content, fuzz::content_of(files, "text"), "tokenizer.json");
    return 0;
}
