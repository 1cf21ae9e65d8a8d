// amax = max |x| over the finite values; G and D follow from it.
#include <cmath>

#include "core/element.h"
#include "format/dynamic_scale.h"
#include "reference/reference.h"

namespace halfbyte::reference {

void amax(const AmaxArgs& args) {
    const auto write = [&](int64_t place, float largest) {
        const float G = dynamic_encode_scale(largest);
        if (args.amax != nullptr) args.amax[place] = largest;
        if (args.encode_scale != nullptr) args.encode_scale[place] = G;
        if (args.decode_scale != nullptr) args.decode_scale[place] = 1.0f / G;
    };
    float largest = 0.0f;
    for (int64_t row = 0; row < args.x.rows; row++) {
        if (args.per_row) largest = 0.0f;
        for (int64_t k = 0; k < args.x.cols; k++) {
            const float value = load_element(args.x.data, args.x.type, row * args.x.stride + k);
            if (std::isfinite(value) && std::fabs(value) > largest) largest = std::fabs(value);
        }
        if (args.per_row) write(row, largest);
    }
    if (!args.per_row) write(0, largest);
}

}  // namespace halfbyte::reference
