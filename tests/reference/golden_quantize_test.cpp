// The quantiser against the golden files: equal to the contract byte for byte, and away from
// compressed-tensors, ModelOpt and vLLM's order by exactly the counts in the table of
// tests/data/golden/README.md, which is read here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <sstream>

#include "halfbyte/error.h"
#include "reference/quantized.h"
#include "support/compare.h"
#include "support/safetensors_file.h"
#include "support/temporary_folder.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;
using test::Quantized;

OwnedMatrix load(const test::FileTensor& tensor) {
    const DType type = tensor.dtype == "BF16" ? DType::bf16 : tensor.dtype == "F16" ? DType::f16 : DType::f32;
    OwnedMatrix matrix(tensor.shape[0], tensor.shape[1], type);
    std::memcpy(matrix.data(), tensor.bytes.data(), tensor.bytes.size());
    return matrix;
}

float first(const test::FileTensor& tensor) {
    return tensor.as<float>().at(0);
}

// Block scales and packed codes of one producer.
struct Bytes {
    std::vector<uint8_t> scales, codes;
};

Bytes bytes_of(const Quantized& q) {
    return {{q.scales.bytes().begin(), q.scales.bytes().end()},
            {q.codes.bytes().begin(), q.codes.bytes().end()}};
}

// "scale bytes live + dead, codes live + dead + zero sign": dead are blocks whose contract block scale is 0;
// zero sign are codes 0 and 8 opposite each other.
std::string differences(const Bytes& a, const Bytes& b, const std::vector<uint8_t>& contract_scales) {
    int64_t scales[2] = {}, codes[2] = {}, zero_sign = 0;
    for (size_t block = 0; block < contract_scales.size(); block++) {
        const bool dead = contract_scales[block] == 0;
        scales[dead] += a.scales[block] != b.scales[block];
        for (size_t i = 0; i < 16; i++) {
            const int x = a.codes[block * 8 + i / 2] >> (i % 2 * 4) & 15,
                      y = b.codes[block * 8 + i / 2] >> (i % 2 * 4) & 15;
            if (x == y) continue;
            if ((x | y) == 8)
                zero_sign++;
            else
                codes[dead]++;
        }
    }
    return fmt::format("{} + {}, {} + {} + {}", scales[0], scales[1], codes[0], codes[1], zero_sign);
}

// The table of the README: case -> its cells.
std::map<std::string, std::vector<std::string>> documented_table() {
    std::map<std::string, std::vector<std::string>> table;
    std::istringstream text(test::read_file(test::golden_path("README.md")));
    for (std::string line; std::getline(text, line);) {
        std::vector<std::string> cells;
        std::istringstream parts(line);
        for (std::string cell; std::getline(parts, cell, '|');) {
            const size_t begin = cell.find_first_not_of(' '), end = cell.find_last_not_of(' ');
            if (begin != std::string::npos) cells.push_back(cell.substr(begin, end - begin + 1));
        }
        if (cells.size() == 13 && cells[0] != "case" && cells[0][0] != '-')
            table[cells[0]] = {cells.begin() + 1, cells.end()};
    }
    return table;
}

TEST(GoldenQuantize, EveryContractCaseIsEqualByteForByte) {
    int cases = 0;
    for (const char* file : {"nvfp4.safetensors", "nvfp4_contract_only.safetensors"}) {
        const test::SafetensorsFile golden(test::golden_path(file));
        for (const std::string& name : golden.cases(".contract.codes")) {
            SCOPED_TRACE(name);
            const OwnedMatrix x = load(golden[name + ".input"]);
            const float G = first(golden[name + ".contract.encode_scale"]);
            float amax = 0;
            for (const float value : x.values()) amax = std::fmax(amax, std::fabs(value));
            if (name != "nonfinite_6x64") {
                EXPECT_EQ(EncodeScale::from_amax(amax).word(), G);
            }
            const Quantized q = test::quantize(x, G);
            EXPECT_TRUE(test::same_bytes(q.scales.bytes(), golden[name + ".contract.block_scale"].bytes,
                                         x.cols() / 16));
            EXPECT_TRUE(
                test::same_bytes(q.codes.bytes(), golden[name + ".contract.codes"].bytes, x.cols() / 2));
            if (golden.contains(name + ".contract.unscaled")) {
                EXPECT_TRUE(test::same_values(test::dequantize(q, 1.0f).values(),
                                              golden[name + ".contract.unscaled"].as<float>(), x.cols()));
            }
            cases++;
        }
    }
    EXPECT_EQ(cases, 20);
}

