#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "checkpoint/json.h"
#include "core/check.h"
#include "core/output_folder.h"

namespace halfbyte::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t header_limit = 100'000'000;  // the format's own
constexpr std::string_view single_name = "model.safetensors";

template <typename... Values>
void rule(bool holds, fmt::format_string<Values...> text, Values&&... values) {
    check(holds, ErrorKind::malformed, text, std::forward<Values>(values)...);
}

DType dtype_of(const std::string& spelling, const std::string& where) {
    for (int i = 0; i <= int(DType::f8_e5m2); ++i) {
        if (name_of(DType(i)) == spelling) return DType(i);
    }
    for (const char* other : {"F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"}) {
        check(spelling != other, ErrorKind::unsupported, "{}: the dtype {} is not read by this version",
              where, other);
    }
    std::string known;
    for (int i = 0; i <= int(DType::f8_e5m2); ++i)
        known += (i == 0 ? "" : ", ") + std::string(name_of(DType(i)));
    fail(ErrorKind::malformed, "{}: unknown dtype {}; known are {}", where, quote(spelling), known);
}

// Elements times bytes each, or nothing when that leaves int64.
std::optional<int64_t> byte_count(const std::vector<int64_t>& shape, DType dtype) {
    int64_t count = int64_t(size_of(dtype));
    for (const int64_t dimension : shape) {
        if (dimension < 0 || __builtin_mul_overflow(count, dimension, &count)) return {};
    }
    return count;
}

