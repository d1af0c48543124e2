// The panels of the page of `mantissa analyze model`, in order.
#pragma once

#include <string>
#include <vector>

namespace mantissa::testing {

inline std::vector<std::string> model_panels() {
  return {"verdict", "layers", "histograms", "drift", "snr", "stagnation", "underflow", "noise", "wire"};
}

}  // namespace mantissa::testing
