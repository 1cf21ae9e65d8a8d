// A model given on the command line: its text side, and what can be asked of it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "cli/console.h"
#include "model/chat.h"
#include "model/tokenizer.h"

namespace halfbyte::cli {

// A model that is going to be run, converted or shown: its files' warnings go to stderr, unless --quiet.
std::unique_ptr<checkpoint::Checkpoint> open_model(const CommonOptions& options, const std::string& path);

// Error (unsupported) with the reason if the checkpoint has none that can be used.
model::Tokenizer load_tokenizer(const checkpoint::Checkpoint& source);

// The ids of a text. Error (malformed) if the tokenizer gives an id that the model's vocabulary does not
// have.
std::vector<int32_t> encode(const checkpoint::Checkpoint& source, const model::Tokenizer& tokenizer,
                            const std::string& text, bool add_special);

// The BOS token's spelling, as tokenizer_config.json has it; empty if it names none.
std::string bos_token(const checkpoint::Checkpoint& source);

// Error (usage), which names the model as `path`, if --arithmetic unit-scale would change nothing.
void check_unit_scale(const checkpoint::Checkpoint& source, const std::string& path);

}  // namespace halfbyte::cli
