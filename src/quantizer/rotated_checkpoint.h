// A dense checkpoint with transforms folded in: the same logits up to FP32 rounding, if what transforms()
// lists is done at run time. Tensors are folded when they are read, in FP64, and are FP32; those that nothing
// changes stay what they are in the source.
#pragma once

#include "halfbyte/context.h"
#include "quantizer/rotation.h"

namespace halfbyte::quantizer {

class RotatedCheckpoint final : public checkpoint::Checkpoint {
  public:
    // Reads no weight yet. Context and source must outlive it, and like the context it serves one thread at a
    // time, also where it is const. Errors: those of plan_rotation; (usage) a source that is quantised or has
    // transforms.
    RotatedCheckpoint(const Context& context, const checkpoint::Checkpoint& source,
                      const TransformOptions& options);

    const RotationPlan& plan() const { return plan_; }
    // The type to write a tensor in: that of the source.
    DType file_type(const std::string& name) const;

    const std::filesystem::path& path() const override { return source_.path(); }
    std::string description() const override { return source_.description() + ", rotated"; }
    const checkpoint::ModelConfig& config() const override { return config_; }
    const checkpoint::CompanionFiles& companions() const override { return source_.companions(); }
    std::optional<checkpoint::Scheme> scheme() const override { return {}; }
    const std::map<std::string, checkpoint::DenseTensor>& dense() const override { return dense_; }
    const std::map<std::string, checkpoint::NvFp4Linear>& nvfp4() const override { return source_.nvfp4(); }
    const checkpoint::Transforms& transforms() const override { return plan_.online; }
    const uint8_t* read(const std::string& name, int64_t first_row, int64_t rows,
                        std::vector<uint8_t>& buffer) const override;
    void release(const std::string& name) const override;
    void check_unchanged() const override { source_.check_unchanged(); }
    std::string stored_format(const std::string& name) const override;
    std::vector<std::filesystem::path> weight_files() const override { return source_.weight_files(); }
    uint64_t file_bytes() const override { return source_.file_bytes(); }
    uint64_t weight_bytes() const override { return source_.weight_bytes(); }
    std::vector<std::string> warnings() const override { return source_.warnings(); }

  private:
    const std::string& source_name(const std::string& name) const;
    void fold_rows(const TensorFold& fold, int64_t first_row, int64_t rows, int64_t cols, float* out) const;

    const Context& context_;
    const checkpoint::Checkpoint& source_;
    RotationPlan plan_;
    checkpoint::ModelConfig config_;
    std::map<std::string, checkpoint::DenseTensor> dense_;
    // Rows of the tensor that was folded on its output side last: whole blocks of rows, of which a caller may
    // ask for a part at a time. With a block of the full width that is the whole tensor.
    mutable std::string kept_name_;
    mutable int64_t kept_first_ = 0, kept_rows_ = 0;
    mutable std::vector<float> kept_;
};

}  // namespace halfbyte::quantizer
