// Typed members of a JSON object in a tokenizer.json; every mistake is an Error (malformed) naming file and
// member.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/json.h"
#include "core/check.h"

namespace halfbyte::model {

class JsonObject {
  public:
    // place: where the object stands in the file ("pre_tokenizer"), for messages.
    JsonObject(const checkpoint::Json& json, std::string place, const std::string& file)
        : json_(json), place_(std::move(place)), file_(file) {
        check(json.is_object(), ErrorKind::malformed, "{}: {} is {}; needed is an object", file, place_,
              json.type_name());
    }

    // Null if the member is absent or null.
    const checkpoint::Json* find(const char* key) const {
        const auto found = json_.find(key);
        return found == json_.end() || found->is_null() ? nullptr : &*found;
    }
    const checkpoint::Json& at(const char* key) const {
        const checkpoint::Json* value = find(key);
        check(value, ErrorKind::malformed, "{}: {} has no member {}", file_, place_, key);
        return *value;
    }
    bool flag(const char* key) const { return get<bool>(key, "true or false"); }
    bool flag(const char* key, bool absent) const { return find(key) ? flag(key) : absent; }
    const std::string& text(const char* key) const { return get<std::string>(key, "a string"); }
    const checkpoint::Json::array_t& array(const char* key) const {
        return get<checkpoint::Json::array_t>(key, "an array");
    }
    const checkpoint::Json::object_t& object(const char* key) const {
        return get<checkpoint::Json::object_t>(key, "an object");
    }
    JsonObject child(const char* key) const { return JsonObject(at(key), place_ + "." + key, file_); }
    const std::string& place() const { return place_; }
    const std::string& file() const { return file_; }

  private:
    template <typename T>
    const T& get(const char* key, const char* needed) const {
        const T* value = at(key).get_ptr<const T*>();
        check(value, ErrorKind::malformed, "{}: {}.{} is {}; needed is {}", file_, place_, key,
              at(key).type_name(), needed);
        return *value;
    }

    const checkpoint::Json& json_;
    std::string place_;
    const std::string& file_;
};

// A token id: an integer in [0, 2^24), far above any vocabulary.
constexpr int32_t token_id_limit = 1 << 24;

inline int32_t token_id(const checkpoint::Json& json, std::string_view token, const std::string& file) {
    const int64_t* value =
        json.get_ptr<const int64_t*>();  // also for an unsigned number that the parser kept
    const bool valid = json.is_number_integer() && value && *value >= 0 && *value < token_id_limit;
    if (!valid)
        fail(ErrorKind::malformed, "{}: the token {} has the id {}; needed is an integer in [0, {})", file,
             checkpoint::quote(token), json.is_number() ? json.dump() : json.type_name(), token_id_limit);
    return int32_t(*value);
}

}  // namespace halfbyte::model
