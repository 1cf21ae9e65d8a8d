#include "checkpoint/gguf.h"

#include <utf8proc.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <limits>

#include "checkpoint/json.h"
#include "core/check.h"
#include "core/float16.h"

namespace halfbyte::checkpoint {
namespace {

// The types of metadata values, by GGUF's numbers.
enum ValueType : uint32_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    string,
    array,
    u64,
    i64,
    f64,
    value_types
};
constexpr uint64_t value_bytes[value_types] = {1, 1, 2,  2, 4, 4, 4,
                                               1, 8, 12, 8, 8, 8};  // the least a value takes
constexpr const char* type_names[value_types] = {
    "U8", "I8", "U16", "I16", "U32", "I32", "F32", "true or false", "text", "arrays", "U64", "I64", "F64"};
constexpr int array_depth_limit = 4;

constexpr std::string_view ggml_names[] = {
    "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
    "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
    "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
    "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
    "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
    "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",    "NVFP4"};

struct Layout {
    int64_t block = 0, bytes = 0;  // elements of a block and its size; 0 for a type that is not read
};

constexpr Layout layout_of(uint32_t type) {
    switch (GgufType(type)) {
        case GgufType::f32:
            return {1, 4};
        case GgufType::f16:
        case GgufType::bf16:
            return {1, 2};
        case GgufType::q4_0:
            return {32, 18};  // d, 16 bytes of nibbles
        case GgufType::q4_1:
            return {32, 20};  // d, m, 16 bytes of nibbles
        case GgufType::q8_0:
            return {32, 34};  // d, 32 signed bytes
    }
    return {};
}

template <typename T>
T load(const uint8_t* bytes) {
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

bool valid_utf8(std::string_view text) {
    for (size_t i = 0; i < text.size();) {
        utf8proc_int32_t point;
        const auto* next = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + i;
        const auto length =
            utf8proc_iterate(next, utf8proc_ssize_t(std::min<size_t>(text.size() - i, 4)), &point);
        if (length <= 0) return false;
        i += size_t(length);
    }
    return true;
}

}  // namespace

std::string_view name_of(GgufType type) {
    return ggml_names[size_t(type)];
}

int64_t gguf_bytes(GgufType type, int64_t count) {
    const Layout layout = layout_of(uint32_t(type));
    assert(count % layout.block == 0);
    return count / layout.block * layout.bytes;
}

bool is_block_type(GgufType type) {
    return layout_of(uint32_t(type)).block > 1;
}

// Reads the file once, front to back. Nothing is taken before it is known to lie in the file.
class GgufFile::Parser {
  public:
    explicit Parser(GgufFile& gguf)
        : gguf_(gguf), all_(gguf.file_.bytes()), path_(gguf.file_.path().string()) {}

    void run() {
        const auto magic = take(4, "the magic");
        const std::string_view start(reinterpret_cast<const char*>(magic.data()), magic.size());
        rule(start == "GGUF", "starts with {}, a GGUF file with \"GGUF\"; is this one?", quote(start));
        const uint32_t version = number<uint32_t>("the version");
        check((version & 0xFFFF) != 0 || version == 0, ErrorKind::unsupported,
              "{}: a big-endian GGUF; only little-endian ones are read", path_);
        check(version == 2 || version == 3, version == 0 ? ErrorKind::malformed : ErrorKind::unsupported,
              "{}: GGUF version {}; versions 2 and 3 are read", path_, version);
        const uint64_t tensors = number<uint64_t>("the tensor count"),
                       values = number<uint64_t>("the metadata count");
        rule(values <= left() / (8 + 4 + 1),
             "{} metadata entries do not fit into {} bytes; is the file cut off?", values, left());
        for (uint64_t i = 0; i < values; ++i) read_metadata();
        rule(tensors <= left() / (8 + 4 + 4 + 8), "{} tensors do not fit into {} bytes; is the file cut off?",
             tensors, left());
        for (uint64_t i = 0; i < tensors; ++i) read_tensor();
        place_tensors();
    }

  private:
    struct Declared {
        GgufTensor* tensor;
        uint64_t offset, bytes;
    };

