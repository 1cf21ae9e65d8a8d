#include "quantizer/rotated_checkpoint.h"

#include <algorithm>
#include <cmath>

#include "backend/context_state.h"
#include "checkpoint/nvfp4_tensors.h"
#include "core/check.h"
#include "core/element.h"
#include "quantizer/quantize_checkpoint.h"

namespace halfbyte::quantizer {

using checkpoint::Checkpoint;
using checkpoint::DenseTensor;

namespace {

RotationPlan checked_plan(const Checkpoint& source, const TransformOptions& options) {
    check_dense(source);
    return plan_rotation(source, options);
}

}  // namespace

RotatedCheckpoint::RotatedCheckpoint(const Context& context, const Checkpoint& source,
                                     const TransformOptions& options)
    : context_(context),
      source_(source),
      plan_(checked_plan(source, options)),
      config_(source.config()),
      dense_(source.dense()) {
    if (plan_.unties) {
        config_.tie_word_embeddings = false;
        config_.json["tie_word_embeddings"] = false;
    }
    for (const auto& [name, fold] : plan_.folds)
        dense_[name] = {DType::f32, source.dense().at(fold.source).shape};
}

const std::string& RotatedCheckpoint::source_name(const std::string& name) const {
    const auto fold = plan_.folds.find(name);
    return fold == plan_.folds.end() ? name : fold->second.source;
}

DType RotatedCheckpoint::file_type(const std::string& name) const {
    return source_.dense().at(source_name(name)).dtype;
}

std::string RotatedCheckpoint::stored_format(const std::string& name) const {
    return source_.stored_format(source_name(name));
}

void RotatedCheckpoint::release(const std::string& name) const {
    source_.release(source_name(name));
}

const uint8_t* RotatedCheckpoint::read(const std::string& name, int64_t first_row, int64_t rows,
                                       std::vector<uint8_t>& buffer) const {
    const auto found = plan_.folds.find(name);
    if (found == plan_.folds.end()) return source_.read(name, first_row, rows, buffer);
    const TensorFold& fold = found->second;
    const DenseTensor& tensor = dense_.at(name);
    const int64_t all_rows = tensor.rows(), cols = tensor.shape.back();
    check(first_row >= 0 && rows >= 0 && rows <= all_rows - first_row, ErrorKind::usage,
          "{}: {}: rows {} to {} of {}", path().string(), name, first_row, first_row + rows, all_rows);
    if (rows == 0) return buffer.data();
    buffer.resize(size_t(rows * cols) * sizeof(float));
    float* const out = reinterpret_cast<float*>(buffer.data());
    if (!fold.output) {
        fold_rows(fold, first_row, rows, cols, out);
        return buffer.data();
    }
    if (kept_name_ != name || first_row < kept_first_ || first_row + rows > kept_first_ + kept_rows_) {
        const int64_t n = fold.output->n();
        kept_name_.clear();  // nothing is kept if folding stops
        kept_first_ = first_row / n * n;
        kept_rows_ = (first_row + rows + n - 1) / n * n - kept_first_;
        kept_.resize(size_t(kept_rows_ * cols));
        fold_rows(fold, kept_first_, kept_rows_, cols, kept_.data());
        kept_name_ = name;
    }
    std::copy_n(kept_.data() + (first_row - kept_first_) * cols, rows * cols, out);
    return buffer.data();
}

// In tiles of whole blocks, FP64: the norm's weight, the input side, the output side, one rounding to FP32.
// Each tile is one thread's, so the number of threads changes no bit.
void RotatedCheckpoint::fold_rows(const TensorFold& fold, int64_t first_row, int64_t rows, int64_t cols,
                                  float* out) const {
    if (fold.ones) {
        std::fill_n(out, rows * cols, 1.0f);
        return;
    }
    std::vector<uint8_t> buffer, norm_buffer;
    const DType type = source_.dense().at(fold.source).dtype;
    const uint8_t* const data = source_.read(fold.source, first_row, rows, buffer);
    const uint8_t* norm = nullptr;
    DType norm_type = DType::f32;
    if (!fold.norm.empty()) {
        norm = source_.read(fold.norm, 0, 1, norm_buffer);
        norm_type = source_.dense().at(fold.norm).dtype;
    }
    const int64_t block = fold.input ? fold.input->n() : 1;
    const int64_t tile_cols = std::min(cols, std::max<int64_t>(1, 256 / block) * block);
    const int64_t tile_rows = fold.output ? fold.output->n() : std::min<int64_t>(rows, 16);
    const int64_t across = (cols + tile_cols - 1) / tile_cols, down = (rows + tile_rows - 1) / tile_rows;
    std::vector<double> before(size_t(across * down)), after(size_t(across * down));  // the amax of each tile
    const auto amax = [](const std::vector<double>& values) {
        double largest = 0;
        for (const double value : values)
            if (!(std::fabs(value) <= largest)) largest = std::fabs(value);  // a NaN is not lost
        return largest;
    };
    pool_of(context_).parallel_for(across * down, 1, [&](int64_t begin, int64_t end) {
        std::vector<double> tile, scratch;
        for (int64_t t = begin; t < end; t++) {
            const int64_t row0 = t / across * tile_rows, col0 = t % across * tile_cols;
            const int64_t R = std::min(tile_rows, rows - row0), C = std::min(tile_cols, cols - col0);
            tile.resize(size_t(R * C));
            for (int64_t r = 0; r < R; r++)
                for (int64_t c = 0; c < C; c++) {
                    const double w = load_element(data, type, (row0 + r) * cols + col0 + c);
                    tile[size_t(r * C + c)] = norm ? w * double(load_element(norm, norm_type, col0 + c)) : w;
                }
            before[size_t(t)] = amax(tile);
            if (fold.input)
                for (int64_t i = 0; i < R * C; i += block) fold.input->apply(tile.data() + i, 1, scratch);
            if (fold.output) fold.output->apply(tile.data(), C, scratch);
            after[size_t(t)] = amax(tile);
            for (int64_t r = 0; r < R; r++)
                for (int64_t c = 0; c < C; c++)
                    out[(row0 + r) * cols + col0 + c] = float(tile[size_t(r * C + c)]);
        }
    });
    // Said here, before a calibration runs with such weights; too large ones of the source are not our
    // matter.
    constexpr double limit = 2688 / double(checkpoint::least_weight_scale);
    const double largest = amax(after);
    check(plan_.file.empty() || largest <= limit || !(amax(before) <= limit), ErrorKind::usage,
          "--transform {}: the inverse of the matrix takes {} to {:.4g}, and the largest weight that can be "
          "written is {:g}; multiply the matrix by {:.4g} or more",
          plan_.file.string(), fold.source, largest, limit,
          std::max(1 / plan_.file_magnitude, largest / limit));
}

}  // namespace halfbyte::quantizer
