// Rounding: a way of storing numbers, to be tried with values of all sizes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/backend/backend.h"
#include "core/quant/tensor_format.h"

namespace mantissa {

enum class RoundedBy : uint8_t {
  kDevice,     // the kernels that training uses
  kEmulation,  // exactly, on the host: the device stores no such format
};

struct Rounding {
  std::string name;                  // "fp16", "e4m3", "mxfp8"
  Format format = Format::kF32;      // of an element
  std::optional<Scaling> scaling{};  // nothing: values are stored as they are
  RoundedBy by = RoundedBy::kEmulation;
  // What comes back of values that were stored together. Equal size; beyond the range as the format does without
  // saturation.
  std::function<std::vector<float>(const std::vector<float>&)> round{};
};

// Of every format, and of the low-precision ones with each recipe that takes its scales from the values themselves.
// `device` and its stream, and `host`, a CPU backend, must outlive them.
std::vector<Rounding> make_roundings(Backend& device, Stream& stream, Backend& host);

}  // namespace mantissa
