// halfbyte's own dequantised weights, for comparison with other tools:
//   dequantize MODEL OUT bf16|f32
// makes of a model a Hugging Face folder in which each quantised layer is a dense weight of that type. The
// other tensors keep their bytes; a GGUF's block types become BF16 as everywhere in halfbyte.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "core/check.h"
#include "core/element.h"
#include "core/output_folder.h"
#include "format/e4m3.h"
#include "halfbyte/context.h"

namespace halfbyte {
namespace {

void dequantize_model(const std::string& model, const std::string& out, DType type) {
    const auto source = checkpoint::open_checkpoint(model);
    std::vector<checkpoint::TensorDeclaration> declarations;
    for (const auto& [name, tensor] : source->dense())
        declarations.push_back({name, tensor.dtype, tensor.shape});
    for (const auto& [module, linear] : source->nvfp4())
        declarations.push_back({module + ".weight", type, {linear.n, linear.k}});
    for (const auto& [module, linear] : source->fp8())
        declarations.push_back({module + ".weight", type, {linear.n, linear.k}});

    OutputFolder folder(out, false);
    checkpoint::SafetensorsWriter writer(folder.path() / "model.safetensors", declarations,
                                         {{"format", "pt"}});
    std::vector<uint8_t> bytes;
    for (const auto& [name, tensor] : source->dense()) {
        const uint8_t* data = source->read(name, 0, tensor.shape.size() == 2 ? tensor.shape[0] : 1, bytes);
        writer.write(name, {data, size_t(tensor.elements()) * size_of(tensor.dtype)});
        source->release(name);
    }
    const Context context;
    for (const auto& [module, linear] : source->nvfp4()) {
        const float D = linear.weight_scale.decode();
        bytes.resize(size_t(linear.n * linear.k) * size_of(type));
        dequantize(context, {.a = {linear.codes, linear.block_scales, NvFp4Shape::of(linear.n, linear.k)},
                             .decode_scale = &D,
                             .y = {bytes.data(), type, linear.n, linear.k, linear.k}});
        writer.write(module + ".weight", bytes);
        source->release(module);
    }
    for (const auto& [module, linear] : source->fp8()) {
        bytes.resize(size_t(linear.n * linear.k) * size_of(type));
        for (int64_t i = 0; i < linear.n * linear.k; i++)
            store_element(bytes.data(), type, i,
                          decode_e4m3(linear.weight[i]) * linear.scale[size_t(i / linear.k)]);
        writer.write(module + ".weight", bytes);
        source->release(module);
    }
    writer.finish();

    checkpoint::Json config = source->config().json;
    config["dtype"] = type == DType::bf16 ? "bfloat16" : "float32";
    config.erase("torch_dtype");
    folder.write_text("config.json", config.dump(2) + "\n");
    const checkpoint::CompanionFiles& files = source->companions();
    for (const auto& [name, content] : {std::pair{"generation_config.json", &files.generation_config},
                                        {"tokenizer.json", &files.tokenizer},
                                        {"tokenizer_config.json", &files.tokenizer_config},
                                        {"chat_template.jinja", &files.chat_template}})
        if (!content->empty()) folder.write_text(name, *content);
    folder.commit();
}

}  // namespace
}  // namespace halfbyte

int main(int count, char** arguments) {
    const std::string type = count == 4 ? arguments[3] : "";
    if (type != "bf16" && type != "f32") {
        std::fputs("usage: dequantize MODEL OUT bf16|f32\n", stderr);
        return 2;
    }
    try {
        halfbyte::dequantize_model(arguments[1], arguments[2],
                                   type == "bf16" ? halfbyte::DType::bf16 : halfbyte::DType::f32);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "dequantize: %s\n", error.what());
        return 1;
    }
    return 0;
}
