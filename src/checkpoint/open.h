// The kinds of checkpoint; open_checkpoint chooses.
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint/checkpoint.h"

namespace halfbyte::checkpoint {

std::unique_ptr<Checkpoint> open_hf_folder(const std::filesystem::path& folder);
std::unique_ptr<Checkpoint> open_gguf(const std::filesystem::path& file);

}  // namespace halfbyte::checkpoint
