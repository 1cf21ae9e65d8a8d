#include "checkpoint/json.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/mapped_file.h"

namespace halfbyte::checkpoint {
namespace {

// Builds the document from the parser's events. Members are appended, so that an object of n keys takes time
// n log n (operator[] of an ordered object looks at every earlier key).
class Builder : public nlohmann::json_sax<Json> {
  public:
    Builder(Json& root, const std::filesystem::path& file) : root_(root), file_(file) {}

    bool null() override { return add(nullptr); }
    bool boolean(bool value) override { return add(value); }
    bool number_integer(number_integer_t value) override { return add(value); }
    bool number_unsigned(number_unsigned_t value) override { return add(value); }
    bool number_float(number_float_t value, const string_t&) override { return add(value); }
    bool string(string_t& value) override { return add(std::move(value)); }
    bool binary(binary_t&) override { return false; }
    bool start_object(size_t) override { return open(Json::object()); }
    bool start_array(size_t) override { return open(Json::array()); }
    bool key(string_t& name) override {
        key_ = std::move(name);
        return true;
    }
    bool end_object() override {
        std::vector<std::string_view> keys;
        for (const auto& [name, value] : open_.back()->get_ref<const Json::object_t&>()) keys.push_back(name);
        std::sort(keys.begin(), keys.end());
        const auto twice = std::adjacent_find(keys.begin(), keys.end());
        check(twice == keys.end(), ErrorKind::malformed, "{}: a JSON object has the key {} twice",
              file_.string(), twice == keys.end() ? "" : quote(*twice));
        open_.pop_back();
        return true;
    }
    bool end_array() override {
        open_.pop_back();
        return true;
    }
    bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
        std::string_view text =
            error.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
        if (const size_t end = text.find("] "); end != text.npos) text.remove_prefix(end + 2);
        fail(ErrorKind::malformed, "{}: not valid JSON: {}", file_.string(), quote(text));
    }

  private:
    static constexpr size_t depth_limit = 128;

    bool add(Json value) {
        place(std::move(value));
        return true;
    }
    bool open(Json value) {
        check(open_.size() < depth_limit, ErrorKind::malformed, "{}: JSON nested deeper than {}",
              file_.string(), depth_limit);
        open_.push_back(
            place(std::move(value)));  // stays put: nothing is added to its parent until it is closed
        return true;
    }
    Json* place(Json&& value) {
        if (open_.empty()) {
            root_ = std::move(value);
            return &root_;
        }
        if (open_.back()->is_array()) {
            auto& array = open_.back()->get_ref<Json::array_t&>();
            return &array.emplace_back(std::move(value));
        }
        auto& object = open_.back()->get_ref<Json::object_t&>();
        return &object.emplace_back(std::move(key_), std::move(value)).second;
    }

    Json& root_;
    const std::filesystem::path& file_;
    std::vector<Json*> open_;
    std::string key_;
};

std::string_view whole(const MappedFile& file, uint64_t limit) {
    const auto bytes = file.bytes();
    check(bytes.size() <= limit, ErrorKind::malformed, "{}: {} bytes; at most {} are read",
          file.path().string(), bytes.size(), limit);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Json parse_json(std::string_view text, const std::filesystem::path& file) {
    Json root;
    Builder builder(root, file);
    Json::sax_parse(text, &builder);
    return root;
}

Json read_json(const std::filesystem::path& file, uint64_t limit) {
    const MappedFile mapped(file);
    return parse_json(whole(mapped, limit), file);
}

std::string read_text(const std::filesystem::path& file, uint64_t limit) {
    const MappedFile mapped(file);
    return std::string(whole(mapped, limit));
}

bool is_there(const std::filesystem::path& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
}

constexpr size_t shown_limit = 200;

std::string shown(const Json& value) {
    std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > shown_limit) text.replace(shown_limit, text.npos, "...");
    return text;
}

std::string quote(std::string_view name) {
    return Json(std::string(name.substr(0, shown_limit)))
               .dump(-1, ' ', true, Json::error_handler_t::replace) +
           (name.size() > shown_limit ? "..." : "");
}

// A value of an object; null counts as absent.
const Json* find(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string text_at(const Json& object, const char* key, const std::string& otherwise,
                    const std::string& where) {
    const Json* value = find(object, key);
    check(value == nullptr || value->is_string(), ErrorKind::malformed, "{}: {} is {}; a text is needed",
          where, key, value == nullptr ? "" : shown(*value));
    return value == nullptr ? otherwise : value->get<std::string>();
}

// A list of texts; a text alone counts as a list of one.
std::vector<std::string> texts_at(const Json& value, const std::string& where) {
    if (value.is_string()) return {value.get<std::string>()};
    if (!value.is_array())
        fail(ErrorKind::malformed, "{}: is {}; a list of texts is needed", where, shown(value));
    std::vector<std::string> texts;
    for (const Json& entry : value) {
        check(entry.is_string(), ErrorKind::malformed, "{}: holds {}; texts are needed", where, shown(entry));
        texts.push_back(entry.get<std::string>());
    }
    return texts;
}

bool says_nothing(const Json* value) {
    return value == nullptr || ((value->is_object() || value->is_array()) && value->empty());
}

bool flag_at(const Json& object, const char* key, bool otherwise, const std::string& where) {
    const Json* value = find(object, key);
    check(value == nullptr || value->is_boolean(), ErrorKind::malformed,
          "{}: {} is {}; true or false is needed", where, key, value == nullptr ? "" : shown(*value));
    return value == nullptr ? otherwise : value->get<bool>();
}

std::optional<int64_t> count_at(const Json& object, const char* key, const std::string& where) {
    constexpr uint64_t limit = 1 << 30;
    const Json* value = find(object, key);
    if (value == nullptr) return {};
    check(value->is_number_unsigned() && value->get<uint64_t>() >= 1 && value->get<uint64_t>() <= limit,
          ErrorKind::malformed, "{}: {} is {}; a whole number from 1 to {} is needed", where, key,
          shown(*value), limit);
    return int64_t(value->get<uint64_t>());
}

}  // namespace halfbyte::checkpoint
