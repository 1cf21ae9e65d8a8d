// safetensors: 8 bytes little-endian header length, a JSON header, the tensors' bytes. Opening validates
// everything; a file that opens can be read without further checks.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/mapped_file.h"
#include "halfbyte/dtype.h"

namespace halfbyte::checkpoint {

struct TensorView {
    std::string name;
    DType dtype = DType::f32;
    std::vector<int64_t> shape;
    std::span<const uint8_t> bytes;    // in the mapped file
    const MappedFile* file = nullptr;  // for messages and release()

    int64_t elements() const;
    std::string shape_text() const;  // "[2048, 128]"
};

class SafetensorsFile {
  public:
    // Error (malformed): header length, JSON, duplicate names, unknown dtype, shape against bytes, u64
    // overflow, ranges outside the file, overlaps and holes. Names file, tensor, what was found and what the
    // rule is.
    explicit SafetensorsFile(const std::filesystem::path& path);
    const std::map<std::string, TensorView>& tensors() const { return tensors_; }
    const std::map<std::string, std::string>& metadata() const { return metadata_; }
    const MappedFile& file() const { return file_; }

  private:
    MappedFile file_;
    std::map<std::string, TensorView> tensors_;
    std::map<std::string, std::string> metadata_;
};

// The tensors of a folder: model.safetensors, or the shards that model.safetensors.index.json lists. Error
// (malformed): index and shards differ in a tensor or a file, or a file beside them makes it unclear which
// are meant.
class SafetensorsFolder {
  public:
    explicit SafetensorsFolder(const std::filesystem::path& folder);
    const std::map<std::string, TensorView>& tensors() const { return tensors_; }
    const std::filesystem::path& folder() const { return folder_; }
    std::vector<std::filesystem::path> files() const;  // by name
    const std::vector<std::string>& warnings() const { return warnings_; }

  private:
    std::filesystem::path folder_;
    std::vector<std::string> warnings_;
    std::vector<std::unique_ptr<SafetensorsFile>> files_;
    std::map<std::string, TensorView> tensors_;
};

struct TensorDeclaration {
    std::string name;
    DType dtype = DType::f32;
    std::vector<int64_t> shape;
};

// Writes one file as a stream: the header from the declarations (8-byte aligned, in the given order), then
// each tensor's bytes by write(), in that order and possibly in pieces. finish() checks that all was written,
// syncs and renames the temporary file "PATH.partial-XXXXXX" to its place; without it the destructor removes
// the temporary file.
class SafetensorsWriter {
  public:
    SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorDeclaration>& tensors,
                      const std::map<std::string, std::string>& metadata);
    ~SafetensorsWriter();
    SafetensorsWriter(const SafetensorsWriter&) = delete;
    SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

    void write(const std::string& name, std::span<const uint8_t> bytes);
    void finish();
    uint64_t file_bytes() const { return total_bytes_; }

  private:
    struct Pending {
        std::string name;
        uint64_t bytes;
    };
    std::filesystem::path path_, temporary_;
    int descriptor_ = -1;
    std::vector<Pending> pending_;
    size_t current_ = 0;
    uint64_t written_in_current_ = 0, total_bytes_ = 0;
};

// Cuts the tensors, kept in their order, into files of at most `limit` bytes, headers included. Neighbours of
// one module ("m.weight_packed", "m.weight_scale") stay together unless they are too large for one file. A
// tensor that is too large alone has a file of its own.
std::vector<std::vector<TensorDeclaration>> split_into_files(
    const std::vector<TensorDeclaration>& tensors, const std::map<std::string, std::string>& metadata,
    uint64_t limit);

// "model.safetensors", or "model-00001-of-00003.safetensors" and so on.
std::vector<std::string> weight_file_names(size_t files);

constexpr std::string_view index_name = "model.safetensors.index.json";

// Writes the files that split_into_files gives as SafetensorsWriter does, one after the other.
class SafetensorsFolderWriter {
  public:
    SafetensorsFolderWriter(const std::filesystem::path& folder,
                            std::vector<std::vector<TensorDeclaration>> files,
                            std::map<std::string, std::string> metadata);
    void write(const std::string& name, std::span<const uint8_t> bytes);
    void finish();
    std::string index() const;  // the text of `index_name`; empty for a single file, which has none

  private:
    void open_file();

    std::filesystem::path folder_;
    std::vector<std::vector<TensorDeclaration>> files_;
    std::map<std::string, std::string> metadata_;
    std::vector<std::string> names_;
    std::map<std::string, size_t> file_of_;
    size_t current_ = 0;
    std::optional<SafetensorsWriter> writer_;
};

}  // namespace halfbyte::checkpoint
