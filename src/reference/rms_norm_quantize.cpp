// quantize(rms_norm(x, residual)); the residual is written back.
#include "reference/reference.h"
#include "reference/temporary.h"

namespace halfbyte::reference {

void rms_norm_quantize(const RmsNormQuantizeArgs& args) {
    const Temporary y(args.quantize.x.type, args.x.rows, args.x.cols);
    rms_norm({.x = args.x,
              .residual = args.residual,
              .weight = args.weight,
              .epsilon = args.epsilon,
              .y = y.matrix()});
    quantize(y.quantize_args(args.quantize));
}

}  // namespace halfbyte::reference
