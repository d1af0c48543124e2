// Made-up analyses to draw, with the shape and size of real ones.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace mantissa::testing {

// The panels of the page, in order.
inline const std::vector<std::string> kModelPanels = {"verdict",    "layers",    "histograms", "drift", "snr",
                                                      "stagnation", "underflow", "noise",      "wire"};

// Complete: a GPT of 4 blocks with delayed scaling on two ranks, at two checkpoints of 8 batches. 16 linear layers.
nlohmann::json small_analysis();

// 200 layers with names hostile to markup, at two checkpoints. Most numbers are null, and some lists and records are
// empty, null or too short. The tensors of every third layer exist at the early checkpoint only.
nlohmann::json nasty_analysis();

// Names that nasty_analysis() uses.
inline constexpr const char* kHostileTitle =
    R"(</script><script>window.smuggled = 1</script><!-- "quoted" & 'single' {{script}} <b>)";
inline constexpr const char* kHostileLayer = R"(blocks.0."mlp"</script><img src=x onerror="window.smuggled = 2">)";

}  // namespace mantissa::testing
