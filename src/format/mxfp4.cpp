#include "format/scale_layout.h"
#include "halfbyte/operations.h"

namespace halfbyte {

MxFp4Shape MxFp4Shape::of(int64_t rows, int64_t k, ScaleLayout layout) {
    return {rows, k, rows, round_up(k, 32), layout};
}

int64_t MxFp4Shape::scale_bytes() const {
    return scale_buffer_bytes(layout, padded_rows, padded_blocks());
}

}  // namespace halfbyte
