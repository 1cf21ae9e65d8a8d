#include "halfbyte/nvfp4.h"

#include <cmath>

#include "core/check.h"
#include "format/scale_layout.h"

namespace halfbyte {

static void check_scale(const char* sense, float word, float reciprocal) {
    check(std::isfinite(word) && word > 0 && std::isfinite(reciprocal) && reciprocal > 0,
          ErrorKind::malformed,
          "global scale ({}): {} given; it and its reciprocal must be finite and positive", sense, word);
}

EncodeScale::EncodeScale(float word) : word_(word) {
    check_scale("encode", word, 1.0f / word);
}

EncodeScale EncodeScale::from_amax(float amax) {
    return EncodeScale(amax == 0 ? 1.0f : 2688.0f / amax);
}

DecodeScale::DecodeScale(float word) : word_(word) {
    check_scale("decode", word, 1.0f / word);
}

DecodeScale DecodeScale::from_amax(float amax) {
    return DecodeScale(amax == 0 ? 1.0f : amax / 2688.0f);
}

NvFp4Shape NvFp4Shape::of(int64_t rows, int64_t k, ScaleLayout layout) {
    return {rows, k, rows, round_up(k, 16), layout};
}

int64_t NvFp4Shape::scale_bytes() const {
    return scale_buffer_bytes(layout, padded_rows, padded_blocks());
}

}  // namespace halfbyte