    template <typename... Values>
    void rule(bool holds, fmt::format_string<Values...> text, Values&&... values) const {
        if (!holds)
            fail(ErrorKind::malformed, "{}: {}", path_, fmt::format(text, std::forward<Values>(values)...));
    }

    uint64_t left() const { return all_.size() - position_; }

    std::span<const uint8_t> take(uint64_t size, std::string_view what) {
        rule(size <= left(), "{} at byte {} needs {} bytes, {} are left; is the file cut off?", what,
             position_, size, left());
        const auto bytes = all_.subspan(position_, size);
        position_ += size;
        return bytes;
    }

    template <typename T>
    T number(std::string_view what) {
        return load<T>(take(sizeof(T), what).data());
    }

    std::string name(std::string_view what) {
        const auto bytes = take(number<uint64_t>(what), what);
        std::string text(bytes.begin(), bytes.begin() + std::min<size_t>(bytes.size(), 65536));
        rule(!text.empty() && text.size() < 65536 && valid_utf8(text),
             "{} {} is not 1 to 65535 bytes of UTF-8", what, quote(text));
        return text;
    }

    // Steps over `count` values of a type.
    void skip(uint32_t type, uint64_t count, const std::string& key, int depth) {
        rule(type < value_types, "metadata {} has the unknown value type {}; 0 to {} are known", quote(key),
             type, value_types - 1);
        rule(count <= left() / value_bytes[type],
             "metadata {}: {} values do not fit into the {} bytes left; is the file cut off?", quote(key),
             count, left());
        if (type == string) {
            for (uint64_t i = 0; i < count; ++i) take(number<uint64_t>("a text's length"), "a text");
        } else if (type == array) {
            rule(depth < array_depth_limit, "metadata {}: arrays nested deeper than {}", quote(key),
                 array_depth_limit);
            for (uint64_t i = 0; i < count; ++i) {
                const uint32_t inner = number<uint32_t>("an array's type");
                skip(inner, number<uint64_t>("an array's length"), key, depth + 1);
            }
        } else {
            const auto bytes = take(count * value_bytes[type], "metadata");
            rule(type != boolean ||
                     std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte <= 1; }),
                 "metadata {}: a boolean is neither 0 nor 1", quote(key));
        }
    }

    void read_metadata() {
        const std::string key = name("metadata key");
        Value value{.type = number<uint32_t>("a value's type"), .bytes = {}};
        if (value.type == array) {
            value.is_array = true;
            value.type = number<uint32_t>("an array's type");
            value.count = number<uint64_t>("an array's length");
        }
        const uint64_t begin = position_;
        skip(value.type, value.count, key, value.is_array ? 1 : 0);
        value.bytes = all_.subspan(begin, position_ - begin);
        rule(gguf_.metadata_.emplace(key, value).second, "the metadata key {} is there twice", quote(key));
    }

    void read_tensor() {
        GgufTensor tensor{.name = name("tensor name"), .shape = {}, .bytes = {}};
        const std::string shown = quote(tensor.name);
        const uint32_t dimensions = number<uint32_t>("a tensor's rank");
        rule(dimensions <= 4, "tensor {} has {} dimensions; ggml has at most 4", shown, dimensions);
        for (uint32_t i = 0; i < dimensions; ++i) {
            const uint64_t dimension = number<uint64_t>("a dimension");
            rule(dimension >= 1 && dimension <= uint64_t(std::numeric_limits<int64_t>::max()),
                 "tensor {} has a dimension of {}", shown, dimension);
            tensor.shape.insert(tensor.shape.begin(), int64_t(dimension));  // the file has the fastest first
        }
        const uint32_t type = number<uint32_t>("a tensor's type");
        const Layout layout = layout_of(type);
        check(layout.block > 0, ErrorKind::unsupported,
              "{}: tensor {} has the ggml type {} ({}); F32, F16, BF16, Q8_0, Q4_0 and Q4_1 are read", path_,
              shown, type, type < std::size(ggml_names) ? ggml_names[type] : "unknown");
        tensor.type = GgufType(type);

        const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
        rule(row % layout.block == 0, "tensor {}: rows of {} elements are not whole {} blocks of {}", shown,
             row, name_of(tensor.type), layout.block);
        int64_t bytes = row / layout.block;
        bool fits = !__builtin_mul_overflow(bytes, layout.bytes, &bytes);
        for (size_t i = 0; i + 1 < tensor.shape.size(); ++i)
            fits &= !__builtin_mul_overflow(bytes, tensor.shape[i], &bytes);
        rule(fits, "tensor {}: the size of shape [{}] overflows", shown, fmt::join(tensor.shape, ", "));

        const uint64_t offset = number<uint64_t>("a tensor's offset");
        const auto [place, added] = gguf_.tensors_.emplace(tensor.name, tensor);
        rule(added, "the tensor {} is there twice", shown);
        declared_.push_back({&place->second, offset, uint64_t(bytes)});
    }

    void place_tensors() {
        const int64_t alignment = gguf_.has("general.alignment") ? gguf_.integer("general.alignment") : 32;
        rule(alignment > 0 && alignment <= (1 << 20) && std::has_single_bit(uint64_t(alignment)),
             "general.alignment is {}; a power of two up to {} is needed", alignment, 1 << 20);
        const uint64_t padding =
            (uint64_t(alignment) - position_ % uint64_t(alignment)) % uint64_t(alignment);
        if (declared_.empty()) return;
        take(padding, "the padding before the tensors");
        const auto data = all_.subspan(position_);

        std::sort(declared_.begin(), declared_.end(),
                  [](const Declared& a, const Declared& b) { return a.offset < b.offset; });
        const Declared* last = nullptr;
        for (const Declared& next : declared_) {
            rule(next.offset % uint64_t(alignment) == 0,
                 "tensor {}: offset {} is not a multiple of the alignment {}", quote(next.tensor->name),
                 next.offset, alignment);
            rule(next.offset <= data.size() && next.bytes <= data.size() - next.offset,
                 "tensor {}: {} bytes at offset {} leave the {} bytes of data; is the file cut off?",
                 quote(next.tensor->name), next.bytes, next.offset, data.size());
            rule(last == nullptr || next.offset - last->offset >= last->bytes, "tensors {} and {} overlap",
                 quote(last == nullptr ? "" : last->tensor->name), quote(next.tensor->name));
            next.tensor->bytes = data.subspan(next.offset, next.bytes);
            last = &next;
        }
    }

    GgufFile& gguf_;
    std::span<const uint8_t> all_;
    std::string path_;
    uint64_t position_ = 0;
    std::vector<Declared> declared_;
};

