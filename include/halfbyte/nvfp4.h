// NVFP4: E2M1 codes, one E4M3 block scale per 16 codes along K, one FP32 global scale per tensor. Sources:
// E2M1 in the OCP Microscaling Formats specification 1.0, E4M3 in the OCP 8-bit floating point
// specification 1.0; docs/formats.md shows the bytes.
#pragma once

#include <cstdint>

namespace halfbyte {

// How `code = E2M1(v * G / SF)` is computed.
enum class Rounding {
    contract,  // nearest even of the exact quotient fl(v*G) / SF
    vllm       // fl(v * fl(1 / fl(SF * fl(1/G)))): vLLM's kernel but for ties of its approximate reciprocals
};

// Where the block scale of (row, block of 16) lies; Kp is padded_k, Rp is padded_rows.
// Source of the tiled ones: cuBLAS, "1D block scaling factors layout"; offsets in docs/numbers.md.
enum class ScaleLayout {
    linear,       // [Rp, Kp/16] row-major
    tiled_128x4,  // tiles of 128 rows x 4 blocks, 512 bytes each: what Blackwell's matrix units read
    tiled_8x4     // tiles of 8 rows x 4 blocks, 32 bytes each: the same for few rows
};

// A stored global scale that multiplies before quantising (compressed-tensors). The word is kept unchanged.
// From a word g: G = g, D = fl(1/g). Throws Error (malformed) unless G and D are finite and positive.
class EncodeScale {
  public:
    explicit EncodeScale(float word);
    // G = fl(2688 / amax), 1 for amax = 0; 2688 = 6 * 448, the largest E2M1 times the largest E4M3 value.
    static EncodeScale from_amax(float amax);
    float word() const { return word_; }
    float encode() const { return word_; }         // G
    float decode() const { return 1.0f / word_; }  // D

  private:
    float word_;
};

// A stored global scale that multiplies after decoding (ModelOpt). From a word d: D = d, G = fl(1/d). Throws
// like EncodeScale.
class DecodeScale {
  public:
    explicit DecodeScale(float word);
    static DecodeScale from_amax(float amax);  // D = fl(amax / 2688), 1 for amax = 0
    float word() const { return word_; }
    float encode() const { return 1.0f / word_; }
    float decode() const { return word_; }

  private:
    float word_;
};

// The logical matrix [rows, k] and the storage around it. The last block of a row may be partial: its missing
// elements are +0. Padding of codes and scales holds zeros, and no consumer's result depends on it.
struct NvFp4Shape {
    int64_t rows = 0;
    int64_t k = 0;
    int64_t padded_rows = 0;  // Rp >= rows
    int64_t padded_k = 0;     // Kp >= k, a multiple of 16
    ScaleLayout layout = ScaleLayout::linear;

    // Rp = rows and Kp = k rounded up to 16.
    static NvFp4Shape of(int64_t rows, int64_t k, ScaleLayout layout = ScaleLayout::linear);

    constexpr int64_t blocks() const { return (k + 15) / 16; }         // blocks of a row that hold elements
    constexpr int64_t padded_blocks() const { return padded_k / 16; }  // blocks of a row with padding
    constexpr int64_t code_bytes() const { return padded_rows * (padded_k / 2); }
    int64_t scale_bytes() const;  // of the whole buffer in `layout`, tile padding included
    bool operator==(const NvFp4Shape&) const = default;
};

// Counts that quantising leaves behind when asked; they add up over calls.
struct QuantizeStats {
    int64_t values = 0;
    int64_t blocks = 0;
    int64_t non_finite = 0;  // NaN or infinity among the inputs
    int64_t clipped = 0;     // |y| > 6 SF in a block whose scale saturated (s > 448)
    int64_t flushed = 0;     // blocks with a non-zero amax whose scale became 0
    bool operator==(const QuantizeStats&) const = default;
    QuantizeStats& operator+=(const QuantizeStats& other) {
        values += other.values;
        blocks += other.blocks;
        non_finite += other.non_finite;
        clipped += other.clipped;
        flushed += other.flushed;
        return *this;
    }
};

}  // namespace halfbyte
