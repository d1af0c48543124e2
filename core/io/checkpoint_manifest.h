// manifest.json: what a checkpoint consists of. Its last line holds the hash of everything before it, so that any
// changed byte of the manifest itself is noticed as well.
#pragma once

#include <string>

#include "core/io/checkpoint_store.h"

namespace mantissa {

// The manifest's text. ContractError if the state holds NaN or Inf, which JSON would silently turn into null.
std::string write_manifest(const Checkpoint& checkpoint);

// CheckpointError naming `path` if the text is not as written.
Checkpoint parse_manifest(const std::string& text, const std::string& path);

// The manifest in a checkpoint's folder; of the files that it lists none is read. CheckpointError as above, or when the
// folder bears the name of another step: a copy under a wrong name would be taken for what it is not.
Checkpoint read_manifest(const std::string& folder);

}  // namespace mantissa