GgufFile::GgufFile(const std::filesystem::path& path) : file_(path) {
    Parser(*this).run();
}

const GgufFile::Value& GgufFile::find(const std::string& key, bool is_array) const {
    const auto found = metadata_.find(key);
    check(found != metadata_.end(), ErrorKind::malformed, "{}: the metadata key {} is missing",
          file_.path().string(), key);
    check(found->second.is_array == is_array, ErrorKind::malformed, "{}: metadata {} is {} array",
          file_.path().string(), key, is_array ? "no" : "an");
    return found->second;
}

std::string GgufFile::text_at(const Value& value, size_t& position, const std::string& key) const {
    check(value.type == ValueType::string, ErrorKind::malformed, "{}: metadata {} holds {}; text is needed",
          file_.path().string(), key, type_names[value.type]);
    const uint64_t length = load<uint64_t>(value.bytes.data() + position);
    const auto bytes = value.bytes.subspan(position + sizeof length, length);
    position += sizeof length + length;
    std::string text(bytes.begin(), bytes.end());
    if (!valid_utf8(text)) {
        fail(ErrorKind::malformed, "{}: metadata {}: the text {} is not valid UTF-8", file_.path().string(),
             key, quote(text));
    }
    return text;
}

int64_t GgufFile::integer_at(const Value& value, uint64_t index, const std::string& key) const {
    const uint8_t* bytes =
        value.bytes.data() + index * (value.type < value_types ? value_bytes[value.type] : 0);
    switch (value.type) {
        case ValueType::u8:
            return load<uint8_t>(bytes);
        case ValueType::i8:
            return load<int8_t>(bytes);
        case ValueType::u16:
            return load<uint16_t>(bytes);
        case ValueType::i16:
            return load<int16_t>(bytes);
        case ValueType::u32:
            return load<uint32_t>(bytes);
        case ValueType::i32:
            return load<int32_t>(bytes);
        case ValueType::i64:
            return load<int64_t>(bytes);
        case ValueType::u64: {
            const uint64_t number = load<uint64_t>(bytes);
            check(number <= uint64_t(std::numeric_limits<int64_t>::max()), ErrorKind::malformed,
                  "{}: metadata {}: {} is too large", file_.path().string(), key, number);
            return int64_t(number);
        }
        default:
            fail(ErrorKind::malformed, "{}: metadata {} holds {}; whole numbers are needed",
                 file_.path().string(), key, type_names[value.type]);
    }
}

