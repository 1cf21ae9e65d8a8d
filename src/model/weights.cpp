#include "model/weights.h"

#include "core/element.h"

namespace halfbyte::model {

DenseWeight::DenseWeight(const checkpoint::Checkpoint& source, const std::string& name) {
    const checkpoint::DenseTensor& tensor = source.dense().at(name);
    type_ = tensor.dtype;
    cols_ = tensor.shape.empty() ? 1 : tensor.shape.back();
    rows_ = tensor.rows();
    std::vector<uint8_t> buffer;
    mapped_ = source.read(name, 0, rows_, buffer);
    if (buffer.empty() || mapped_ != buffer.data()) return;
    owned_ = std::move(buffer);
    source.release(name);
}

void DenseWeight::row_to_float(int64_t row, float* out) const {
    const auto widen = [&](DType type) {  // a constant, which the loop is made for
        for (int64_t i = 0; i < cols_; i++) out[i] = load_element(data(), type, row * cols_ + i);
    };
    if (type_ == DType::bf16) return widen(DType::bf16);
    widen(type_);
}

}  // namespace halfbyte::model
