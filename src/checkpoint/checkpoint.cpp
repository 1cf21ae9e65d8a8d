#include "checkpoint/checkpoint.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "checkpoint/open.h"
#include "core/check.h"
#include "core/float_environment.h"

namespace halfbyte::checkpoint {

std::string_view name_of(Scheme scheme) {
    constexpr std::string_view names[] = {"NVFP4", "NVFP4A16", "FP8A16"};
    return names[int(scheme)];
}

std::string_view bits_of(Scheme scheme) {
    constexpr std::string_view bits[] = {"W4A4", "W4A16", "W8A16"};
    return bits[int(scheme)];
}

const std::map<std::string, Fp8Linear>& Checkpoint::fp8() const {
    static const std::map<std::string, Fp8Linear> none;
    return none;
}

std::unique_ptr<Checkpoint> open_checkpoint(const std::filesystem::path& path) {
    const FloatEnvironment environment;
    check(!path.empty(), ErrorKind::usage, "the name of the model is empty; give a folder or a .gguf file");
    std::error_code error;
    const auto type = std::filesystem::status(path, error).type();
    check(type != std::filesystem::file_type::not_found, ErrorKind::failure, "{}: no such file or folder",
          path.string());
    check(type != std::filesystem::file_type::none, ErrorKind::failure, "{}: cannot be opened: {}",
          path.string(), error.message());
    if (type == std::filesystem::file_type::directory) {
        const bool readable = ::access(path.c_str(), R_OK | X_OK) == 0;
        check(readable, ErrorKind::failure, "{}: cannot be opened: {}", path.string(), std::strerror(errno));
        return open_hf_folder(path);
    }
    char magic[4] = {};
    std::ifstream(path, std::ios::binary).read(magic, 4);
    check(path.extension() == ".gguf" || std::string_view(magic, 4) == "GGUF", ErrorKind::failure,
          "{}: neither a folder nor a GGUF file; of a Hugging Face model give the folder", path.string());
    return open_gguf(path);
}

}  // namespace halfbyte::checkpoint
