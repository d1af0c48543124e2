// Names of activation functions, as configurations and kernels know them. Plain data.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

namespace mantissa {

enum class GeluForm : uint8_t { kTanh, kErf };

enum class Activation : uint8_t { kGeluTanh, kGeluErf, kSwiglu, kReluSquared };

// As written in configurations.
inline constexpr std::pair<std::string_view, Activation> kActivationNames[] = {
    {"gelu_tanh", Activation::kGeluTanh},
    {"gelu_erf", Activation::kGeluErf},
    {"swiglu", Activation::kSwiglu},
    {"relu_squared", Activation::kReluSquared}};

// Gated activations take 2*F inputs for F outputs.
constexpr bool is_gated(Activation activation) { return activation == Activation::kSwiglu; }

}  // namespace mantissa