std::string text_of(const std::vector<int64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Where a tensor that starts at `begin` ends in the file `where`.
int64_t end_of(const TensorDeclaration& tensor, int64_t begin, const fs::path& where) {
    const auto bytes = byte_count(tensor.shape, tensor.dtype);
    int64_t end = 0;
    check(bytes && !__builtin_add_overflow(begin, *bytes, &end), ErrorKind::usage,
          "{}: the size of tensor {} with shape {} overflows", where.string(), quote(tensor.name),
          text_of(tensor.shape));
    return end;
}

Json header_entry(const TensorDeclaration& tensor, int64_t begin, int64_t end) {
    return {
        {"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", std::array{begin, end}}};
}

// The size of a file, counted as its tensors are declared.
class FileSize {
  public:
    explicit FileSize(const std::map<std::string, std::string>& metadata) {
        if (!metadata.empty()) add_entry("__metadata__", metadata);
    }
    void add(const TensorDeclaration& tensor) {
        const int64_t begin = std::exchange(data_, end_of(tensor, data_, single_name));
        add_entry(tensor.name, header_entry(tensor, begin, data_));
    }
    uint64_t bytes() const { return sizeof(uint64_t) + (header_ + 7) / 8 * 8 + uint64_t(data_); }

  private:
    void add_entry(const std::string& key, const Json& value) {
        header_ += (header_ > 2) + Json(key).dump().size() + 1 + value.dump().size();
    }
    uint64_t header_ = 2;
    int64_t data_ = 0;
};

std::vector<uint64_t> unsigned_list(const Json& json, const char* key, const std::string& where) {
    const auto found = json.find(key);
    rule(found != json.end() && found->is_array(), "{}: needs a list \"{}\"", where, key);
    std::vector<uint64_t> values;
    for (const Json& value : *found) {
        if (!value.is_number_unsigned()) {
            fail(ErrorKind::malformed, "{}: {} holds {}; whole numbers of at least 0 are needed", where, key,
                 shown(value));
        }
        values.push_back(value.get<uint64_t>());
    }
    return values;
}

// One entry of the header against the bytes after it.
TensorView read_entry(const std::string& name, const Json& json, std::span<const uint8_t> data,
                      const MappedFile& file) {
    const std::string where = fmt::format("{}: tensor {}", file.path().string(), quote(name));
    if (!json.is_object())
        fail(ErrorKind::malformed, "{}: its header entry is {}; an object is needed", where, shown(json));
    const auto dtype = json.find("dtype");
    rule(dtype != json.end() && dtype->is_string(), "{}: needs a text \"dtype\"", where);

    TensorView view{.name = name,
                    .dtype = dtype_of(dtype->get<std::string>(), where),
                    .shape = {},
                    .bytes = {},
                    .file = &file};
    for (const uint64_t dimension : unsigned_list(json, "shape", where)) {
        rule(dimension <= uint64_t(std::numeric_limits<int64_t>::max()), "{}: dimension {} is too large",
             where, dimension);
        view.shape.push_back(int64_t(dimension));
    }
    const auto needed = byte_count(view.shape, view.dtype);
    rule(needed.has_value(), "{}: the size of shape {} overflows", where, view.shape_text());

    const auto range = unsigned_list(json, "data_offsets", where);
    rule(range.size() == 2, "{}: data_offsets has {} numbers; begin and end are needed", where, range.size());
    rule(range[0] <= range[1] && range[1] <= data.size(),
         "{}: data_offsets [{}, {}] leave the {} bytes after the header; is the file cut off?", where,
         range[0], range[1], data.size());
    rule(range[1] - range[0] == uint64_t(*needed), "{}: {} of shape {} needs {} bytes, data_offsets span {}",
         where, name_of(view.dtype), view.shape_text(), *needed, range[1] - range[0]);
    view.bytes = data.subspan(range[0], range[1] - range[0]);
    return view;
}

// "model-00002-of-00005.safetensors" as {"model", 2, 5}.
struct NumberedName {
    std::string stem;
    uint64_t number = 0, count = 0;
};

std::optional<NumberedName> numbered(std::string_view name) {
    if (!name.ends_with(".safetensors")) return {};
    name.remove_suffix(std::string_view(".safetensors").size());
    NumberedName result;
    // Takes the digits at the end and what stands before them.
    const auto take = [&](uint64_t& number, std::string_view before) {
        const size_t digits = name.size() - (name.find_last_not_of("0123456789") + 1);
        if (digits == 0 || digits > 9 || digits == name.size()) return false;
        for (const char digit : name.substr(name.size() - digits))
            number = number * 10 + uint64_t(digit - '0');
        name.remove_suffix(digits);
        if (!name.ends_with(before)) return false;
        name.remove_suffix(before.size());
        return true;
    };
    if (!take(result.count, "-of-") || !take(result.number, "-")) return {};
    result.stem = name;
    return result;
}

std::vector<std::string> numbered_files(const fs::path& folder) {
    std::vector<std::string> names;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
        if (const std::string name = entry.path().filename().string(); numbered(name)) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
}

// Listed names that count their files agree on how many there are and list as many, and no other file in the
// folder is counted among them: parts of two models, or of one half copied, are not taken for one.
void check_numbers(const std::set<std::string>& listed, const fs::path& folder, const std::string& where) {
    struct Group {
        std::string first;
        uint64_t count = 0, listed = 0;
    };
    std::map<std::string, Group> groups;  // by stem
    for (const std::string& name : listed) {
        const auto shard = numbered(name);
        if (!shard) continue;
        Group& group = groups.try_emplace(shard->stem, Group{name, shard->count, 0}).first->second;
        rule(group.count == shard->count, "{}: lists {} and {}, which count {} and {} files", where,
             quote(group.first), quote(name), group.count, shard->count);
        ++group.listed;
    }
    for (const auto& [stem, group] : groups) {
        rule(group.listed >= group.count,
             "{}: lists {} of the {} files that the name {} counts; is it complete?", where, group.listed,
             group.count, quote(group.first));
    }
    for (const std::string& name : numbered_files(folder)) {
        rule(listed.contains(name) || !groups.contains(numbered(name)->stem),
             "{}: {} is in the folder too, but not listed; remove it, or get the index that belongs to it",
             where, quote(name));
    }
}

}  // namespace

int64_t TensorView::elements() const {
    return int64_t(bytes.size() / size_of(dtype));
}

std::string TensorView::shape_text() const {
    return text_of(shape);
}

