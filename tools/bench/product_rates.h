// How fast the device multiplies square matrices: bf16, and 8-bit codes if it has units for them.
#pragma once

#include "tools/config/config.h"

namespace mantissa {

// Prints a line for each kind of operands, "products_bf16: 256 1.1e+13 0.011 512 ...": sizes, FLOP/s, and their share
// of the device's peak, or 0 if that is unknown. The device is the configuration's.
void print_product_rates(const Config& config);

}  // namespace mantissa
