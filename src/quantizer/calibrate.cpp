#include "quantizer/calibrate.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace halfbyte::quantizer {

Calibration calibrate(const Context& context, const model::Decoder& decoder, std::span<const int32_t> ids,
                      int64_t window, const Progress& progress) {
    Calibration calibration;
    window = std::min({window, decoder.config().max_positions, int64_t(ids.size())});
    model::KvCache cache = decoder.make_cache(window);
    const auto observe = [&](const std::string& module, const float* x, int64_t rows, int64_t k) {
        float& amax = calibration.input_amax[module];
        for (int64_t i = 0; i < rows * k; i++) {
            if (!std::isfinite(x[i]))
                fail(ErrorKind::failure,
                     "{}: the input of {} is not finite at token {} of the calibration: the model is broken",
                     decoder.path().string(), module, calibration.tokens + i / k);
            amax = std::max(amax, std::fabs(x[i]));
        }
    };
    for (size_t begin = 0; begin < ids.size(); begin += size_t(window)) {
        report(progress, "calibrate", int64_t(begin), int64_t(ids.size()));
        const size_t count = std::min(size_t(window), ids.size() - begin);
        cache.clear();
        decoder.forward(context, cache, ids.subspan(begin, count), 0, nullptr, observe);
        calibration.tokens += int64_t(count);
    }
    report(progress, "calibrate", int64_t(ids.size()), int64_t(ids.size()));
    return calibration;
}

}  // namespace halfbyte::quantizer