SafetensorsFile::SafetensorsFile(const fs::path& path) : file_(path) {
    const auto bytes = file_.bytes();
    const std::string where = path.string();
    uint64_t length = 0;
    rule(bytes.size() >= sizeof length,
         "{}: {} bytes; a safetensors file starts with an 8-byte header length", where, bytes.size());
    std::memcpy(&length, bytes.data(), sizeof length);
    rule(length <= header_limit, "{}: header length {}; at most {} is allowed. Is this a safetensors file?",
         where, length, header_limit);
    rule(length <= bytes.size() - sizeof length,
         "{}: header length {}, but only {} bytes follow; is the file cut off?", where, length,
         bytes.size() - sizeof length);
    const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + sizeof length, length);
    rule(header.starts_with('{'), "{}: the header does not start with '{{'; is this a safetensors file?",
         where);
    const Json json = parse_json(header, path);
    const auto data = bytes.subspan(sizeof length + length);

    for (const auto& [name, entry] : json.items()) {
        if (name != "__metadata__") {
            tensors_.emplace(name, read_entry(name, entry, data, file_));
            continue;
        }
        if (!entry.is_object())
            fail(ErrorKind::malformed, "{}: __metadata__ is {}; an object is needed", where, shown(entry));
        for (const auto& [key, value] : entry.items()) {
            rule(value.is_string(), "{}: __metadata__ {} is {}; a text is needed", where, quote(key),
                 shown(value));
            metadata_.emplace(key, value.get<std::string>());
        }
    }

    // Every byte belongs to exactly one tensor.
    std::vector<const TensorView*> order;
    for (const auto& [name, view] : tensors_) order.push_back(&view);
    const auto begin = [&](const TensorView* view) { return uint64_t(view->bytes.data() - data.data()); };
    std::sort(order.begin(), order.end(), [&](const TensorView* a, const TensorView* b) {
        return std::pair(begin(a), a->bytes.size()) < std::pair(begin(b), b->bytes.size());
    });
    uint64_t end = 0;
    for (size_t i = 0; i < order.size(); ++i) {
        rule(begin(order[i]) >= end, "{}: tensors {} and {} overlap", where, quote(order[i - (i > 0)]->name),
             quote(order[i]->name));
        rule(begin(order[i]) == end, "{}: bytes {} to {}, before tensor {}, belong to no tensor", where, end,
             begin(order[i]), quote(order[i]->name));
        end = begin(order[i]) + order[i]->bytes.size();
    }
    rule(end == data.size(), "{}: {} bytes after the last tensor belong to none", where, data.size() - end);
}

SafetensorsFolder::SafetensorsFolder(const fs::path& folder) : folder_(folder) {
    const fs::path index = folder / index_name;
    const bool single = is_there(folder / single_name);
    if (!is_there(index)) {
        for (const std::string& name : numbered_files(folder)) {
            if (!numbered(name)->stem.starts_with("model")) continue;
            rule(!single, "{}: holds {} and {}, and no {}; remove the one that is left over", folder.string(),
                 single_name, quote(name), index_name);
            fail(ErrorKind::failure, "{}: holds {}, but {} is missing; is the download complete?",
                 folder.string(), quote(name), index_name);
        }
        check(single, ErrorKind::failure,
              "{}: has neither {} nor {}; weights in other files (pytorch_model.bin) are not read",
              folder.string(), single_name, index_name);
        files_.push_back(std::make_unique<SafetensorsFile>(folder / single_name));
        tensors_ = files_.back()->tensors();
        return;
    }

    const Json json = read_json(index);
    const std::string where = index.string();
    const auto map = json.is_object() ? json.find("weight_map") : json.end();
    rule(json.is_object() && map != json.end() && map->is_object(), "{}: needs an object \"weight_map\"",
         where);
    std::map<std::string, std::string> shard_of;
    std::set<std::string> shards;
    for (const auto& [tensor, shard] : map->items()) {
        rule(shard.is_string(), "{}: the shard of {} is {}; a file's name is needed", where, quote(tensor),
             shown(shard));
        const auto& name = shard.get_ref<const std::string&>();
        rule(name.ends_with(".safetensors") && name.find('/') == name.npos && name.find("..") == name.npos &&
                 name.find('\0') == name.npos,
             "{}: {} is not the name of a .safetensors file in this folder", where, quote(name));
        shard_of.emplace(tensor, name);
        shards.insert(name);
    }
    rule(!shards.empty(), "{}: \"weight_map\" lists no tensor", where);
    rule(!single || shards.contains(std::string(single_name)),
         "{}: {} is in the folder too, but not listed; remove the one that is left over", where, single_name);
    check_numbers(shards, folder, where);

    std::vector<std::string> missing;
    for (const std::string& shard : shards) {
        if (!is_there(folder / shard)) missing.push_back(shard);
    }
    rule(missing.empty(), "{}: the shard {} is listed, but missing{}; is the download complete?", where,
         missing.empty() ? "" : quote(missing.front()),
         missing.size() > 1 ? fmt::format(", and so are {} others", missing.size() - 1) : "");
    uint64_t total = 0;
    for (const std::string& shard : shards) {
        files_.push_back(std::make_unique<SafetensorsFile>(folder / shard));
        for (const auto& [name, view] : files_.back()->tensors()) {
            const auto listed = shard_of.find(name);
            rule(listed != shard_of.end(), "{}: tensor {} of {} is not listed", where, quote(name),
                 quote(shard));
            rule(listed->second == shard, "{}: tensor {} is listed in {}, but {} holds one of that name",
                 where, quote(name), quote(listed->second), quote(shard));
            tensors_.emplace(name, view);
            total += view.bytes.size();
        }
    }
    for (const auto& [name, shard] : shard_of) {
        rule(tensors_.contains(name), "{}: tensor {} is listed in {}, which lacks it", where, quote(name),
             quote(shard));
    }
    // Nothing is read by it and other readers ignore it, so that files in use have it wrong.
    const auto metadata = json.find("metadata");
    if (metadata == json.end() || !metadata->is_object() || !metadata->contains("total_size")) return;
    const Json& claimed = (*metadata)["total_size"];
    if (!claimed.is_number() || claimed.get<double>() != double(total)) {
        warnings_.push_back(
            fmt::format("{}: total_size is {}, the tensors have {} bytes", where, shown(claimed), total));
    }
}

