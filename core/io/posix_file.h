// What writing durably needs of the operating system, with errors that name the path.
#pragma once

#include <string>

namespace mantissa {

// CheckpointError "PATH: cannot OPERATION: the system's reason".
[[noreturn]] void fail_checkpoint_io(const std::string& path, const std::string& operation, int error);

// Puts a folder's entries on the disk. Without it a renamed file may be gone after a power cut.
void sync_folder(const std::string& folder);

void rename_path(const std::string& from, const std::string& to);

}  // namespace mantissa
