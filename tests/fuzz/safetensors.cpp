// A safetensors file, byte for byte.
#include "checkpoint/safetensors.h"

#include "fuzz/harness.h"

using namespace halfbyte;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const fuzz::MemoryFile file(fuzz::text_of(data, size));
    fuzz::accepts([&] {
        const checkpoint::SafetensorsFile opened(file.path());
        size_t bytes = 0;
        for (const auto& [name, tensor] : opened.tensors()) {
            fuzz::touch(tensor.bytes);
            bytes += tensor.bytes.size();
            int64_t elements = 1;
            for (const int64_t dimension : tensor.shape) elements *= dimension;
            fuzz::require(elements == tensor.elements(), "a shape that its bytes do not hold",
                          tensor.shape_text());
        }
        fuzz::require(bytes <= size, "more bytes than the file has");
    });
    return 0;
}