std::vector<fs::path> SafetensorsFolder::files() const {
    std::vector<fs::path> paths;
    for (const auto& file : files_) paths.push_back(file->file().path());
    return paths;
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, const std::vector<TensorDeclaration>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path) {
    Json header = Json::object();
    auto& entries =
        header.get_ref<Json::object_t&>();  // appended to: operator[] would look at all earlier names
    if (!metadata.empty()) entries.emplace_back("__metadata__", metadata);
    std::set<std::string_view> names = {"__metadata__"};
    int64_t end = 0;
    for (const TensorDeclaration& tensor : tensors) {
        check(names.insert(tensor.name).second, ErrorKind::usage, "{}: the tensor name {} is taken",
              path.string(), quote(tensor.name));
        const int64_t begin = std::exchange(end, end_of(tensor, end, path));
        entries.emplace_back(tensor.name, header_entry(tensor, begin, end));
        pending_.push_back({tensor.name, uint64_t(end - begin)});
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    check(text.size() <= header_limit, ErrorKind::usage, "{}: a header of {} bytes; the format allows {}",
          path.string(), text.size(), header_limit);
    const uint64_t length = text.size();
    total_bytes_ = sizeof length + length + uint64_t(end);

    std::string pattern = path.string() + ".partial-XXXXXX";
    descriptor_ = ::mkostemp(pattern.data(), O_CLOEXEC);
    check(descriptor_ >= 0, ErrorKind::failure, "{}: cannot be created: {}", path.string(),
          std::strerror(errno));
    temporary_ = pattern;
    try {
        ::fchmod(descriptor_, 0644);
        write_all(descriptor_, &length, sizeof length, path_);
        write_all(descriptor_, text.data(), text.size(), path_);
    } catch (...) {
        ::close(descriptor_);
        ::unlink(temporary_.c_str());
        throw;
    }
}

SafetensorsWriter::~SafetensorsWriter() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void SafetensorsWriter::write(const std::string& name, std::span<const uint8_t> bytes) {
    // The next tensor begins when the current one is full; tensors without bytes need no call.
    while (current_ < pending_.size() && pending_[current_].name != name &&
           written_in_current_ == pending_[current_].bytes) {
        ++current_;
        written_in_current_ = 0;
    }
    check(current_ < pending_.size() && pending_[current_].name == name, ErrorKind::usage,
          "{}: tensor {} is not the next one in the declared order", path_.string(), quote(name));
    const uint64_t room = pending_[current_].bytes - written_in_current_;
    check(bytes.size() <= room, ErrorKind::usage, "{}: tensor {}: {} bytes given, {} declared bytes are left",
          path_.string(), quote(name), bytes.size(), room);
    write_all(descriptor_, bytes.data(), bytes.size(), path_);
    written_in_current_ += bytes.size();
}

void SafetensorsWriter::finish() {
    for (; current_ < pending_.size(); ++current_, written_in_current_ = 0) {
        check(written_in_current_ == pending_[current_].bytes, ErrorKind::usage,
              "{}: tensor {}: {} of {} bytes were written", path_.string(), quote(pending_[current_].name),
              written_in_current_, pending_[current_].bytes);
    }
    const auto done = [&](int result, const char* what) {
        check(result == 0, ErrorKind::failure, "{}: cannot be {}: {}", path_.string(), what,
              std::strerror(errno));
    };
    done(::fsync(descriptor_), "synced");
    done(::close(std::exchange(descriptor_, -1)), "closed");
    done(::rename(temporary_.c_str(), path_.c_str()), "put in place");
    temporary_.clear();
    sync_to_disk(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
}

std::vector<std::vector<TensorDeclaration>> split_into_files(
    const std::vector<TensorDeclaration>& tensors, const std::map<std::string, std::string>& metadata,
    uint64_t limit) {
    const auto size_of_range = [&](FileSize size, size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) size.add(tensors[i]);
        return size;
    };
    const auto module = [&](size_t i) {
        return std::string_view(tensors[i].name).substr(0, tensors[i].name.rfind('.'));
    };
    const FileSize empty(metadata);
    FileSize size = empty;
    std::vector<std::vector<TensorDeclaration>> files(1);
    for (size_t begin = 0, end = 0; begin < tensors.size(); begin = end) {
        while (end < tensors.size() && module(end) == module(begin)) ++end;
        const FileSize alone = size_of_range(empty, begin, end);
        if (alone.bytes() > limit) end = begin + 1;  // no file holds the module: cut it between its tensors
        size = size_of_range(size, begin, end);
        if (size.bytes() > limit && !files.back().empty()) {
            files.emplace_back();
            size = size_of_range(empty, begin, end);
        }
        files.back().insert(files.back().end(), tensors.begin() + begin, tensors.begin() + end);
    }
    return files;
}

std::vector<std::string> weight_file_names(size_t files) {
    if (files == 1) return {std::string(single_name)};
    std::vector<std::string> names;
    for (size_t i = 1; i <= files; ++i)
        names.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", i, files));
    return names;
}

SafetensorsFolderWriter::SafetensorsFolderWriter(const fs::path& folder,
                                                 std::vector<std::vector<TensorDeclaration>> files,
                                                 std::map<std::string, std::string> metadata)
    : folder_(folder),
      files_(std::move(files)),
      metadata_(std::move(metadata)),
      names_(weight_file_names(files_.size())) {
    for (size_t i = 0; i < files_.size(); ++i) {
        for (const TensorDeclaration& tensor : files_[i]) {
            check(file_of_.emplace(tensor.name, i).second, ErrorKind::usage,
                  "{}: the tensor name {} is taken", folder.string(), quote(tensor.name));
        }
    }
    open_file();
}

void SafetensorsFolderWriter::open_file() {
    writer_.emplace(folder_ / names_[current_], files_[current_], metadata_);
}

void SafetensorsFolderWriter::write(const std::string& name, std::span<const uint8_t> bytes) {
    const auto found = file_of_.find(name);
    while (found != file_of_.end() && found->second > current_) {
        writer_->finish();
        ++current_;
        open_file();
    }
    writer_->write(name, bytes);
}

void SafetensorsFolderWriter::finish() {
    for (writer_->finish(); current_ + 1 < files_.size(); writer_->finish()) {  // what is left holds no bytes
        ++current_;
        open_file();
    }
}

std::string SafetensorsFolderWriter::index() const {
    if (files_.size() == 1) return {};
    Json map = Json::object();
    auto& entries = map.get_ref<Json::object_t&>();
    int64_t total = 0;
    for (const auto& [name, file] : file_of_) entries.emplace_back(name, names_[file]);
    for (const auto& tensors : files_)
        for (const TensorDeclaration& tensor : tensors) total = end_of(tensor, total, folder_);
    return Json{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}}.dump(2) + "\n";
}

}  // namespace halfbyte::checkpoint