TEST(GoldenQuantize, ASubnormalTensorHasNoEncodeScale) {
    const test::SafetensorsFile golden(test::golden_path("nvfp4.safetensors"));
    float amax = 0;
    for (const float value : load(golden["subnormal_4x64.input"]).values())
        amax = std::fmax(amax, std::fabs(value));
    EXPECT_GT(amax, 0);
    EXPECT_THROW(EncodeScale::from_amax(amax), Error);
}

TEST(GoldenQuantize, OtherProducersDifferByTheDocumentedCountsExactly) {
    const test::SafetensorsFile golden(test::golden_path("nvfp4.safetensors"));
    const auto table = documented_table();
    ASSERT_EQ(table.size(), golden.cases(".contract.codes").size());
    for (const auto& [name, documented] : table) {
        const OwnedMatrix x = load(golden[name + ".input"]);
        const auto stored = [&](const std::string& scales, const std::string& codes) {
            return Bytes{golden[name + scales].as<uint8_t>(), golden[name + codes].as<uint8_t>()};
        };
        const float G = first(golden[name + ".contract.encode_scale"]);
        const float G_ct = first(golden[name + ".ct.weight_global_scale"]);
        const Bytes contract = bytes_of(test::quantize(x, G)),
                    contract_G_ct = bytes_of(test::quantize(x, G_ct));
        const Bytes vllm_order =
            bytes_of(test::quantize_to(NvFp4Shape::of(x.rows(), x.cols()), x, G, Rounding::vllm));
        const Bytes ct = stored(".ct.weight_scale", ".ct.weight_packed");
        const Bytes ct_float32 = stored(".ct_float32.weight_scale", ".ct_float32.weight_packed");
        const Bytes modelopt = stored(".modelopt.weight_scale", ".modelopt.weight");
        const auto dead = std::count(contract.scales.begin(), contract.scales.end(), 0);
        const std::vector<std::string> measured = {
            fmt::format("{}", contract.scales.size()),
            fmt::format("{}", dead),
            fmt::format("{}", contract.codes.size() * 2),
            fmt::format("{:.9g}", G),
            fmt::format("{:.9g}", G_ct),
            fmt::format("{:.9g}", first(golden[name + ".ct_float32.weight_global_scale"])),
            differences(contract, ct, contract.scales),
            differences(contract_G_ct, ct, contract.scales),
            differences(contract, ct_float32, contract.scales),
            differences(contract, modelopt, contract.scales),
            differences(ct, modelopt, contract.scales),
            differences(contract, vllm_order, contract.scales),
        };
        EXPECT_EQ(measured, documented) << name;
    }
}

