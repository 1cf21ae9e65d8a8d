// Block scales of another layout: each byte moves, padding is written as zero.
#include <cstring>

#include "format/scale_layout.h"
#include "reference/reference.h"

namespace halfbyte::reference {

void convert_scales(const ConvertScalesArgs& args) {
    const NvFp4Shape& from = args.shape;
    NvFp4Shape to = args.shape;
    to.layout = args.layout;
    if (to.scale_bytes() > 0) std::memset(args.target, 0, size_t(to.scale_bytes()));
    for (int64_t row = 0; row < from.rows; row++)
        for (int64_t block = 0; block < from.blocks(); block++)
            args.target[scale_offset(to.layout, row, block, to.padded_blocks())] =
                args.source[scale_offset(from.layout, row, block, from.padded_blocks())];
}

}  // namespace halfbyte::reference
