// TinyModel with random weights of a type, written to a folder and opened.
#pragma once

#include <memory>
#include <random>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/tiny_model.h"
#include "core/element.h"

namespace halfbyte::test {

// Normally distributed; a standard deviation for each tensor, so that the scales differ.
inline TinyModel random_model(DType type, unsigned seed = 1, int64_t wide = TinyModel::wide) {
    TinyModel model = TinyModel::dense();
    std::mt19937 random(seed);
    model.config["intermediate_size"] = wide;
    for (auto& [name, tensor] : model.tensors) {
        for (int64_t& size : tensor.shape)
            if (size == TinyModel::wide) size = wide;
        int64_t count = 1;
        for (const int64_t size : tensor.shape) count *= size;
        tensor.dtype = type;
        tensor.bytes.assign(size_t(count) * size_of(type), '\0');
        std::normal_distribution<float> values(0, 0.05f * float(1 + random() % 8));
        for (int64_t i = 0; i < count; i++) store_element(tensor.bytes.data(), type, i, values(random));
    }
    return model;
}

inline std::unique_ptr<checkpoint::Checkpoint> open(const TinyModel& model,
                                                    const std::filesystem::path& folder) {
    std::filesystem::create_directory(folder);
    model.write(folder);
    return checkpoint::open_checkpoint(folder);
}

}  // namespace halfbyte::test
