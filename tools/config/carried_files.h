// Files of a Hugging Face folder that a run takes along and gives back: its tokenizer and its settings.
#pragma once

#include <string>

namespace mantissa {

// Where a run folder keeps them.
inline constexpr const char* kCarriedFolder = "huggingface";

// The folder with such files for a Hugging Face folder (itself), a run folder or a checkpoint folder of a run; empty if
// there is none.
std::string carried_folder(const std::string& path);

// Copies the files found in `from` to the folder `to`, made only if there are any. Error naming a file that cannot be
// copied.
void carry_files(const std::string& from, const std::string& to);
// The same for the files of a tokenizer only.
void carry_tokenizer(const std::string& from, const std::string& to);

}  // namespace mantissa
