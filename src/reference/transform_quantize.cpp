// quantize(transform(x)). With quantize.x.type = F32 x' is not rounded in between.
#include "reference/reference.h"
#include "reference/temporary.h"

namespace halfbyte::reference {

void transform_quantize(const TransformQuantizeArgs& args) {
    const Temporary y(args.quantize.x.type, args.x.rows, args.x.cols);
    transform({.x = args.x, .transform = args.transform, .y = y.matrix()});
    quantize(y.quantize_args(args.quantize));
}

}  // namespace halfbyte::reference