std::string GgufFile::text(const std::string& key) const {
    size_t position = 0;
    return text_at(find(key, false), position, key);
}

int64_t GgufFile::integer(const std::string& key) const {
    return integer_at(find(key, false), 0, key);
}

double GgufFile::number(const std::string& key) const {
    const Value& value = find(key, false);
    if (value.type == ValueType::f32) return load<float>(value.bytes.data());
    if (value.type == ValueType::f64) return load<double>(value.bytes.data());
    return double(integer_at(value, 0, key));
}

bool GgufFile::flag(const std::string& key) const {
    const Value& value = find(key, false);
    check(value.type == ValueType::boolean, ErrorKind::malformed,
          "{}: metadata {} holds {}; true or false is needed", file_.path().string(), key,
          type_names[value.type]);
    return value.bytes[0] != 0;
}

std::vector<std::string> GgufFile::texts(const std::string& key) const {
    const Value& value = find(key, true);
    std::vector<std::string> result;
    size_t position = 0;
    for (uint64_t i = 0; i < value.count; ++i) result.push_back(text_at(value, position, key));
    return result;
}

std::vector<int64_t> GgufFile::integers(const std::string& key) const {
    const Value& value = find(key, true);
    std::vector<int64_t> result;
    for (uint64_t i = 0; i < value.count; ++i) result.push_back(integer_at(value, i, key));
    return result;
}

// Element i of a 4-bit block is the low nibble of byte i for i < 16, the high nibble of byte i - 16 from
// there on. Products and sums are rounded one by one in FP32, as ggml's reference does.
void dequantize_gguf(const GgufTensor& tensor, int64_t first, int64_t count, float* out) {
    const Layout layout = layout_of(uint32_t(tensor.type));
    assert(first % layout.block == 0 && count % layout.block == 0);
    const uint8_t* in = tensor.bytes.data() + gguf_bytes(tensor.type, first);
    assert(gguf_bytes(tensor.type, first + count) <= int64_t(tensor.bytes.size()));
    const auto half = [](const uint8_t* bytes) { return to_float(Float16{load<uint16_t>(bytes)}); };
    switch (tensor.type) {
        case GgufType::f32:
            std::memcpy(out, in, size_t(count) * sizeof *out);
            return;
        case GgufType::f16:
            for (int64_t i = 0; i < count; ++i) out[i] = half(in + 2 * i);
            return;
        case GgufType::bf16:
            for (int64_t i = 0; i < count; ++i) out[i] = to_float(BFloat16{load<uint16_t>(in + 2 * i)});
            return;
        case GgufType::q8_0:
            for (const float* end = out + count; out != end; out += 32, in += layout.bytes) {
                const float d = half(in);
                for (int i = 0; i < 32; ++i) out[i] = d * float(int8_t(in[2 + i]));
            }
            return;
        case GgufType::q4_0:
            for (const float* end = out + count; out != end; out += 32, in += layout.bytes) {
                const float d = half(in);
                for (int i = 0; i < 16; ++i) {
                    out[i] = d * float((in[2 + i] & 15) - 8);
                    out[i + 16] = d * float((in[2 + i] >> 4) - 8);
                }
            }
            return;
        case GgufType::q4_1:
            for (const float* end = out + count; out != end; out += 32, in += layout.bytes) {
                const float d = half(in), m = half(in + 2);
                for (int i = 0; i < 16; ++i) {
                    out[i] = d * float(in[4 + i] & 15) + m;
                    out[i + 16] = d * float(in[4 + i] >> 4) + m;
                }
            }
            return;
    }
}

}  // namespace halfbyte::checkpoint
