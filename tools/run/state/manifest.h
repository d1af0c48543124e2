// What a checkpoint's manifest says of a training: entries that are checked before they are used.
#pragma once

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <string>

#include "core/base/error.h"
#include "core/io/checkpoint_store.h"

namespace mantissa {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr int kStateVersion = 1;  // of the state in a manifest
// An entry of the manifest of weights without a state of training: an imported model.
inline constexpr const char* kWeightsOnly = "weights_only";

// An entry of a manifest that no run can have saved, such as a negative count; read_state() adds where the manifest is.
class DamagedEntry final : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

// Runs `read`, which reads the state in the manifest of a checkpoint folder. CheckpointError for entries that are
// damaged, and for those that are missing or of another type, as another version of this program may write them.
template <typename Read>
auto read_state(const std::string& folder, const Read& read) {
  try {
    return read();
  } catch (const DamagedEntry& error) {
    throw CheckpointError("{}/{}: {}", folder, kManifestName, error.what());
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError("{}/{}: {}; another version of this program may have written it", folder, kManifestName,
                          error.what());
  }
}

}  // namespace mantissa
