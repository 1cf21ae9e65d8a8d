#include "verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace halfbyte::bench {

std::vector<int64_t> sample_rows(int64_t rows) {
    std::vector<int64_t> sample;
    for (int64_t i = 0; i < std::min<int64_t>(rows, 32); i++) sample.push_back(i);
    if (rows <= 32) return sample;
    std::mt19937_64 random(1);
    for (size_t i = 1; i < 31; i++) sample[i] = int64_t(random() % uint64_t(rows));
    sample[31] = rows - 1;
    return sample;
}

std::vector<uint8_t> gather(Gpu& gpu, const Buffers& device, const uint8_t* set, const Buffers& host,
                            const std::vector<int64_t>& sample) {
    std::vector<uint8_t> bytes(size_t(host.bytes()), 0xFF);
    for (size_t i = 0; i < host.regions().size(); i++) {
        const Region &from = device.regions()[i], &to = host.regions()[i];
        const uint8_t* source = set + from.offset;
        uint8_t* target = bytes.data() + to.offset;
        const std::vector<uint8_t> whole =
            from.row_bytes > 0 ? std::vector<uint8_t>() : gpu.fetch(source, from.bytes);
        if (from.row_bytes == 0 && from.row_blocks == 0) std::memcpy(target, whole.data(), whole.size());
        for (size_t s = 0; s < sample.size(); s++) {
            if (from.row_bytes > 0) {
                const std::vector<uint8_t> row =
                    gpu.fetch(source + sample[s] * from.row_bytes, from.row_bytes);
                std::memcpy(target + int64_t(s) * to.row_bytes, row.data(), row.size());
            }
            for (int64_t block = 0; block < from.row_blocks; block++)
                target[scale_offset(to.layout, int64_t(s), block, to.row_blocks)] =
                    whole[size_t(scale_offset(from.layout, sample[s], block, from.row_blocks))];
        }
    }
    return bytes;
}

std::string first_difference(const Buffers& host, const std::vector<int64_t>& sample,
                             const std::vector<uint8_t>& expected, const std::vector<uint8_t>& given) {
    for (const Region& region : host.regions()) {
        if (!region.written) continue;
        const auto differs = [&](int64_t i, int64_t row, int64_t place) {
            const uint8_t right = expected[size_t(region.offset + i)],
                          wrong = given[size_t(region.offset + i)];
            return right == wrong ? std::string()
                                  : fmt::format("{} of row {}, byte {}: expected 0x{:02X}, given 0x{:02X}",
                                                region.name, row, place, right, wrong);
        };
        std::string text;
        if (region.row_blocks > 0) {  // the rows of tile padding are not compared
            for (int64_t s = 0; s < int64_t(sample.size()) && text.empty(); s++)
                for (int64_t block = 0; block < region.row_blocks && text.empty(); block++)
                    text = differs(scale_offset(region.layout, s, block, region.row_blocks),
                                   sample[size_t(s)], block);
        } else {
            const int64_t row_bytes = std::max<int64_t>(region.row_bytes, 1);
            for (int64_t i = 0; i < region.bytes && text.empty(); i++)
                text = differs(i, region.row_bytes > 0 ? sample[size_t(i / row_bytes)] : 0, i % row_bytes);
        }
        if (!text.empty()) return text;
    }
    return {};
}

Closeness compare_closely(const QuantizeArgs& expected, const QuantizeArgs& given) {
    const NvFp4Shape& shape = expected.shape;
    const float D = 1.0f / *expected.encode_scale;
    int64_t codes = 0, scales = 0;
    for (int64_t i = 0; i < shape.code_bytes(); i++) {
        const int bits = expected.codes[i] ^ given.codes[i];
        codes += (bits & 15) != 0;
        codes += bits >> 4 != 0;
    }
    for (int64_t row = 0; row < shape.rows; row++)
        for (int64_t block = 0; block < shape.blocks(); block++) {
            const int64_t i = scale_offset(shape.layout, row, block, shape.padded_blocks());
            scales += expected.block_scales[i] != given.block_scales[i];
        }
    const auto dequantise = [&](const QuantizeArgs& args) {
        std::vector<float> values(size_t(shape.rows * shape.k));
        reference::dequantize({.a = {args.codes, args.block_scales, shape},
                               .decode_scale = &D,
                               .y = {values.data(), DType::f32, shape.rows, shape.k, shape.k}});
        return values;
    };
    const std::vector<float> right = dequantise(expected), found = dequantise(given);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < right.size(); i++) {
        difference += std::pow(double(right[i]) - double(found[i]), 2);
        norm += std::pow(double(right[i]), 2);
    }
    return {double(codes) / double(shape.rows * shape.padded_k),
            double(scales) / double(shape.rows * shape.blocks()), std::sqrt(difference / norm)};
}

}  // namespace halfbyte::bench
