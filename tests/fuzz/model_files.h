// What is done with a checkpoint that has been opened and with its texts: everything in it is read once.
#pragma once

#include <cmath>

#include "checkpoint/checkpoint.h"
#include "fuzz/harness.h"
#include "model/chat.h"
#include "model/tokenizer.h"

namespace halfbyte::fuzz {

inline void use(const checkpoint::Checkpoint& model) {
    const auto is_whole = [](int64_t bytes) { return bytes >= 0 && bytes <= 1 << 20; };
    std::vector<uint8_t> buffer;
    for (const auto& [name, tensor] : model.dense()) {
        const int64_t rows = tensor.shape.size() < 2 ? 1 : tensor.shape[0];
        const int64_t bytes = tensor.elements() * int64_t(size_of(tensor.dtype));
        require(is_whole(bytes), "a tensor larger than any input", name);
        touch({model.read(name, 0, rows, buffer), size_t(rows > 0 ? bytes : 0)});
        if (rows > 1) touch({model.read(name, rows - 1, 1, buffer), size_t(bytes / rows)});
        require(!model.stored_format(name).empty(), "a tensor without a format", name);
        model.release(name);
    }
    for (const auto& [name, linear] : model.nvfp4()) {
        touch({linear.codes, size_t(linear.n * (linear.k / 2))});
        touch({linear.block_scales, size_t(linear.n * (linear.k / 16))});
        model.release(name);
    }
    for (const auto& [name, linear] : model.fp8()) {
        touch({linear.weight, size_t(linear.n * linear.k)});
        require(int64_t(linear.scale.size()) == linear.n, "scales of another number of rows", name);
        model.release(name);
    }
    const auto use_list = [](const std::vector<std::shared_ptr<const checkpoint::NamedTransform>>& list) {
        for (const auto& named : list) {
            const Transform& transform = named->transform;
            require(transform.n > 0 && transform.scale > 0, "a transform of no size", named->scheme);
            require(transform.matrix.empty() || int64_t(transform.matrix.size()) == transform.n * transform.n,
                    "a matrix of another size", named->scheme);
            for (const float value : transform.matrix)
                require(std::isfinite(value), "a matrix that is not finite", named->scheme);
        }
    };
    for (const auto& [module, at] : model.transforms().linear) use_list(at.input), use_list(at.output);
    for (const auto& [module, at] : model.transforms().attention) use_list(at.q), use_list(at.k);
    require(model.weight_bytes() <= model.file_bytes(), "more weights than bytes of files");
    require(!model.description().empty(), "no description");
}

inline void use_chat_template(std::string_view text) {
    if (const auto chat = model::recognise_chat_template(text))
        chat->render({{"user", "Hello"}, {"assistant", "Hi"}}, true);
}

// The tokenizer on a text, and back. The text is cut to a length at which the steepest pattern stays quick.
inline void use_tokenizer(std::string_view json, std::string_view text, std::string_view name) {
    accepts([&] {
        const model::Tokenizer tokenizer(json, name);
        for (const bool special : {false, true}) {
            accepts([&] {
                const std::vector<int32_t> ids = tokenizer.encode(text.substr(0, 300), special);
                for (const int32_t id : ids)
                    require(id < tokenizer.size() && tokenizer.contains(id), "an id of no token");
                for (const bool skip : {false, true}) tokenizer.decode(ids, skip);
            });
        }
        require(!tokenizer.id_of("") || tokenizer.size() > 0, "a token, but no size");
    });
}

}  // namespace halfbyte::fuzz
