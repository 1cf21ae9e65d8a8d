// The 64-bit hash of logits: FNV-1a over 32-bit words. h starts at 0xCBF29CE484222325; for each FP32, in
// order, h = (h xor bits) * 0x100000001B3 mod 2^64, where bits is its IEEE-754 pattern as an unsigned 32-bit
// number.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace halfbyte {

class WordHash {
  public:
    void add(std::span<const float> values) {
        for (const float value : values) state_ = (state_ ^ std::bit_cast<uint32_t>(value)) * 0x100000001B3;
    }
    uint64_t value() const { return state_; }

  private:
    uint64_t state_ = 0xCBF29CE484222325;
};

}  // namespace halfbyte
