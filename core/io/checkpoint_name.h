// Names of a store's folders: step-00000100, with a suffix while it is not (or no longer) a checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mantissa {

std::string checkpoint_name(int64_t step);

// The step of a name such as step-00000100 followed by `suffix`; nothing for any other name.
std::optional<int64_t> parse_checkpoint_name(std::string_view name, std::string_view suffix = "");

}  // namespace mantissa