// Decoding other producers' bytes by the contract, fl((q * SF) * D), stays within four roundings of their own
// fl(q * fl(SF / g)) and fl(q * fl(SF * d)): two on each side.
TEST(GoldenQuantize, DecodedFilesStayWithinFourRoundingsOfTheirOwnTools) {
    const test::SafetensorsFile golden(test::golden_path("nvfp4.safetensors"));
    for (const std::string& name : golden.cases(".ct.dequantized")) {
        if (name == "subnormal_4x64") continue;  // results below 2^-126 have no relative bound
        SCOPED_TRACE(name);
        const auto compare = [&](const std::string& scales, const std::string& codes, float D,
                                 const std::string& expected) {
            const auto& shape = golden[name + ".input"].shape;
            Quantized q(NvFp4Shape::of(shape[0], shape[1]));
            std::memcpy(q.scales.data(), golden[name + scales].bytes.data(),
                        golden[name + scales].bytes.size());
            std::memcpy(q.codes.data(), golden[name + codes].bytes.data(), golden[name + codes].bytes.size());
            std::vector<double> values, tolerances;
            for (const float value : golden[name + expected].as<float>()) {
                values.push_back(value);
                tolerances.push_back(test::gamma(4.01) * std::fabs(double(value)));
            }
            EXPECT_TRUE(test::within(test::dequantize(q, D).values(), values, tolerances, shape[1]));
        };
        compare(".ct.weight_scale", ".ct.weight_packed",
                EncodeScale(first(golden[name + ".ct.weight_global_scale"])).decode(), ".ct.dequantized");
        if (name == "all_zero_4x64") continue;  // ModelOpt writes d = 0 and NaN scales there
        compare(".modelopt.weight_scale", ".modelopt.weight",
                DecodeScale(first(golden[name + ".modelopt.weight_scale_2"])).decode(),
                ".modelopt.dequantized");
    }
}

TEST(GoldenQuantize, AnAllZeroTensorOfModelOptIsRecognisable) {
    const test::SafetensorsFile golden(test::golden_path("nvfp4.safetensors"));
    EXPECT_THROW(DecodeScale(first(golden["all_zero_4x64.modelopt.weight_scale_2"])), Error);
    for (const uint8_t byte : golden["all_zero_4x64.modelopt.weight_scale"].bytes) EXPECT_EQ(byte, 0xFF);
    for (const uint8_t byte : golden["all_zero_4x64.modelopt.weight"].bytes) EXPECT_EQ(byte, 0x77);
}

// The block of bytes in docs/numbers.md: K = 64; j/4 - 2, (j-8)/64, zeros, (-1)^j (j+1)/16.
TEST(GoldenQuantize, TheWorkedExampleOfTheDocumentationIsRight) {
    OwnedMatrix x(1, 64, DType::bf16);
    for (int j = 0; j < 16; j++) {
        x.set(0, j, float(j) / 4 - 2);
        x.set(0, 16 + j, float(j - 8) / 64);
        x.set(0, 32 + j, 0);
        x.set(0, 48 + j, float(j % 2 == 0 ? j + 1 : -j - 1) / 16);
    }
    const EncodeScale g = EncodeScale::from_amax(2.0f);
    EXPECT_EQ(g.word(), 1344.0f);
    const Quantized q = test::quantize(x, g.encode());
    const std::vector<uint8_t> scales = {0x7E, 0x5E, 0x00, 0x76};
    const std::vector<uint8_t> codes = {0xFF, 0xEE, 0xCD, 0xAB, 0x20, 0x43, 0x65, 0x76, 0xFF, 0xEE, 0xCD,
                                        0xAB, 0x20, 0x43, 0x65, 0x76, 0,    0,    0,    0,    0,    0,
                                        0,    0,    0xA1, 0xB2, 0xC4, 0xD5, 0xE5, 0xE6, 0xF6, 0xF7};
    EXPECT_TRUE(test::same_bytes(q.scales.bytes(), scales, 4));
    EXPECT_TRUE(test::same_bytes(q.codes.bytes(), codes, 32));
    // The step by step values of the first block.
    const float a = 2.0f * std::bit_cast<float>(0x3E2AAAABu), s = 1344.0f * a;
    EXPECT_EQ(a, 0x1.555556p-2f);
    EXPECT_EQ(s, 448.0f);
    const OwnedMatrix y = test::dequantize(q, g.decode());
    EXPECT_EQ(g.decode(), 0x1.861862p-11f);
    EXPECT_EQ(y.at(0, 0), -2.0f);
    EXPECT_EQ(q.code(0, 7),
              10);  // -0.25 * 1344 / 448 = -0.75 lies between the codes of -0.5 and -1: the even one
    EXPECT_EQ(y.at(0, 7), -0x1.555556p-2f);
}

}  // namespace
}  // namespace halfbyte
