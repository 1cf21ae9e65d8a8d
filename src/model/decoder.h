// A decoder-only language model: token ids in, logits out.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "core/progress.h"
#include "halfbyte/context.h"
#include "model/linear.h"

namespace halfbyte::model {

// Keys and values of every layer, FP32, [capacity, kv_heads * head_dim] each; and the memory that the passes
// over them work in.
class KvCache {
  public:
    KvCache(int64_t layers, int64_t width, int64_t capacity);
    int64_t length() const { return length_; }
    int64_t capacity() const { return capacity_; }
    int64_t width() const { return width_; }
    float* keys(int64_t layer) { return data_.get() + 2 * layer * capacity_ * width_; }
    float* values(int64_t layer) { return keys(layer) + capacity_ * width_; }
    void append(int64_t tokens) { length_ += tokens; }
    void clear() { length_ = 0; }
    Workspace& workspace() { return workspace_; }

  private:
    int64_t width_, capacity_, length_ = 0;
    std::unique_ptr<float[]> data_;  // untouched, and so without memory behind it, where no position has been
    Workspace workspace_;
};

class Decoder {
  public:
    virtual ~Decoder() = default;
    virtual const checkpoint::ModelConfig& config() const = 0;
    virtual const std::filesystem::path& path() const = 0;  // of the checkpoint, for messages

    // For `capacity` positions; Error (usage) beyond the model's context.
    virtual KvCache make_cache(int64_t capacity) const = 0;

    // Runs the tokens at the positions after those in the cache and appends them to it. The logits of the
    // last `wanted` of them go to logits [wanted, vocab_size]. How a text is cut into calls does not change a
    // bit of the result.
    virtual void forward(const Context& context, KvCache& cache, std::span<const int32_t> tokens,
                         int64_t wanted, float* logits, const InputObserver& observer = {}) const = 0;
};

// Error (unsupported) naming an architecture that is not built in. The checkpoint must outlive the decoder.
std::unique_ptr<Decoder> load_decoder(const Context& context, const checkpoint::Checkpoint& source,
                                      Arithmetic arithmetic, const Progress& progress = {});

// The same error, before anything is loaded.
void check_architecture(const checkpoint::Checkpoint& source);

// Error (usage) if the model's context has fewer positions; it begins with `where` and ends with `advice`, if
// they are given. An architecture that is known by name only is not asked.
void check_positions(const checkpoint::ModelConfig& config, int64_t positions, std::string_view where = {},
                     std::string_view advice = {});

// The linear layers by name, in order, as groups: those that inference engines run fused (q/k/v, gate/up)
// stand together, since they must share one weight scale. lm_head is last, also when it is tied to the
// embedding.
std::vector<std::vector<std::string>> linear_groups(const checkpoint::Checkpoint& source);

}  // namespace halfbyte::model
